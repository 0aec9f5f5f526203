"""A client of a simulated server, with a connection that can be slow, torn at any byte, or not read from.

Owns the bytes on the way and what the client makes of them. The bytes are those of the real protocol and the session is
the real one. Nothing moves by itself: `step` moves some bytes, one way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from headrace.broker import Limits, Session
from headrace.broker.permissions import Permissions
from headrace.errors import ProtocolError
from headrace.kernel import Parser
from headrace.protocol import headers
from headrace.sim.broker import SimBroker

_CONNECT = b'CONNECT {"headers":true,"no_responders":true,"verbose":false,"protocol":1}\r\n'


class Arrival(NamedTuple):
    """A message as the client got it."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


Handler = Callable[[Arrival], None]
#: What a client that does not read leaves on the way before its server notices.
BUFFER_BYTES = 2_000


class Who(NamedTuple):
    """Who a connection speaks for; `denied` says, without the server's rules, where it must not publish."""

    user: str
    account: str
    permissions: Permissions | None
    denied: Callable[[str], bool]


ANYBODY = Who("", "$G", None, lambda subject: False)


class SimClient:
    """One connection. What arrives on a subject goes to its handler; an answer to a request only once."""

    client_ip = "sim"

    def __init__(self, broker: SimBroker, cid: int, rng: Random, who: Who = ANYBODY) -> None:
        self.cid = cid
        self.who = who
        self.broker = broker
        self.open = True
        self.stalled = False
        self.pushed = False  # it listens to a push consumer
        self.complaints: list[bytes] = []
        self.heard: list[bytes] = []
        self._rng = rng
        self._requested: dict[bytes, Handler] = {}
        self._listeners: dict[bytes, Handler] = {}
        self._requests = 0
        self._out = bytearray()
        self._in = bytearray()
        self._inbox = b"_C.%d." % cid
        self.session = Session(broker.hub, self, cid, Limits(), False)
        self._parser = Parser(self.session)
        self._sids = 1
        self._out += _CONNECT + b"SUB %b* 1\r\n" % self._inbox

    @property
    def guest(self) -> bool:
        """Whether it may not do everything."""
        return self.who.permissions is not None

    # What the session asks of its owner

    def now_ns(self) -> int:
        return self.broker.clock.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> Who:
        return self.who

    def connected(self) -> None:
        """Nothing to do."""

    def info(self) -> bytes:
        return b""

    def flush(self) -> None:
        """What is to be sent is taken when the simulation moves it."""

    # The client's own acts

    def publish(
        self, subject: str, payload: bytes = b"", header: Mapping[str, str] | None = None, reply: bytes = b""
    ) -> None:
        """Put a message on the way."""
        pairs = [(name.encode(), value.encode()) for name, value in (header or {}).items()]
        block = headers.build(pairs) if pairs else b""
        verb, sizes = (b"HPUB", b"%d " % len(block)) if block else (b"PUB", b"")
        sizes += b"%d" % (len(block) + len(payload))
        self._out += b"%b %b %b %b\r\n%b%b\r\n" % (verb, subject.encode(), reply, sizes, block, payload)

    def request(
        self, subject: str, payload: bytes, answered: Handler, header: Mapping[str, str] | None = None
    ) -> None:
        """Publish, and hear the first answer; to what is not allowed there is none."""
        self._requests += 1
        reply = self._inbox + b"%d" % self._requests
        if not self.who.denied(subject):
            self._requested[reply] = answered
        self.publish(subject, payload, header, reply)

    def listen(self, handler: Handler, subject: bytes = b"", queue: bytes = b"") -> bytes:
        """Hear everything on the given subject, or on one of its own; the subject."""
        self._sids += 1
        subject = subject or b"_L.%d.%d" % (self.cid, self._sids)
        self._out += b"SUB %b %b %d\r\n" % (subject, queue, self._sids)
        self._listeners[b"%d" % self._sids] = handler
        return subject

    # The way between

    @property
    def waiting(self) -> int:
        """How many requests are not answered."""
        return len(self._requested)

    def step(self) -> bool:
        """Some bytes arrive, on one side or the other; False when nothing is on the way."""
        session = self.session
        if session.dirty:
            self._collect(session)
        readable = self._in and not self.stalled
        if self._out:
            if readable and self._rng.random() < 0.5:
                self._take(self._share(len(self._in)))
            else:
                self._arrive(self._share(len(self._out)))
            return True
        if readable:
            self._take(self._share(len(self._in)))
            return True
        return False

    def _share(self, size: int) -> int:
        """How many of so many bytes move: all, or any number."""
        luck = self._rng.random()
        return size if luck < 0.5 else int((luck - 0.5) * 2 * size) + 1

    def _collect(self, session: Session) -> None:
        """Put what the server has to say on the way; a client that does not read takes only so much."""
        if self.stalled and len(self._in) > BUFFER_BYTES:
            session.blocked = True
            return
        session.hub.dirty.remove(session)
        self._in += session.take()
        if session.blocked:
            session.drained()

    def _arrive(self, size: int) -> None:
        """Bytes of the client arrive at the server."""
        data = bytes(self._out[:size])
        del self._out[:size]
        try:
            self._parser.feed(data)
        except ProtocolError:
            self.cut()

    def _take(self, size: int) -> None:
        """The client reads: messages that are whole within the next bytes reach their handlers."""
        at = 0
        arrivals: list[tuple[Handler | None, Arrival]] = []
        while 0 <= (end := self._in.find(b"\r\n", at)) < size:
            words = bytes(self._in[at:end]).split()
            total = int(words[-1]) + 2 if words[0] in (b"MSG", b"HMSG") else 0
            if end + 2 + total > size:
                break
            if total:
                arrivals.append(self._parse(words, bytes(self._in[end + 2 : end + total])))
            elif words[0] == b"-ERR":
                self.complaints.append(bytes(self._in[at:end]))
            at = end + 2 + total
        del self._in[:at]
        for handler, arrival in arrivals:
            if handler is not None:
                handler(arrival)

    def _parse(self, words: list[bytes], body: bytes) -> tuple[Handler | None, Arrival]:
        has_header = words[0] == b"HMSG"
        reply = words[3] if len(words) == 5 + has_header else b""
        size = int(words[-2]) if has_header else 0
        arrival = Arrival(words[1], reply, body[:size], body[size:])
        own = words[2] == b"1"
        return self._requested.pop(words[1], None) if own else self._listeners.get(words[2]), arrival

    def cut(self) -> None:
        """The connection breaks: a part of what is on the way arrives, the rest never does."""
        if not self.open:
            return
        self.open = False
        part = bytes(self._out[: self._rng.randrange(len(self._out) + 1)])
        with suppress(ProtocolError):
            self._parser.feed(part)
        self.session.close()
        if self.session in self.session.hub.dirty:
            self.session.hub.dirty.remove(self.session)
