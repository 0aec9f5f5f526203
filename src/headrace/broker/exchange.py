"""What passes between accounts: streams that one shows another, services that one asks of another.

Owns the passages, and the way back of answers; who may have what is in `exports`.
An import is a passage in the router of the account where messages come from; nothing else of one account is ever
seen in another. Knows no sockets and no files.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.entries import Crossing, Passage
from headrace.broker.exports import Export, Import, check_import, inward, outward, starred
from headrace.broker.router import Hub
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.accounts import Account, Accounts
    from headrace.broker.timers import Handle, Timers

REQUEST_INFO = b"Nats-Request-Info"
_ACK = b"$JS.ACK."
_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME_SIZE = 6
_REPLY_SIZE = 8
_INFO_LINE = re.compile(rb"(?im)^nats-request-info[ \t]*:.*\r\n")


# Streams


class StreamPassage(Passage):
    """Stands in the exporter's router; what matches is published in the importer's."""

    __slots__ = ("_change", "_far", "_local", "_near", "_subject")

    def __init__(self, near: Hub, far: Hub, wanted: Import) -> None:
        self._near, self._far = near, far
        self._subject, self._local = wanted.subject, starred(wanted.local)
        self._change = outward(wanted.subject, wanted.local)

    def open(self) -> None:
        self._near.subscribe_internal(self._subject, self)
        self._far.observe(self._heard)

    def close(self) -> None:
        self._near.unsubscribe_internal(self._subject, self)
        self._far.unobserve(self._heard)

    def _heard(self, pattern: bytes) -> None:
        """Interest on the importer's side is interest here."""
        if subjects.collides(pattern, self._local):
            self._near.tell(self._subject)

    def at(self, subject: bytes) -> Crossing:
        return StreamCrossing(self._far, subject, self._change(subject))


class StreamCrossing(Crossing):
    __slots__ = ("_here", "_hub", "_there")

    def __init__(self, hub: Hub, here: bytes, there: bytes) -> None:
        self._hub, self._here, self._there = hub, here, there

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        if subject == self._here:
            return self._hub.publish(self._there, reply, header, payload)
        return self._hub.deliver(self._there, subject, reply, header, payload)

    def wants(self, queue: bytes | None) -> bool:
        return self._hub.interest(self._there, queue)


# Services


class Expected(Crossing):
    """An answer that is expected in one account and belongs to a requester in another."""

    __slots__ = ("_back", "_desk", "_home", "_lasting", "_reply", "deadline_ns", "patience_ns", "subject")

    def __init__(
        self, desk: Desk, home: Hub, back: Desk, reply: bytes, lasting: bool, patience_ns: int
    ) -> None:
        self._desk, self._home, self._back = desk, home, back
        self._reply = reply
        self._lasting = lasting
        self.patience_ns = patience_ns
        self.deadline_ns = 0
        self.subject = desk.new_subject()
        home.subscribe_internal(self.subject, self)

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        back = self._back
        onward = back.expect_for(self._desk, reply, lasting=False, patience_ns=self.patience_ns)
        if subject == self.subject:
            received = back.hub.publish(self._reply, onward, header, payload)
        else:
            received = back.hub.deliver(self._reply, subject, onward, header, payload)
        if not received or not self._lasting or not (header or payload):
            self._desk.done(self)
            if not received:
                back.give_up(onward)
        else:
            self._desk.refresh(self)
        return received

    def wants(self, queue: bytes | None) -> bool:
        return self._back.hub.interest(self._reply, queue)

    def close(self) -> None:
        self._home.unsubscribe_internal(self.subject, self)


class Desk:
    """Where one account keeps what it owes others: answers that are under way."""

    def __init__(self, hub: Hub, timers: Timers) -> None:
        self.hub = hub
        self._timers = timers
        self._prefix = b"_R_." + _random_name(_NAME_SIZE) + b"."
        self._expected: dict[bytes, Expected] = {}
        self._sweep: Handle | None = None

    def __len__(self) -> int:
        return len(self._expected)

    def new_subject(self) -> bytes:
        return self._prefix + _random_name(_REPLY_SIZE)

    def expect_for(self, back: Desk, reply: bytes, *, lasting: bool, patience_ns: int) -> bytes:
        """The reply subject to show here so that the answer finds its way to `reply` over there."""
        if not reply or reply.startswith(_ACK):
            return reply
        expected = Expected(self, self.hub, back, reply, lasting, patience_ns)
        self._expected[expected.subject] = expected
        expected.deadline_ns = self._timers.now_ns() + patience_ns
        if self._sweep is None:
            self._sweep = self._timers.after(patience_ns, self._sweep_up)
        return expected.subject

    def refresh(self, expected: Expected) -> None:
        """More may come: wait on."""
        expected.deadline_ns = self._timers.now_ns() + expected.patience_ns

    def done(self, expected: Expected) -> None:
        """Nothing more is expected."""
        if self._expected.pop(expected.subject, None) is not None:
            expected.close()

    def give_up(self, subject: bytes) -> None:
        """Nobody received the request: there will be no answer."""
        expected = self._expected.get(subject)
        if expected is not None:
            self.done(expected)

    def _sweep_up(self) -> None:
        self._sweep = None
        now_ns = self._timers.now_ns()
        for expected in list(self._expected.values()):
            if expected.deadline_ns <= now_ns:
                self.done(expected)
        if self._expected:
            soonest = min(expected.deadline_ns for expected in self._expected.values())
            self._sweep = self._timers.at_own(soonest, self._sweep_up)

    def close(self) -> None:
        for expected in list(self._expected.values()):
            self.done(expected)
        if self._sweep is not None:
            self._sweep.cancel()


def _random_name(size: int) -> bytes:
    return bytes(random.SystemRandom().choices(_ALPHABET, k=size))


class ServicePassage(Passage):
    """Stands in the importer's router; requests that match are made in the exporter's."""

    __slots__ = (
        "_asking",
        "_change",
        "_export",
        "_far",
        "_importer",
        "_local",
        "_near",
        "_share",
        "exchange",
    )

    def __init__(
        self, exchange: Exchange, importer: Account, exporter: Account, wanted: Import, export: Export
    ):
        self.exchange = exchange
        self._importer = importer
        self._near, self._far = exchange.desk(importer), exchange.desk(exporter)
        self._export = export
        self._share = wanted.share
        self._local = starred(wanted.local)
        self._change = inward(wanted.local, wanted.subject)
        self._asking = False

    def open(self) -> None:
        self._near.hub.subscribe_internal(self._local, self)

    def close(self) -> None:
        self._near.hub.unsubscribe_internal(self._local, self)

    def at(self, subject: bytes) -> Crossing:
        return ServiceCrossing(self, self._change(subject))

    def wants(self, there: bytes, queue: bytes | None) -> bool:
        return self._far.hub.interest(there, queue)

    def ask(self, session: Any, there: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Make a request in the exporting account; how many received it."""
        if self._asking:
            return 0  # it came back to where it started
        export, far = self._export, self._far
        lasting = export.response != "singleton"
        shown = far.expect_for(self._near, reply, lasting=lasting, patience_ns=export.patience_ns)
        self._asking = True
        try:
            with self.exchange.request(session, self._importer, self._share) as chained:
                block = _with_info(header, chained)
                received = far.hub.publish(there, shown, block, payload)
        finally:
            self._asking = False
        if not received:
            far.give_up(shown)
        return received


class ServiceCrossing(Crossing):
    __slots__ = ("_passage", "_there")

    def __init__(self, passage: ServicePassage, there: bytes) -> None:
        self._passage, self._there = passage, there

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        return self._passage.ask(session, self._there, reply, header, payload)

    def wants(self, queue: bytes | None) -> bool:
        return self._passage.wants(self._there, queue)


def _with_info(header: bytes, info: dict[str, Any]) -> bytes:
    """The header with who asks; what a client claims about itself there is taken out, however it is spelt."""
    clean = _INFO_LINE.sub(b"", header) if header else header
    return headers.append(clean, [(REQUEST_INFO, msgspec.json.encode(info))])


class _Requests:
    """The requests being made right now, the innermost last: a chain of services shows who began it."""

    __slots__ = ("_exchange", "_info")

    def __init__(self, exchange: Exchange, info: dict[str, Any]) -> None:
        self._exchange, self._info = exchange, info

    def __enter__(self) -> dict[str, Any]:
        self._exchange.chain.append(self._info)
        return self._info

    def __exit__(self, *_: object) -> None:
        self._exchange.chain.pop()


class Exchange:
    """All imports of a server."""

    def __init__(self, accounts: Accounts, timers: Timers, server_name: str = "") -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._passages: dict[str, list[StreamPassage | ServicePassage]] = {}
        self._desks: dict[str, Desk] = {}
        self.chain: list[dict[str, Any]] = []

    def desk(self, account: Account) -> Desk:
        """Where an account's answers to others are kept."""
        if account.name not in self._desks:
            self._desks[account.name] = Desk(account.hub, self._timers)
        return self._desks[account.name]

    def connect(
        self, importer: str, imports: Iterable[Import], exports: Callable[[str], Iterable[Export]]
    ) -> None:
        """Let an account have these imports, and no others; `check_import` has nothing against any of them."""
        self.disconnect(importer)
        made = [
            self._passage(importer, wanted, check_import(exports(wanted.account), wanted, importer))
            for wanted in imports
        ]
        self._passages[importer] = made
        for passage in made:
            passage.open()

    def disconnect(self, importer: str) -> None:
        """End an account's imports; answers under way still arrive."""
        for passage in self._passages.pop(importer, ()):
            passage.close()

    def close(self) -> None:
        for name in list(self._passages):
            self.disconnect(name)
        for desk in self._desks.values():
            desk.close()

    def _passage(self, importer: str, wanted: Import, export: Export) -> StreamPassage | ServicePassage:
        near, far = self._accounts.make(importer), self._accounts.make(wanted.account)
        if wanted.kind == "stream":
            return StreamPassage(far.hub, near.hub, wanted)
        return ServicePassage(self, near, far, wanted, export)

    def request(self, session: Any, importer: Account, share: bool) -> _Requests:
        """Note a request while it is made; what the service learns about who asks."""
        if self.chain:
            return _Requests(self, self.chain[0] | {"svc": importer.name})
        info: dict[str, Any] = {"acc": importer.name}
        if share and session is not None:
            info |= self._about(session)
        return _Requests(self, info)

    def _about(self, session: Any) -> dict[str, Any]:
        user = session.identity.user if session.identity is not None else ""
        fields = {
            "host": session.owner.client_ip,
            "id": session.cid,
            "user": user,
            "name": session.name,
            "lang": session.lang,
            "ver": session.version,
            "server": self._server_name,
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in fields.items() if value}
