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


class _Anybody:
    user, account, permissions = "", "$G", None


class SimClient:
    """One connection. What arrives on a subject goes to its handler; an answer to a request only once."""

    client_ip = "sim"

    def __init__(self, broker: SimBroker, cid: int, rng: Random) -> None:
        self.cid = cid
        self.broker = broker
        self.open = True
        self.stalled = False
        self.pushed = False  # it listens to a push consumer
        self.complaints: list[bytes] = []
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

    # What the session asks of its owner

    def now_ns(self) -> int:
        return self.broker.clock.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> _Anybody:
        return _Anybody()

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
        """Publish, and hear the first answer."""
        self._requests += 1
        reply = self._inbox + b"%d" % self._requests
        self._requested[reply] = answered
        self.publish(subject, payload, header, reply)

    def listen(self, handler: Handler, subject: bytes = b"") -> bytes:
        """Hear everything on the given subject, or on one of its own; the subject."""
        self._sids += 1
        subject = subject or b"_L.%d.%d" % (self.cid, self._sids)
        self._out += b"SUB %b %d\r\n" % (subject, self._sids)
        self._listeners[b"%d" % self._sids] = handler
        return subject

    # The way between

    @property
    def waiting(self) -> int:
        """How many requests are not answered."""
        return len(self._requested)

    def step(self) -> bool:
        """Some bytes arrive, on one side or the other; False when nothing is on the way."""
        if not self.open:
            return False
        ways = [way for way in (self._arrive, self._read) if way(0)]
        if not ways:
            return False
        self._rng.choice(ways)(1)
        return True

    def _arrive(self, most: int) -> bool:
        """Bytes of the client arrive at the server."""
        if not self._out or not most:
            return bool(self._out)
        size = self._rng.randrange(1, len(self._out) + 1)
        data = bytes(self._out[:size])
        del self._out[:size]
        try:
            self._parser.feed(data)
        except ProtocolError:
            self.cut()
        return True

    def _read(self, most: int) -> bool:
        """Bytes of the server arrive at the client."""
        dirty = self.session.hub.dirty
        if self.session in dirty:
            dirty.remove(self.session)
        self._in += self.session.take()
        if self.stalled or not self._in:
            return False
        if most:
            self._take(self._rng.randrange(1, len(self._in) + 1))
        return True

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
