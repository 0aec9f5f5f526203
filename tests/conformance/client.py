"""A small synchronous NATS client for tests: raw bytes for tests of the protocol, requests for tests of replies.

It sends nothing by itself except the reply to a PING, so that no test depends on how long it takes. It must not know
which server it is connected to.
"""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

TIMEOUT_S = 60.0
API = "$JS.API."
EOF = b"<EOF>"


class Message(NamedTuple):
    """A MSG or HMSG as received."""

    subject: str
    sid: str
    reply: str
    header: bytes
    payload: bytes

    @property
    def status(self) -> str:
        """The first line of the header block without its version: `503`, `404 Message Not Found`, or empty."""
        return self.header.split(b"\r\n", 1)[0][len(b"NATS/1.0") :].strip().decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.header.decode().split("\r\n")[1:]
        return {k: v.strip() for k, _, v in (line.partition(":") for line in lines if line)}

    @property
    def json(self) -> Any:
        return json.loads(self.payload)


def header_block(headers: Mapping[str, str]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"


class Wire:
    """A socket that reads complete protocol frames. It reads the initial INFO on connecting and keeps it as `info`."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", answer_pings: bool = True) -> None:
        self.socket: socket.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer_pings = answer_pings
        self._buffer = b""
        self.info: dict[str, Any] = self.read_info()

    def read_info(self) -> dict[str, Any]:
        line = self.frame()
        if not line.startswith(b"INFO "):
            raise AssertionError(f"expected INFO, got {line!r}")
        info: dict[str, Any] = json.loads(line[5:])
        return info

    def start_tls(self, context: ssl.SSLContext, name: str = "localhost") -> None:
        self.socket = context.wrap_socket(self.socket, server_hostname=name)

    def send(self, data: bytes) -> None:
        """Write everything; a closed connection is noticed when reading."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def frame(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the next frame, control line and payload with their line ends; `EOF` if the connection was closed."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._frame(deadline)
            if frame != b"PING\r\n" or not self.answer_pings:
                return frame
            self.send(b"PONG\r\n")

    def _frame(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not self._fill(deadline):
                return EOF if not self._buffer else self._take(len(self._buffer))
        size = end + 2
        if self._buffer.startswith((b"MSG ", b"HMSG ")):
            size += int(self._buffer[:end].split()[-1]) + 2
        while len(self._buffer) < size:
            if not self._fill(deadline):
                return self._take(len(self._buffer))
        return self._take(size)

    def _take(self, size: int) -> bytes:
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        return frame

    def _fill(self, deadline: float) -> bool:
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def receive(self, count: int, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the bytes of the next `count` frames; fewer if the connection closes or the timeout passes."""
        return b"".join(self.frames(count, timeout_s))

    def frames(self, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes]:
        frames: list[bytes] = []
        while len(frames) < count:
            try:
                frames.append(self.frame(timeout_s))
            except TimeoutError:
                break
            if frames[-1] == EOF:
                break
        return frames

    def expect(self, *expected: bytes) -> None:
        """Check that the next frames are exactly these."""
        received = self.frames(len(expected))
        assert received == list(expected)

    def expect_end(self, *expected: bytes) -> None:
        """Check for these frames, followed by the end of the connection."""
        self.expect(*expected, EOF)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(Wire):
    """A connected client: subscriptions, requests and JetStream API calls, one at a time."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", **connect: Any) -> None:
        super().__init__(port, host=host)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._sids = itertools.count(1)
        self._waiting: dict[str, deque[Message]] = {}
        self.errors: list[str] = []
        self.infos: list[dict[str, Any]] = []
        self.send(b"CONNECT " + json.dumps({**options, **connect}).encode() + b"\r\n")
        self._answers = self.subscribe(self.inbox + ".*")
        self._numbers = itertools.count(1)
        self.flush()
        while connect.get("protocol", 1) and not self.infos:
            self._step(TIMEOUT_S)

    def subscribe(self, subject: str, queue: str = "") -> str:
        sid = str(next(self._sids))
        self._waiting[sid] = deque()
        self.send(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: str, after: int = 0) -> None:
        self.send(f"UNSUB {sid} {after or ''}\r\n".encode())

    def publish(
        self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        if headers is None:
            line, block = f"PUB {subject} {reply} {len(payload)}\r\n", b""
        else:
            block = header_block(headers)
            line = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n"
        self.send(line.encode() + block + payload + b"\r\n")

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Return when the server has processed everything sent so far."""
        self.send(b"PING\r\n")
        while self._step(timeout_s) != b"PONG\r\n":
            pass

    def _step(self, timeout_s: float) -> bytes:
        frame = self.frame(timeout_s)
        if frame == EOF:
            raise ConnectionError(f"the server closed the connection; errors before: {self.errors}")
        if frame.startswith((b"MSG ", b"HMSG ")):
            message = parse_message(frame)
            self._waiting.setdefault(message.sid, deque()).append(message)
        elif frame.startswith(b"-ERR"):
            self.errors.append(frame[6:-3].decode())
        elif frame.startswith(b"INFO "):
            self.infos.append(json.loads(frame[5:]))
        return frame

    def next(self, sid: str, timeout_s: float = TIMEOUT_S) -> Message:
        """Return the next message of a subscription; raise TimeoutError if none arrives."""
        deadline = time.monotonic() + timeout_s
        queue = self._waiting.setdefault(sid, deque())
        while not queue:
            self._step(max(deadline - time.monotonic(), 0.001))
        return queue.popleft()

    def pending(self, sid: str) -> list[Message]:
        """Return the messages of a subscription that arrive before the reply to a PING."""
        self.flush()
        queue = self._waiting.setdefault(sid, deque())
        messages = list(queue)
        queue.clear()
        return messages

    def ask(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> str:
        """Send a request and return its inbox, for replies of several messages."""
        reply = f"{self.inbox}.{next(self._numbers)}"
        self.publish(subject, payload, headers, reply)
        return reply

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Message:
        """Return the reply; messages for earlier requests can still be read with `pending`."""
        reply = self.ask(subject, payload, headers)
        others: list[Message] = []
        while (message := self.next(self._answers, timeout_s)).subject != reply:
            others.append(message)
        self._waiting[self._answers].extendleft(reversed(others))
        return message

    def collect(self, subject: str, body: Any, headers: Mapping[str, str] | None = None) -> list[Message]:
        """Return all replies to a request, up to and including the first with a status."""
        self.ask(subject, encode(body), headers)
        answers: list[Message] = []
        while not answers or not answers[-1].status:
            answers.append(self.next(self._answers))
        return answers

    def api(
        self,
        operation: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """Call the JetStream API; return the JSON of the reply, which may be an error."""
        message = self.request(API + operation, encode(body), headers, timeout_s)
        assert not message.status, f"{operation}: status {message.status}"
        answer: dict[str, Any] = message.json
        return answer

    def store(
        self, subject: str, payload: bytes | str = b"", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Publish to a stream; return the JSON of the PubAck, which may be an error."""
        data = payload.encode() if isinstance(payload, str) else payload
        message = self.request(subject, data, headers)
        assert not message.status, f"{subject}: status {message.status}"
        ack: dict[str, Any] = message.json
        return ack

    def __enter__(self) -> Client:
        return self


def encode(body: Any) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def error_of(answer: Mapping[str, Any]) -> tuple[int, str]:
    """Return code and description of an API error; fail if there is none."""
    assert "error" in answer, answer
    return answer["error"]["err_code"], answer["error"]["description"]


def parse_message(frame: bytes) -> Message:
    line, _, rest = frame.partition(b"\r\n")
    words = line.decode().split()
    sizes = 2 if words[0] == "HMSG" else 1
    header_size = int(words[-2]) if sizes == 2 else 0
    reply = words[3] if len(words) == 4 + sizes else ""
    return Message(words[1], words[2], reply, rest[:header_size], rest[header_size:-2])
