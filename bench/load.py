"""The load generator: raw sockets and prebuilt buffers, so that it costs little, and the same for both servers.

Knows the protocol, not the workloads. Distinguishes a server that lacks an API call from one that fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

CHUNK = 1000
#: The end of the control line of a delivery.
_ACK_LINE = re.compile(rb" (\$JS\.ACK\.[^ ]+) [ \d]+\r\n")
CONNECT = b'{"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}'


class NotYet(Exception):
    """The server does not know this part of the API."""


class Refused(Exception):
    """The server replied with an error."""


@dataclass
class Section:
    """A timed part of a workload: wall-clock seconds and, if measured, CPU seconds of the server."""

    operations: int
    seconds: float = 0.0
    cpu_s: float = 0.0


class Meter:
    """Times the sections of workloads. The last section of a run is its result; those before it are preparation."""

    def __init__(self) -> None:
        self.read_cpu_s: Callable[[], float] = float
        self.last = Section(0)

    @contextlib.contextmanager
    def section(self, operations: int) -> Iterator[Section]:
        section = Section(operations)
        cpu_s, start = self.read_cpu_s(), time.perf_counter()
        yield section
        section.seconds = time.perf_counter() - start
        section.cpu_s = self.read_cpu_s() - cpu_s
        self.last = section


METER = Meter()


class Connection:
    """A client connection; replies to its requests arrive on its own inbox."""

    def __init__(self, port: int, connect: bytes = CONNECT, inbox: bytes = b"_R") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.inbox = b"%s.%d.%d" % (inbox, os.getpid(), self.socket.fileno())
        self._buffer = b""
        self._requests = 0
        self.line()
        self.socket.sendall(b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (connect, self.inbox))
        while self.line() != b"PONG":
            pass
        self.line()  # the second INFO

    def line(self) -> bytes:
        """Return the next control line, replying to PINGs before it."""
        while True:
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                self._fill()
                continue
            self._buffer = rest
            if line != b"PING":
                return line
            self.socket.sendall(b"PONG\r\n")

    def _fill(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def message(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the next message: subject, reply, header block, payload."""
        words = self.line().split()
        sizes = 2 if words[0] == b"HMSG" else 1
        total = int(words[-1])
        header = int(words[-2]) if sizes == 2 else 0
        while len(self._buffer) < total + 2:
            self._fill()
        data, self._buffer = self._buffer[:total], self._buffer[total + 2 :]
        reply = words[3] if len(words) == 4 + sizes else b""
        return words[1], reply, data[:header], data[header:]

    def skip_acks(self, count: int) -> None:
        """Receive this many PubAcks."""
        data = self._buffer
        while (found := data.count(b'"seq":')) < count or b"\r\n" not in data[data.rindex(b'"seq":') :]:
            assert found <= count, f"{found} replies instead of {count}"
            received = self.socket.recv(1 << 20)
            assert received, "the server closed the connection"
            data += received
            assert b'{"error"' not in data, data[data.index(b'{"error"') :][:200]
        self._buffer = data[data.index(b"\r\n", data.rindex(b'"seq":')) + 2 :]

    def ack_subjects(self) -> list[bytes]:
        """Receive once; return the ack subjects of the deliveries that began, and skip everything else.

        This costs the client a tenth of parsing each message. Payloads must not look like control lines.
        """
        self._fill()
        found, end = [], 0
        for match in _ACK_LINE.finditer(self._buffer):
            found.append(match[1])
            end = match.end()
        self._buffer = self._buffer[end:]
        return found

    def request(self, subject: bytes, body: bytes = b"") -> tuple[bytes, bytes]:
        """Send a request; return header block and payload of the reply."""
        self._requests += 1
        reply = b"%s.%d" % (self.inbox, self._requests)
        self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(body), body))
        while True:
            came, _, header, payload = self.message()
            if came == reply:
                return header, payload

    def api(
        self, operation: str, body: dict[str, Any] | None = None, timeout_s: float = 30
    ) -> dict[str, Any]:
        self.socket.settimeout(timeout_s)
        try:
            header, payload = self.request(
                f"$JS.API.{operation}".encode(), json.dumps(body).encode() if body else b""
            )
        except TimeoutError:
            raise NotYet(operation) from None
        if b" 503" in header[:12]:
            raise NotYet(operation)
        answer: dict[str, Any] = json.loads(payload)
        if "error" in answer:
            raise Refused(f"{operation}: {answer['error']['description']}")
        return answer

    def stream(self, name: str, **config: Any) -> None:
        """Create a stream that captures `name.>`."""
        with contextlib.suppress(Refused):
            self.api(f"STREAM.DELETE.{name}")
        self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})

    def consumer(self, stream: str, name: str = "", **config: Any) -> dict[str, Any]:
        """Create a consumer: durable if it has a name, otherwise ephemeral."""
        subject = f"CONSUMER.DURABLE.CREATE.{stream}.{name}" if name else f"CONSUMER.CREATE.{stream}"
        durable = {"durable_name": name} if name else {}
        return self.api(subject, {"stream_name": stream, "config": {**durable, **config}}, timeout_s=3)

    def subscribe(self, subject: bytes, sid: int = 9) -> None:
        self.socket.sendall(b"SUB %s %d\r\nPING\r\n" % (subject, sid))
        while self.line() != b"PONG":
            pass

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def publication(subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """Encode a PUB or HPUB."""
    if not header:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)
    total = len(header) + len(payload)
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, len(header), total, header, payload)


def header(**fields: object) -> bytes:
    """Encode a header block; underscores in names become dashes."""
    lines = b"".join(
        b"%s: %s\r\n" % (k.replace("_", "-").encode(), str(v).encode()) for k, v in fields.items()
    )
    return b"NATS/1.0\r\n" + lines + b"\r\n"


class Counter:
    """Counts a token in the bytes received on sockets, on a separate thread; fails early if a server reports an
    error.
    """

    def __init__(self, connections: Iterable[Connection], token: bytes, wanted: int) -> None:
        self.count = 0
        self.wanted = wanted
        self.failure = ""
        self._token = token
        self._threads = [threading.Thread(target=self._read, args=(c,), daemon=True) for c in connections]
        self._share = wanted // len(self._threads)
        self._lock = threading.Lock()
        for thread in self._threads:
            thread.start()

    def _read(self, connection: Connection) -> None:
        token, own, tail = self._token, 0, b""
        buffer = bytearray(1 << 20)
        while own < self._share:
            try:
                size = connection.socket.recv_into(buffer)
            except TimeoutError:
                return
            if not size:
                self.failure = "the server closed the connection"
                return
            data = tail + bytes(memoryview(buffer)[:size])
            found = data.count(token)
            if b'{"error"' in data:
                self.failure = data[data.index(b'{"error"') :][:200].decode(errors="replace")
                return
            own += found
            with self._lock:
                self.count += found
            tail = data[-(len(token) - 1) :]

    def wait(self, timeout_s: float = 300) -> None:
        for thread in self._threads:
            thread.join(timeout_s)
        if self.failure or self.count < self.wanted:
            raise Refused(self.failure or f"only {self.count} of {self.wanted} replies arrived")


def pump(
    sender: Connection,
    chunks: Iterable[bytes],
    token: bytes,
    wanted: int,
    *,
    receivers: Iterable[Connection] = (),
    per_chunk: int = CHUNK,
    window: int = 20_000,
) -> float:
    """Send chunks, at most `window` tokens ahead of the replies; return the seconds until all replies arrived."""
    with METER.section(wanted) as section:
        counter = Counter(list(receivers) or [sender], token, wanted)
        expected = 0
        for chunk in chunks:
            while expected - counter.count > window and not counter.failure:
                time.sleep(0.0002)
            sender.socket.sendall(chunk)
            expected += per_chunk
        counter.wait()
    return section.seconds


def repeat(chunk: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield chunk


def median_s(action: Callable[[], object], times: int, warm: int = 50) -> float:
    """Return the median duration of an action, in seconds."""
    for _ in range(warm):
        action()
    durations = []
    with METER.section(times):
        for _ in range(times):
            start = time.perf_counter()
            action()
            durations.append(time.perf_counter() - start)
    return statistics.median(durations)
