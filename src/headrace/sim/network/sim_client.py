"""Client of a simulated server, with a connection that can be slow, cut at any byte, or not read from.

Owns the bytes in transit and their interpretation by the client. The bytes are those of the real protocol and the
session is the real one. Nothing moves by itself: `step` moves some bytes in one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from headrace._native import Parser
from headrace.broker import Session, SessionLimits
from headrace.broker.routing.permissions import Permissions
from headrace.errors import ProtocolError
from headrace.protocol import headers
from headrace.sim.sim_broker import SimBroker

_CONNECT = b'CONNECT {"headers":true,"no_responders":true,"verbose":false,"protocol":1}\r\n'


class ReceivedMsg(NamedTuple):
    """A message as received by the client."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


MsgHandler = Callable[[ReceivedMsg], None]
#: Unread bytes in transit after which a server notices that a client does not read.
STALLED_BUFFER_BYTES = 2_000


class SimIdentity(NamedTuple):
    """Identity of a connection.

    `is_publish_denied` decides, independently of the server's rules, where it must not publish.
    """

    user: str
    account: str
    permissions: Permissions | None
    is_publish_denied: Callable[[str], bool]


ANONYMOUS = SimIdentity("", "$G", None, lambda subject: False)


class SimClient:
    """One connection. Messages on a subject go to its handler; a request's handler gets only the first reply."""

    client_ip = "sim"

    def __init__(self, broker: SimBroker, cid: int, rng: Random, identity: SimIdentity = ANONYMOUS) -> None:
        self.cid = cid
        self.identity = identity
        self.broker = broker
        self.open = True
        self.stalled = False
        self.receives_push = False  # it receives the push consumer's messages
        self.errors: list[bytes] = []
        self.received: list[bytes] = []
        self._rng = rng
        self._reply_handlers: dict[bytes, MsgHandler | None] = {}
        self._subscriptions: dict[bytes, MsgHandler] = {}
        self._request_count = 0
        self._to_server = bytearray()
        self._to_client = bytearray()
        self._inbox = b"_C.%d." % cid
        self.session = Session(broker.router, self, cid, SessionLimits(), False)
        self._parser = Parser(self.session)
        self._sids = 1
        self._to_server += _CONNECT + b"SUB %b* 1\r\n" % self._inbox

    @property
    def is_restricted(self) -> bool:
        """Whether it has restricted permissions."""
        return self.identity.permissions is not None

    # Interface for the session

    def now_ns(self) -> int:
        return self.broker.clock.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> SimIdentity:
        return self.identity

    def on_connected(self) -> None:
        """Do nothing."""

    def info(self) -> bytes:
        return b""

    def flush(self) -> None:
        """Do nothing: the simulation collects the output when it moves bytes."""

    # Client operations

    def publish(
        self, subject: str, payload: bytes = b"", header: Mapping[str, str] | None = None, reply: bytes = b""
    ) -> None:
        """Send a message."""
        pairs = [(name.encode(), value.encode()) for name, value in (header or {}).items()]
        header_block = headers.build(pairs) if pairs else b""
        verb, sizes = (b"HPUB", b"%d " % len(header_block)) if header_block else (b"PUB", b"")
        sizes += b"%d" % (len(header_block) + len(payload))
        self._to_server += b"%b %b %b %b\r\n%b%b\r\n" % (
            verb,
            subject.encode(),
            reply,
            sizes,
            header_block,
            payload,
        )

    def request(
        self,
        subject: str,
        payload: bytes,
        on_reply: MsgHandler | None = None,
        header: Mapping[str, str] | None = None,
    ) -> None:
        """Publish, and handle the first reply; a denied request gets none."""
        self._request_count += 1
        reply = self._inbox + b"%d" % self._request_count
        if not self.identity.is_publish_denied(subject):
            self._reply_handlers[reply] = on_reply
        self.publish(subject, payload, header, reply)

    def subscribe(self, handler: MsgHandler, subject: bytes = b"", queue: bytes = b"") -> bytes:
        """Subscribe to the given subject, or to a new one; return the subject."""
        self._sids += 1
        subject = subject or b"_L.%d.%d" % (self.cid, self._sids)
        self._to_server += b"SUB %b %b %d\r\n" % (subject, queue, self._sids)
        self._subscriptions[b"%d" % self._sids] = handler
        return subject

    # Transport

    @property
    def pending_requests(self) -> int:
        """Number of requests without a reply."""
        return len(self._reply_handlers)

    def step(self) -> bool:
        """Move some bytes in one direction; return False if nothing is in transit."""
        session = self.session
        if session.dirty:
            self._collect_output(session)
        readable = self._to_client and not self.stalled
        if self._to_server:
            if readable and self._rng.random() < 0.5:
                self._read(self._pick_size(len(self._to_client)))
            else:
                self._deliver_to_server(self._pick_size(len(self._to_server)))
            return True
        if readable:
            self._read(self._pick_size(len(self._to_client)))
            return True
        return False

    def _pick_size(self, size: int) -> int:
        """Return how many of `size` bytes move: all, or any number."""
        roll = self._rng.random()
        return size if roll < 0.5 else int((roll - 0.5) * 2 * size) + 1

    def _collect_output(self, session: Session) -> None:
        """Put the server's output in transit; a client that does not read accepts only a limited amount."""
        if self.stalled and len(self._to_client) > STALLED_BUFFER_BYTES:
            session.blocked = True
            return
        session.router.dirty.remove(session)
        self._to_client += session.drain()
        if session.blocked:
            session.notify_writable()

    def _deliver_to_server(self, size: int) -> None:
        """Deliver the client's bytes to the server."""
        data = bytes(self._to_server[:size])
        del self._to_server[:size]
        try:
            self._parser.feed(data)
        except ProtocolError:
            self.disconnect()

    def _read(self, size: int) -> None:
        """Let the client read: messages that are complete in the next bytes reach their handlers."""
        at = 0
        msgs: list[tuple[MsgHandler | None, ReceivedMsg]] = []
        while 0 <= (end := self._to_client.find(b"\r\n", at)) < size:
            args = bytes(self._to_client[at:end]).split()
            total = int(args[-1]) + 2 if args[0] in (b"MSG", b"HMSG") else 0
            if end + 2 + total > size:
                break
            if total:
                msgs.append(self._parse_msg(args, bytes(self._to_client[end + 2 : end + total])))
            elif args[0] == b"-ERR":
                self.errors.append(bytes(self._to_client[at:end]))
            at = end + 2 + total
        del self._to_client[:at]
        for handler, msg in msgs:
            if handler is not None:
                handler(msg)

    def _parse_msg(self, args: list[bytes], body: bytes) -> tuple[MsgHandler | None, ReceivedMsg]:
        has_header = args[0] == b"HMSG"
        reply = args[3] if len(args) == 5 + has_header else b""
        size = int(args[-2]) if has_header else 0
        msg = ReceivedMsg(args[1], reply, body[:size], body[size:])
        is_reply = args[2] == b"1"
        return self._reply_handlers.pop(args[1], None) if is_reply else self._subscriptions.get(args[2]), msg

    def disconnect(self) -> None:
        """Break the connection: part of the bytes in transit arrives, the rest never does."""
        if not self.open:
            return
        self.open = False
        part = bytes(self._to_server[: self._rng.randrange(len(self._to_server) + 1)])
        with suppress(ProtocolError):
            self._parser.feed(part)
        self.session.close()
        if self.session in self.session.router.dirty:
            self.session.router.dirty.remove(self.session)
