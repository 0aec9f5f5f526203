"""A blocking connection to a NATS server, for Spark's driver and tasks.

Owns the socket, the handshake (TLS, authentication) and the framing of received data. Invariant: one thread uses a
connection, and after an error the connection is closed. Messages stay bytes in the receive buffer, so that thousands of
them can become columns without creating an object for each. Must not know streams, Spark or Arrow.
"""

from __future__ import annotations

import atexit
import base64
import itertools
import json
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from headrace.errors import HeadraceError

_RECV_BYTES = 1 << 20
_SID = b"1"
#: Protocol errors have no codes; these concern what was sent, all others the connection.
_NOT_RETRYABLE = ("permissions violation", "maximum payload")
_CREDENTIALS = re.compile(r"-+BEGIN [^-\n]+-+\s+(\S+)\s+-+END [^-\n]+-+")
_CONTROL_LINES = {b"PI": "ping", b"PO": "pong", b"IN": "info", b"+O": "ok", b"-E": "error"}


class ServerRejected(HeadraceError):
    """The server does not allow what was sent; retrying does not help."""


class ConnectionFailed(HeadraceError):
    """The server cannot be reached, refuses the connection, or closed it."""


@dataclass(frozen=True)
class ServerAddress:
    """Addresses of the servers and credentials; picklable, hashable, and without secrets in its repr."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    #: A credentials file, or its text.
    creds: str = field(default="", repr=False)
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout_s: float = 5.0
    #: The connection's name as the server shows it; addresses with different names do not share a connection.
    name: str = ""

    @property
    def redacted_servers(self) -> str:
        """The servers, without credentials before an @."""
        return ", ".join(server.rpartition("@")[2].removeprefix("nats://") for server in self.servers)


class Msg(NamedTuple):
    """One message: its header block and payload."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class BlockingConnection:
    """One connection. All replies arrive at inboxes below `inbox_prefix`, under one subscription."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.buffer = bytearray()
        # Reused, because a new allocation for each receive costs more than copying out of an old one.
        self._recv_chunk = memoryview(bytearray(_RECV_BYTES))
        self._inbox_numbers = itertools.count(1)
        self.closed = False
        self._sock, self.server_info = _connect_any(address)
        self.inbox_prefix = b"_INBOX.%s" % base64.b32encode(os.urandom(10)).rstrip(b"=").lower()
        self.send(b"SUB %s.* %s\r\n" % (self.inbox_prefix, _SID))

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def send(self, data: bytes | bytearray) -> None:
        """Send all bytes; raises ConnectionFailed."""
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._make_lost_error(error) from error

    def new_inbox(self) -> bytes:
        """Return the reply subject for one request."""
        return b"%s.%d" % (self.inbox_prefix, next(self._inbox_numbers))

    def request(self, subject: str, body: Any = None, *, timeout_s: float = 0.0) -> Msg:
        """Send a request and wait for the first reply; `body` is JSON, or bytes as they are."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        reply = self.new_inbox()
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(payload), payload))
        return self.receive_reply(reply, subject, timeout_s)

    def receive_reply(self, reply: bytes, operation: str, timeout_s: float = 0.0) -> Msg:
        """Return the next message on an inbox; drop others, which are replies to requests that were given up."""
        for message in self.iter_messages(timeout_s or self.address.timeout_s, operation):
            if message.subject == reply:
                if message.header[:12] == b"NATS/1.0 503":
                    raise ConnectionFailed(
                        f"no responders on {operation}; check that JetStream is enabled on {self.address.redacted_servers}"
                    )
                return message
        raise AssertionError("iter_messages never ends")

    def iter_messages(self, timeout_s: float, operation: str = "the server") -> Iterator[Msg]:
        """Yield messages as they arrive; raise ConnectionFailed if none arrives in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._parse_message()
            if message is not None:
                yield message
                deadline = time.monotonic() + timeout_s
            else:
                self.fill_buffer(deadline, operation)

    def fill_buffer(self, deadline: float, operation: str) -> None:
        """Receive more bytes into the buffer."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise ConnectionFailed(
                f"no reply to {operation} within the timeout; check that {self.address.redacted_servers} is running"
            )
        self._sock.settimeout(remaining_s)
        try:
            count = self._sock.recv_into(self._recv_chunk)
        except TimeoutError:
            return
        except OSError as error:
            raise self._make_lost_error(error) from error
        if not count:
            raise self._make_lost_error(None)
        self.buffer += self._recv_chunk[:count]

    def handle_control_line(self, offset: int) -> int:
        """Handle the control line at `offset` of the buffer.

        Returns where the next one begins, or -1 if it is incomplete.
        """
        end = self.buffer.find(b"\r\n", offset)
        if end < 0:
            return -1
        verb = _CONTROL_LINES.get(bytes(self.buffer[offset : offset + 2]))
        if verb == "ping":
            self.send(b"PONG\r\n")
        elif verb == "error":
            text = self.buffer[offset + 5 : end].decode(errors="replace")
            is_final = any(word in text.lower() for word in _NOT_RETRYABLE)
            raise (ServerRejected if is_final else ConnectionFailed)(
                f"{self.address.redacted_servers} sent an error: {text}"
            )
        elif verb is None:
            raise ConnectionFailed(
                f"{self.address.redacted_servers} is not a NATS server; it sent {bytes(self.buffer[offset:end])[:80]!r}"
            )
        return end + 2

    def _parse_message(self) -> Msg | None:
        buffer = self.buffer
        while buffer and buffer[0] not in b"MH":
            rest = self.handle_control_line(0)
            if rest < 0:
                return None
            del buffer[:rest]
        end = buffer.find(b"\r\n")
        if end < 0:
            return None
        fields = bytes(buffer[:end]).split(b" ")
        has_header = fields[0] == b"HMSG"
        total = int(fields[-1])
        stop = end + 2 + total
        if len(buffer) < stop + 2:
            return None
        header_length = int(fields[-2]) if has_header else 0
        body = bytes(buffer[end + 2 : stop])
        del buffer[: stop + 2]
        reply = fields[3] if len(fields) - has_header == 5 else b""
        return Msg(fields[1], reply, body[:header_length], body[header_length:])

    def _make_lost_error(self, error: OSError | None) -> ConnectionFailed:
        self.close()
        reason = error or "the server closed it"
        return ConnectionFailed(f"lost the connection to {self.address.redacted_servers}: {reason}")


def _connect_any(address: ServerAddress) -> tuple[socket.socket, dict[str, Any]]:
    """Connect to a server that accepts the connection; in random order, so that many tasks use all of them."""
    failures: list[str] = []
    for server in random.sample(address.servers, len(address.servers)):
        try:
            return _connect(address, server)
        except OSError as error:
            failures.append(f"{server.rpartition('@')[2].removeprefix('nats://')}: {error.strerror or error}")
    raise ConnectionFailed(f"no server can be reached ({'; '.join(failures)}); check option `servers`")


def _connect(address: ServerAddress, server: str) -> tuple[socket.socket, dict[str, Any]]:
    url = urlsplit(server if "://" in server else f"nats://{server}")
    host = url.hostname or "127.0.0.1"
    sock = socket.create_connection((host, url.port or 4222), address.timeout_s)
    try:
        sock.settimeout(address.timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info = json.loads(_read_line(sock)[5:])
        if info.get("tls_required") or url.scheme == "tls":
            sock = _make_tls_context(address).wrap_socket(sock, server_hostname=host)
        word = json.dumps(_connect_options(address, url.username, url.password, info)).encode()
        sock.sendall(b"CONNECT %s\r\nPING\r\n" % word)
        _await_pong(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock, info


def _read_line(sock: socket.socket) -> bytes:
    """Read one line, byte by byte: a TLS handshake may follow."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the server closed the connection during the handshake")
        line += byte
    return bytes(line)


def _await_pong(sock: socket.socket, address: ServerAddress) -> None:
    while True:
        line = _read_line(sock)
        if line.startswith(b"-ERR"):
            raise ConnectionFailed(
                f"{address.redacted_servers} rejected the connection: {line[5:].decode().strip()}"
            )
        if line.startswith(b"PONG"):
            return


def _make_tls_context(address: ServerAddress) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.tls_ca or None)
    if address.tls_cert:
        context.load_cert_chain(address.tls_cert, address.tls_key or None)
    return context


def _connect_options(
    address: ServerAddress, user: str | None, password: str | None, info: dict[str, Any]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "lang": "python-spark",
        "version": "1",
        "protocol": 1,
        **({"name": address.name} if address.name else {}),
    }
    if address.creds:
        fields |= _sign_nonce(address.creds, str(info.get("nonce", "")))
    elif address.token or (user and password is None):
        fields["auth_token"] = address.token or unquote(user or "")
    elif address.user or user:
        fields["user"] = address.user or unquote(user or "")
        fields["pass"] = address.password or unquote(password or "")
    return fields


def _sign_nonce(creds: str, nonce: str) -> dict[str, str]:
    """Return the JWT of a credentials file or its text, and the nonce signed with its seed."""
    try:
        import nkeys  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ConnectionFailed("option `creds` needs the package nkeys: pip install nkeys") from error
    is_text = "-BEGIN " in creds
    shown = "the text in option `creds`" if is_text else creds
    sections = _CREDENTIALS.findall(creds if is_text else Path(creds).read_text())
    if len(sections) != 2:
        raise ConnectionFailed(f"{shown} is not a credentials file: it must contain a JWT and an NKey seed")
    jwt, seed = sections
    try:
        signature = nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode())
    except nkeys.NkeysError as error:
        raise ConnectionFailed(f"{shown} is not a valid credentials file: {error}") from error
    return {"jwt": jwt, "sig": base64.urlsafe_b64encode(signature).rstrip(b"=").decode()}


_connections: dict[tuple[int, ServerAddress], BlockingConnection] = {}


def connection_for(address: ServerAddress) -> BlockingConnection:
    """Return this process's connection to an address; Spark reuses its workers, so connections are cached."""
    key = (os.getpid(), address)
    connection = _connections.get(key)
    if connection is None or connection.closed:
        connection = _connections[key] = BlockingConnection(address)
    return connection


def drop_connection(address: ServerAddress) -> None:
    """Close the connection: after an error it is unknown which replies are still in transit."""
    connection = _connections.pop((os.getpid(), address), None)
    if connection is not None:
        connection.close()


@atexit.register
def close_connections() -> None:
    """Close this process's connections; a forked child leaves its parent's alone."""
    for (pid, _), connection in list(_connections.items()):
        if pid == os.getpid():
            connection.close()
    _connections.clear()


def parse_servers(text: str) -> Sequence[str]:
    """Split addresses at commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
