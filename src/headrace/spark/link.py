"""A blocking connection to a NATS server, for Spark's driver and tasks.

Owns the socket, the greeting (TLS, authentication) and the framing of what arrives. Invariant: one thread uses a link,
and after an error it is closed. Messages stay bytes in the receive buffer, so that a block of thousands can become
columns without an object each. Must not know streams, Spark or Arrow.
"""

from __future__ import annotations

import atexit
import base64
import itertools
import json
import os
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

_CHUNK = 1 << 20
_SID = b"1"
#: Errors of the protocol have no codes; these are about what was sent, the others about the connection.
_FINAL = ("permissions violation", "maximum payload")
_CREDENTIALS = re.compile(r"-+BEGIN [^-\n]+-+\s+(\S+)\s+-+END [^-\n]+-+")
_VERBS = {b"PI": "ping", b"PO": "pong", b"IN": "info", b"+O": "ok", b"-E": "error"}


class Refused(HeadraceError):
    """The server does not allow what was sent; sending it again does not help."""


class LinkError(HeadraceError):
    """The server cannot be reached, refuses the connection, or went away."""


@dataclass(frozen=True)
class Address:
    """Where the servers are and who connects; picklable, hashable, and silent about secrets."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout_s: float = 5.0
    #: What a server shows of the connection; addresses of different names do not share one.
    name: str = ""

    @property
    def shown(self) -> str:
        """The servers, without what stands before an @."""
        return ", ".join(server.rpartition("@")[2].removeprefix("nats://") for server in self.servers)


class Frame(NamedTuple):
    """One message: its header block and payload."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class Link:
    """One connection. All answers come to inboxes below `inbox`, under one subscription."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.buffer = bytearray()
        # Kept, because a new piece of memory for each arrival costs more than copying out of an old one.
        self._arrival = memoryview(bytearray(_CHUNK))
        self._numbers = itertools.count(1)
        self.closed = False
        self._sock, self.info = _greet(address)
        self.inbox = b"_INBOX.%s" % base64.b32encode(os.urandom(10)).rstrip(b"=").lower()
        self.send(b"SUB %s.* %s\r\n" % (self.inbox, _SID))

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def send(self, data: bytes | bytearray) -> None:
        """Send it all; raises LinkError."""
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def new_inbox(self) -> bytes:
        """Where the answers to one request go."""
        return b"%s.%d" % (self.inbox, next(self._numbers))

    def request(self, subject: str, body: Any = None, *, timeout_s: float = 0.0) -> Frame:
        """Ask and wait for the first answer; `body` is JSON, or bytes as they are."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        reply = self.new_inbox()
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(payload), payload))
        return self.answer(reply, subject, timeout_s)

    def answer(self, reply: bytes, what: str, timeout_s: float = 0.0) -> Frame:
        """The next message on an inbox; others are dropped, as answers that nobody waits for any more."""
        for frame in self.frames(timeout_s or self.address.timeout_s, what):
            if frame.subject == reply:
                if frame.header[:12] == b"NATS/1.0 503":
                    raise LinkError(
                        f"nobody answers on {what}: is JetStream enabled on {self.address.shown}?"
                    )
                return frame
        raise AssertionError("frames end only by raising")

    def frames(self, timeout_s: float, what: str = "the server") -> Iterator[Frame]:
        """Messages as they arrive; LinkError when none comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self._take()
            if frame is not None:
                yield frame
                deadline = time.monotonic() + timeout_s
            else:
                self.receive(deadline, what)

    def receive(self, deadline: float, what: str) -> None:
        """More bytes into the buffer."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise LinkError(f"no answer to {what} within the timeout; is {self.address.shown} alive?")
        self._sock.settimeout(left)
        try:
            count = self._sock.recv_into(self._arrival)
        except TimeoutError:
            return
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            raise self._lost(None)
        self.buffer += self._arrival[:count]

    def service(self, at: int) -> int:
        """Deal with the control line at `at` of the buffer; where the next one begins, or -1 if it is not whole."""
        end = self.buffer.find(b"\r\n", at)
        if end < 0:
            return -1
        verb = _VERBS.get(bytes(self.buffer[at : at + 2]))
        if verb == "ping":
            self.send(b"PONG\r\n")
        elif verb == "error":
            text = self.buffer[at + 5 : end].decode(errors="replace")
            final = any(word in text.lower() for word in _FINAL)
            raise (Refused if final else LinkError)(f"{self.address.shown} says {text}")
        elif verb is None:
            raise LinkError(f"{self.address.shown} speaks no NATS: {bytes(self.buffer[at:end])[:80]!r}")
        return end + 2

    def _take(self) -> Frame | None:
        buffer = self.buffer
        while buffer and buffer[0] not in b"MH":
            rest = self.service(0)
            if rest < 0:
                return None
            del buffer[:rest]
        end = buffer.find(b"\r\n")
        if end < 0:
            return None
        words = bytes(buffer[:end]).split(b" ")
        headed = words[0] == b"HMSG"
        total = int(words[-1])
        stop = end + 2 + total
        if len(buffer) < stop + 2:
            return None
        header_length = int(words[-2]) if headed else 0
        body = bytes(buffer[end + 2 : stop])
        del buffer[: stop + 2]
        reply = words[3] if len(words) - headed == 5 else b""
        return Frame(words[1], reply, body[:header_length], body[header_length:])

    def _lost(self, error: OSError | None) -> LinkError:
        self.close()
        why = error or "it closed the connection"
        return LinkError(f"the connection to {self.address.shown} is lost: {why}")


def _greet(address: Address) -> tuple[socket.socket, dict[str, Any]]:
    """The first server that takes us."""
    failures: list[str] = []
    for server in address.servers:
        try:
            return _connect(address, server)
        except OSError as error:
            failures.append(f"{server.rpartition('@')[2].removeprefix('nats://')}: {error.strerror or error}")
    raise LinkError(f"no server can be reached ({'; '.join(failures)}); check option `servers`")


def _connect(address: Address, server: str) -> tuple[socket.socket, dict[str, Any]]:
    url = urlsplit(server if "://" in server else f"nats://{server}")
    host = url.hostname or "127.0.0.1"
    sock = socket.create_connection((host, url.port or 4222), address.timeout_s)
    try:
        sock.settimeout(address.timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info = json.loads(_line(sock)[5:])
        if info.get("tls_required") or url.scheme == "tls":
            sock = _tls(address).wrap_socket(sock, server_hostname=host)
        word = json.dumps(_introduction(address, url.username, url.password, info)).encode()
        sock.sendall(b"CONNECT %s\r\nPING\r\n" % word)
        _await_pong(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock, info


def _line(sock: socket.socket) -> bytes:
    """One line, byte by byte: what follows may be a TLS handshake."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the connection was closed at once")
        line += byte
    return bytes(line)


def _await_pong(sock: socket.socket, address: Address) -> None:
    while True:
        line = _line(sock)
        if line.startswith(b"-ERR"):
            raise LinkError(f"{address.shown} refuses: {line[5:].decode().strip()}")
        if line.startswith(b"PONG"):
            return


def _tls(address: Address) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.tls_ca or None)
    if address.tls_cert:
        context.load_cert_chain(address.tls_cert, address.tls_key or None)
    return context


def _introduction(
    address: Address, user: str | None, password: str | None, info: dict[str, Any]
) -> dict[str, Any]:
    words: dict[str, Any] = {
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
        words |= _signed(address.creds, str(info.get("nonce", "")))
    elif address.token or (user and password is None):
        words["auth_token"] = address.token or unquote(user or "")
    elif address.user or user:
        words["user"] = address.user or unquote(user or "")
        words["pass"] = address.password or unquote(password or "")
    return words


def _signed(path: str, nonce: str) -> dict[str, str]:
    """What a credentials file proves: its JWT, and the nonce signed with its seed."""
    try:
        import nkeys  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise LinkError("option `creds` needs the package nkeys: pip install nkeys") from error
    found = _CREDENTIALS.findall(Path(path).read_text())
    if len(found) != 2:
        raise LinkError(f"{path} is no file of credentials: it should hold a JWT and the seed of a key")
    jwt, seed = found
    try:
        signature = nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode())
    except nkeys.NkeysError as error:
        raise LinkError(f"{path} is no file of credentials: {error}") from error
    return {"jwt": jwt, "sig": base64.urlsafe_b64encode(signature).rstrip(b"=").decode()}


_links: dict[tuple[int, Address], Link] = {}


def shared_link(address: Address) -> Link:
    """This process's link to an address; Spark reuses its workers, so connections are worth keeping."""
    key = (os.getpid(), address)
    link = _links.get(key)
    if link is None or link.closed:
        link = _links[key] = Link(address)
    return link


def drop_link(address: Address) -> None:
    """Close it: after an error nobody knows what is still on its way."""
    link = _links.pop((os.getpid(), address), None)
    if link is not None:
        link.close()


@atexit.register
def close_links() -> None:
    """End this process's links; a forked child leaves its parent's alone."""
    for (pid, _), link in list(_links.items()):
        if pid == os.getpid():
            link.close()
    _links.clear()


def servers_of(text: str) -> Sequence[str]:
    """Addresses separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
