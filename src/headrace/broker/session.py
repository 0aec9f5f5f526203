"""One client's side of the protocol, without a socket: its settings, its subscriptions, its output.

Owns what the control operations do and the exact texts of the answers. Invariant: every subscription of
`subs` is in the hub and the other way round. Publishing is the kernel's business; it calls back here for
whatever is unusual.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from headrace.broker.draining import DrainingPeer
from headrace.broker.permissions import Permissions, Replies
from headrace.broker.router import Hub
from headrace.errors import ProtocolError
from headrace.kernel import Subscription
from headrace.probes import probe
from headrace.protocol import frames, subjects
from headrace.protocol.bodies import UNREADABLE

SYSTEM_QUEUE = b"_sys_"
DIGITS_MAX = 9
UNAUTHORIZED = "Authorization Violation"

_BOOLS = ("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "new_account")
_STRINGS = ("name", "lang", "version", "user", "pass", "auth_token", "nkey", "sig", "jwt", "account")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask for; 0 is no limit."""

    subscriptions: int = 0
    subscription_tokens: int = 0
    #: No subscription at all, which 0 does not say.
    none: bool = False

    def capped(self, caps: Sequence[int]) -> Limits:
        """These limits with as many subscriptions as the smallest cap allows."""
        most = min((*caps, *([self.subscriptions] if self.subscriptions else [])), default=0)
        return Limits(most, self.subscription_tokens, none=bool(caps) and most == 0)


class Identity(Protocol):
    """Who a session speaks for."""

    @property
    def user(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def permissions(self) -> Permissions | None: ...


class Owner(Protocol):
    """What carries a session, a connection as a rule."""

    client_ip: str

    def now_ns(self) -> int:
        """The time, for what lasts only so long."""

    def authenticate(self, fields: Mapping[str, Any]) -> Identity | None:
        """Who a CONNECT (keys in lower case) proves to be; None is a violation."""

    def connected(self) -> None:
        """A CONNECT was accepted."""

    def info(self) -> bytes:
        """The INFO line for a client that is connected, sent after its first PING."""


class Session(DrainingPeer):
    """One client. `identity` is who it speaks for, None before that is known."""

    __slots__ = (
        "_greeted",
        "activity",
        "cid",
        "hub",
        "identity",
        "lang",
        "limits",
        "name",
        "owner",
        "permissions",
        "pinged_ns",
        "pings_out",
        "protocol",
        "replies",
        "rtt_ns",
        "since_ns",
        "stamped",
        "start_ns",
        "subs",
        "version",
    )

    def __init__(self, hub: Hub, owner: Owner, cid: int, limits: Limits, ready: bool) -> None:
        super().__init__(hub.client_table)
        self.hub = hub
        self.owner = owner
        self.cid = cid
        self.limits = limits
        self.ready = ready
        self.subs: dict[bytes, Subscription] = {}
        self.identity: Identity | None = None
        self.permissions: Permissions | None = None
        self.replies: Replies | None = None
        self.protocol = 0
        self.name = self.lang = self.version = ""
        self.activity = self.pings_out = 0
        #: When it came and when it was last asked, in the owner's time; how long its answer took, 0 if not known yet.
        self.start_ns = owner.now_ns()
        self.pinged_ns = self.rtt_ns = 0
        #: When it came, by the clock; 0 until somebody wants to know.
        self.since_ns = 0
        self.stamped = False
        self._greeted = False

    def close(self) -> None:
        """The client is gone: so is its interest."""
        gone, self.subs = self.subs, {}
        self.hub.leave(list(gone.values()))
        self.drained()

    def complain(self, text: str | bytes) -> None:
        """Send an error that does not end the connection."""
        self.send(frames.error(text))

    # Control operations, called by the parser

    def on_connect(self, args: bytes) -> None:
        """Take the client's settings and find out who it is; a second CONNECT starts over."""
        fields = connect_fields(args)
        self.close()
        self._adopt(fields)
        identity = self.owner.authenticate(fields)
        if identity is None or fields.get("account") or fields.get("new_account"):
            raise ProtocolError(UNAUTHORIZED)
        self.admit_as(identity)
        if self.protocol not in (0, 1):
            raise ProtocolError("invalid client protocol")
        if self.no_responders and not self.headers:
            raise ProtocolError("no responders requires headers support")
        self.ready = self.stamped = True
        self.owner.connected()
        self._ok()

    def bind(self, hub: Hub) -> None:
        """Speak in another account from now on; interest in the old one is gone."""
        if hub is not self.hub:
            gone, self.subs = self.subs, {}
            self.hub.leave(list(gone.values()))
            self.hub, self.table = hub, hub.client_table

    def admit_as(self, identity: Identity) -> None:
        """From now on speak for somebody."""
        self.identity = identity
        self.permissions = rules = identity.permissions
        self.guarded = rules is not None
        self.replies = Replies(rules.responses) if rules is not None and rules.responses is not None else None
        for sub in list(self.subs.values()):
            if rules is None or rules.may_subscribe(sub.pattern, sub.queue):
                sub.watched = self._watches(sub.pattern, sub.queue)
            else:
                self._remove(sub)
                self.complain(_denied(sub.pattern, sub.queue) + b' (sid "%s")' % sub.sid)

    def _adopt(self, fields: Mapping[str, Any]) -> None:
        self.verbose = fields.get("verbose", self.verbose)
        self.pedantic = fields.get("pedantic", self.pedantic)
        self.echo = fields.get("echo", True)
        self.headers = fields.get("headers", False)
        self.no_responders = fields.get("no_responders", False)
        self.protocol = fields.get("protocol", 0)
        self.name = fields.get("name", "")
        self.lang = sys.intern(fields.get("lang", ""))
        self.version = sys.intern(fields.get("version", ""))

    def on_ping(self) -> None:
        """Answer; after the first one a client that understands it learns what it is connected as."""
        self.activity += 1
        self.send(frames.PONG)
        if self.stamped and not self._greeted and self.protocol >= 1:
            self._greeted = True
            self.send(self.owner.info())

    def ping(self) -> None:
        """Ask whether the client is there."""
        self.pings_out += 1
        self.pinged_ns = self.owner.now_ns()
        self.send(frames.PING)

    def on_pong(self) -> None:
        if self.pings_out:
            self.rtt_ns = max(self.owner.now_ns() - self.pinged_ns, 1)
        self.pings_out = 0

    def since(self, now_ns: int) -> int:
        """When the client came, by a clock that shows `now_ns`; the same whenever it is asked."""
        if not self.since_ns:
            self.since_ns = now_ns - (self.owner.now_ns() - self.start_ns)
        return self.since_ns

    def on_sub(self, subject: bytes, queue: bytes | None, sid: bytes) -> None:
        """Subscribe, or say why not; a sid in use stays what it is."""
        self.activity += 1
        refusal = self._refusal(subject, queue)
        if refusal:
            self.complain(refusal)
            return
        if sid not in self.subs:
            if not subjects.whole(subject) or subjects.REST in subjects.tokens(subject)[:-1]:
                self.complain("Invalid Subject")
                return
            sub = Subscription(self, subject, queue, sid)
            sub.watched = self._watches(subject, queue)
            self.subs[sid] = sub
            self.hub.subscribe(sub)
        self._ok()

    def _refusal(self, subject: bytes, queue: bytes | None) -> bytes:
        """Why a subscription is not accepted, or b""."""
        asked = _denied(subject, queue)
        if queue == SYSTEM_QUEUE:
            return asked
        if self.permissions is not None and not self.permissions.may_subscribe(subject, queue):
            probe("not allowed to subscribe")
            return asked
        most = self.limits.subscription_tokens
        if most and subject.count(b".") + 1 > most:
            return b'Permissions Violation for Subscription to "%s", too many tokens' % subject
        limits = self.limits
        if limits.none or (limits.subscriptions and len(self.subs) >= limits.subscriptions):
            return b"maximum subscriptions exceeded"
        return b""

    def on_unsub(self, sid: bytes, most: bytes | None) -> None:
        """Unsubscribe, now or after as many deliveries in all."""
        self.activity += 1
        sub = self.subs.get(sid)
        if sub is not None:
            limit = int(most) if most is not None and len(most) <= DIGITS_MAX and most.isdigit() else 0
            if limit > sub.delivered:
                sub.limit = limit
            else:
                self._remove(sub)
        self._ok()

    # Called by the kernel for what is unusual about a message

    def on_pedantic(self, subject: bytes) -> None:
        """A pedantic client hears of a subject that ought not be published to; the message goes on."""
        if not subjects.publishable(subject):
            self.complain("Invalid Publish Subject")

    def may_publish(self, subject: bytes) -> bool:
        if self.permissions is None or self.permissions.may_publish(subject):
            return True
        return self.replies is not None and self.replies.take(subject, self.owner.now_ns())

    def may_reply(self, reply: bytes) -> bool:
        return self.permissions is None or self.permissions.may_reply(reply)

    def refuse_publish(self, subject: bytes) -> None:
        probe("not allowed to publish")
        self.complain(b'Permissions Violation for Publish to "%s"' % subject)

    def refuse_reply(self, reply: bytes) -> None:
        self.complain(b'Permissions Violation for Publish with Reply of "%s"' % reply)

    def admit(self, sub: Subscription, subject: bytes, reply: bytes) -> bool:
        """Whether a watched subscription gets a message; with a reply to it the client may answer."""
        rules = self.permissions
        if rules is not None and rules.withheld(subject, sub.queue):
            probe("a message is withheld")
            return False
        if reply and self.replies is not None and rules is not None and not rules.may_publish(reply):
            self.replies.asked(reply, self.owner.now_ns())
        return True

    def _watches(self, pattern: bytes, queue: bytes | None) -> bool:
        """Whether a delivery to a subscription has to be looked at."""
        rules = self.permissions
        return rules is not None and (self.replies is not None or rules.withholds_from(pattern, queue))

    def spent(self, sub: Subscription) -> None:
        """A subscription had the last delivery it asked for."""
        self._remove(sub)

    def on_no_responders(self, subject: bytes, reply: bytes) -> None:
        """Nobody received a request: tell the requester, if it listens for the answer itself."""
        if not subjects.whole(reply):
            return
        for sub in self.hub.route(reply).plain:
            if sub.peer is self:
                probe("nobody responds")
                self.send(frames.message(reply, sub.sid, b"", frames.no_responders(subject), b""))
                return

    def _remove(self, sub: Subscription) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self.hub.unsubscribe(sub)

    def _ok(self) -> None:
        if self.verbose:
            self.send(frames.OK)


def _denied(subject: bytes, queue: bytes | None) -> bytes:
    asked = b'Permissions Violation for Subscription to "%s"' % subject
    return asked if queue is None else asked + b' using queue "%s"' % queue


def connect_fields(args: bytes) -> dict[str, Any]:
    """The object of a CONNECT with keys in lower case; malformed or mistyped ends the connection silently."""
    try:
        decoded = msgspec.json.decode(args)
    except UNREADABLE:
        raise ProtocolError(None) from None
    if not isinstance(decoded, dict):
        raise ProtocolError(None)
    fields = {key.lower(): value for key, value in decoded.items() if value is not None}
    for names, kind in ((_BOOLS, bool), (_STRINGS, str)):
        for name in names:
            if not isinstance(fields.get(name, kind()), kind):
                raise ProtocolError(None)
    if type(fields.get("protocol", 0)) is not int:
        raise ProtocolError(None)
    return fields
