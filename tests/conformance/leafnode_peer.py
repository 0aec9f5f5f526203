"""A scripted end of a leafnode connection: a leaf that dials a server, or a hub that a server dials."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

TIMEOUT_S = 60.0
EOF = b"<EOF>"


class LeafPeer:
    """One connection; `operations` are control lines, or messages with their payload."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    @classmethod
    def dial(cls, port: int) -> LeafPeer:
        peer = cls(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
        peer.info = peer.json(b"INFO ")
        return peer

    info: dict[str, Any]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def connect(self, **fields: Any) -> dict[str, Any]:
        """Send CONNECT; return the INFO that the server sends in reply."""
        base = {"version": "2.15.1", "server_id": "PLAYED", "name": "played", "cluster": "played",
                "headers": True, "jetstream": True, "domain": "PLAYED", "remote_account": "$G",
                "protocol": 1}  # fmt: skip
        self.send(b"CONNECT " + json.dumps({**base, **fields}).encode() + b"\r\n")
        return self.json(b"INFO ")

    def json(self, start: bytes) -> dict[str, Any]:
        line = self.next(start)
        found: dict[str, Any] = json.loads(line[len(start) :])
        return found

    def next(self, start: bytes | tuple[bytes, ...] = b"", timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the next operation that starts with this; skip others, reply to pings."""
        deadline = time.monotonic() + timeout_s
        while True:
            operation = self._operation(deadline)
            if operation == b"PING\r\n":
                self.send(b"PONG\r\n")
            if operation.startswith(start) or operation == EOF:
                return operation

    def until_pong(self) -> list[bytes]:
        """Return everything up to the reply to a PING."""
        self.send(b"PING\r\n")
        found = []
        while (operation := self.next()) not in (b"PONG\r\n", EOF):
            found.append(operation)
        return found

    def _operation(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not self._fill(deadline):
                rest, self._buffer = self._buffer, b""
                return rest or EOF
        size = end + 2
        if self._buffer.startswith((b"LMSG ", b"HMSG ")):
            size += int(self._buffer[:end].split()[-1]) + 2
        while len(self._buffer) < size:
            if not self._fill(deadline):
                return EOF
        operation, self._buffer = self._buffer[:size], self._buffer[size:]
        return operation

    def _fill(self, deadline: float) -> bool:
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> LeafPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlayedHub:
    """A scripted hub that a server dials."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(TIMEOUT_S)
        self.port: int = self._server.getsockname()[1]

    def accept(self, **info: Any) -> LeafPeer:
        """Accept the next connection and send INFO."""
        connection, _ = self._server.accept()
        peer = LeafPeer(connection)
        fields = {"server_id": "PLAYED", "server_name": "played", "version": "2.15.1", "proto": 1, "headers": True,
                  "max_payload": 1048576, "client_id": 7, "nonce": "abcdefghijk", "cluster": "played",
                  "domain": "PLAYED", "jetstream": True, "leafnode_urls": [f"127.0.0.1:{self.port}"],
                  "info_on_connect": True}  # fmt: skip
        peer.send(b"INFO " + json.dumps({**fields, **info}).encode() + b" \r\n")
        return peer

    def meet(self, **info: Any) -> tuple[LeafPeer, dict[str, Any]]:
        """Accept the next connection that stays, and return its CONNECT.

        `info` is added to the INFO that confirms it. A server that waited too long for INFO closes the connection and
        dials again.
        """
        while True:
            try:
                peer = self.accept()
                line = peer.next(b"CONNECT ")
            except (BrokenPipeError, ConnectionResetError):
                continue
            if line != EOF:
                break
            peer.close()
        connect: dict[str, Any] = json.loads(line.removeprefix(b"CONNECT "))
        fields = {"server_id": "PLAYED", "server_name": "played", "client_id": 7, "connect_info": True,
                  "remote_account": "$G", "leafnode_urls": [f"127.0.0.1:{self.port}"]}  # fmt: skip
        peer.send(b"INFO " + json.dumps({**fields, **info}).encode() + b" \r\n")
        return peer, connect

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> PlayedHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
