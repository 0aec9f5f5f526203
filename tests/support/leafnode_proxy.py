"""A small TCP proxy for leafnode connections that can cut them at any byte and drop messages.

It runs between two servers, in its own threads. Cutting closes both sockets after a given number of further bytes.
Dropping removes complete messages from the stream: TCP never does that, but a server that crashes has the same effect.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from random import Random

CHUNK = 65_536
_MESSAGES = (b"LMSG ", b"HMSG ")


class Proxy:
    """Listens on `port` and connects to `target()` for each connection."""

    def __init__(self, target: Callable[[], int], seed: int | str = 0) -> None:
        self._target = target
        self._rng = Random(seed)
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.refusing = False  # new connections are closed
        self.loss = 0.0  # fraction of the messages that are dropped
        self.cuts = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target()), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            pair = _Pair(self, client, server)
            with self._lock:
                self._pairs.add(pair)
            pair.start()

    def cut(self, after_bytes_max: int = 4096) -> None:
        """Cut every connection, each after a random number of further bytes or a moment later."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self.cuts += 1
            pair.cut(self._rng.randrange(after_bytes_max))

    def loses(self) -> bool:
        if self.loss and self._rng.random() < self.loss:
            self.lost += 1
            return True
        return False

    def forget(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)

    def close(self) -> None:
        self._server.close()
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.end()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pair:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets = (client, server)
        self._left: int | None = None  # bytes until the cut
        self._pumps = len(self._sockets)  # threads that may still use the sockets
        self._lock = threading.Lock()

    def start(self) -> None:
        client, server = self._sockets
        for near, far in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(near, far), daemon=True).start()

    def cut(self, after_bytes: int) -> None:
        self._left = after_bytes
        threading.Timer(0.2, self.end).start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                self._copy(near, far)
        finally:
            self.end()
            self._close()

    def _copy(self, near: socket.socket, far: socket.socket) -> None:
        held = b""
        while data := near.recv(CHUNK):
            data, held = self._thinned(held + data)
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            far.sendall(data)
            if self._left is not None and self._left <= 0:
                return

    def _thinned(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the complete operations that are not dropped, and the incomplete rest."""
        kept, at = [], 0
        while (stop := data.find(b"\r\n", at)) >= 0:
            end = stop + 2
            message = data.startswith(_MESSAGES, at)
            if message:
                size = data[at:stop].split()[-1]
                assert size.isdigit(), f"no size in {data[at:stop]!r}, after {data[max(0, at - 200) : at]!r}"
                end += int(size) + 2
                if end > len(data):
                    break
            if not (message and self._proxy.loses()):
                kept.append(data[at:end])
            at = end
        return b"".join(kept), data[at:]

    def end(self) -> None:
        """End the connection; the threads notice it and close the sockets."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._proxy.forget(self)

    def _close(self) -> None:
        """Close the sockets when no thread uses them any more: the system gives their numbers to other sockets."""
        with self._lock:
            self._pumps -= 1
            if self._pumps:
                return
        for each in self._sockets:
            each.close()
