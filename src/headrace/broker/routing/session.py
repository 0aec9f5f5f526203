"""One client's side of the protocol, without a socket: its settings, its subscriptions, its output.

Owns the effect of control operations and the exact texts of the replies. Invariant: every subscription in `subs` is in
the router and vice versa. The compiled core handles publishing and calls back here for unusual cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from headrace._native import Subscription
from headrace.broker.routing.backpressure import BackpressuredClient
from headrace.broker.routing.permissions import AllowedResponses, Permissions
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.traced_delivery import TracedMessage, publish_from_client
from headrace.code_probes import sometimes
from headrace.errors import ProtocolError
from headrace.protocol import server_lines, subjects
from headrace.protocol.json_exceptions import JSON_ERRORS

#: Subjects of the server itself.
RESERVED_PREFIXES = (b"$NRG.", b"_GR_.")
SYSTEM_QUEUE = b"_sys_"
DIGITS_MAX = 9
UNAUTHORIZED = "Authorization Violation"

#: Maximum number of texts (names of client libraries, versions) that sessions share.
_SHARED_TEXTS_MAX = 1000
_shared_texts: dict[str, str] = {}

_BOOLS = ("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required", "new_account")
_STRINGS = ("name", "lang", "version", "user", "pass", "auth_token", "nkey", "sig", "jwt", "account")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one client; 0 is no limit."""

    subscriptions: int = 0
    subscription_tokens: int = 0
    #: Allow no subscription at all, which 0 cannot express.
    no_subscriptions: bool = False

    def apply_caps(self, caps: Sequence[int]) -> SessionLimits:
        """Return these limits with the subscriptions capped to the smallest of `caps`."""
        most = min((*caps, *([self.subscriptions] if self.subscriptions else [])), default=0)
        return SessionLimits(most, self.subscription_tokens, no_subscriptions=bool(caps) and most == 0)


class SessionIdentity(Protocol):
    """The user of a session."""

    @property
    def user(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def permissions(self) -> Permissions | None: ...


class SessionTransport(Protocol):
    """The transport of a session, usually a connection."""

    client_ip: str

    def now_ns(self) -> int:
        """The time for measuring intervals."""

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        """Authenticate a CONNECT (keys in lower case); None is an authorization violation."""

    def on_connected(self) -> None:
        """Called when a CONNECT was accepted."""

    def info(self) -> bytes:
        """The INFO line for a client that is connected, sent after its first PING."""


class Session(BackpressuredClient):
    """One client. `identity` is its user, None before authentication."""

    __slots__ = (
        "_info_sent",
        "activity",
        "allowed_responses",
        "cid",
        "connect_accepted",
        "connected_at_ns",
        "identity",
        "lang",
        "limits",
        "name",
        "permissions",
        "pinged_ns",
        "pings_out",
        "protocol",
        "router",
        "rtt_ns",
        "start_ns",
        "subs",
        "transport",
        "version",
    )

    def __init__(
        self,
        router: SubjectRouter,
        transport: SessionTransport,
        cid: int,
        limits: SessionLimits,
        authenticated: bool,
    ) -> None:
        super().__init__(router.client_table)
        self.router = router
        self.transport = transport
        self.cid = cid
        self.limits = limits
        self.authenticated = authenticated
        self.apply_tracing()
        self.subs: dict[bytes, Subscription] = {}
        self.identity: SessionIdentity | None = None
        self.permissions: Permissions | None = None
        self.allowed_responses: AllowedResponses | None = None
        self.protocol = 0
        self.name = self.lang = self.version = ""
        self.activity = self.pings_out = 0
        #: Times of connecting and of the last ping, in the transport's time; the round-trip time, 0 if not measured yet.
        self.start_ns = transport.now_ns()
        self.pinged_ns = self.rtt_ns = 0
        #: Time of connecting by the wall clock; 0 until it is requested.
        self.connected_at_ns = 0
        self.connect_accepted = False
        self._info_sent = False

    def close(self) -> None:
        """Remove all subscriptions: the client disconnected."""
        old_subs, self.subs = self.subs, {}
        self.router.unsubscribe_all(list(old_subs.values()))
        self.notify_writable()

    def send_error(self, text: str | bytes) -> None:
        """Send an error that does not end the connection."""
        self.send(server_lines.encode_error(text))

    # Control operations, called by the parser

    def on_connect(self, args: bytes) -> None:
        """Apply the client's settings and authenticate it; a second CONNECT starts over."""
        fields = parse_connect(args)
        self.close()
        self._apply_connect(fields)
        identity = self.transport.authenticate(fields)
        if identity is None or fields.get("account") or fields.get("new_account"):
            raise ProtocolError(UNAUTHORIZED)
        self.authenticate_as(identity)
        if self.protocol not in (0, 1):
            raise ProtocolError("invalid client protocol")
        if self.no_responders and not self.headers:
            raise ProtocolError("no responders requires headers support")
        self.authenticated = self.connect_accepted = True
        self.lang, self.version = _share_text(self.lang), _share_text(self.version)
        self.transport.on_connected()
        self._send_ok()

    def bind(self, router: SubjectRouter) -> None:
        """Move to another account; subscriptions in the old one are removed."""
        if router is not self.router:
            old_subs, self.subs = self.subs, {}
            self.router.unsubscribe_all(list(old_subs.values()))
            self.router, self.table = router, router.client_table
        self.apply_tracing()

    def apply_tracing(self) -> None:
        """Apply the trace settings of the account."""
        tracing = self.router.tracing
        self.traces_external = tracing is not None and bool(tracing.dest)

    def authenticate_as(self, identity: SessionIdentity) -> None:
        """Apply a user's permissions, and remove subscriptions that they do not allow."""
        self.identity = identity
        self.permissions = rules = identity.permissions
        self.has_permissions = rules is not None
        self.allowed_responses = (
            AllowedResponses(rules.responses) if rules is not None and rules.responses is not None else None
        )
        for sub in list(self.subs.values()):
            if rules is None or rules.may_subscribe(sub.pattern, sub.queue):
                sub.needs_check = self._needs_check(sub.pattern, sub.queue)
            else:
                self._remove(sub)
                self.send_error(_subscription_violation(sub.pattern, sub.queue) + b' (sid "%s")' % sub.sid)

    def _apply_connect(self, fields: Mapping[str, Any]) -> None:
        self.verbose = fields.get("verbose", self.verbose)
        self.pedantic = fields.get("pedantic", self.pedantic)
        self.echo = fields.get("echo", True)
        self.headers = fields.get("headers", False)
        self.no_responders = fields.get("no_responders", False)
        self.protocol = fields.get("protocol", 0)
        self.name = fields.get("name", "")
        self.lang = fields.get("lang", "")
        self.version = fields.get("version", "")

    def on_ping(self) -> None:
        """Send PONG; after the first PING, send INFO to clients that support it."""
        self.activity += 1
        self.send(server_lines.PONG)
        if self.connect_accepted and not self._info_sent and self.protocol >= 1:
            self._info_sent = True
            self.send(self.transport.info())

    def ping(self) -> None:
        """Send a PING."""
        self.pings_out += 1
        self.pinged_ns = self.transport.now_ns()
        self.send(server_lines.PING)

    def on_pong(self) -> None:
        if self.pings_out:
            self.rtt_ns = max(self.transport.now_ns() - self.pinged_ns, 1)
        self.pings_out = 0

    def connected_at(self, now_ns: int) -> int:
        """Return when the client connected, by a clock that shows `now_ns`; the result is stored and never changes."""
        if not self.connected_at_ns:
            self.connected_at_ns = now_ns - (self.transport.now_ns() - self.start_ns)
        return self.connected_at_ns

    def on_sub(self, subject: bytes, queue: bytes | None, sid: bytes) -> None:
        """Subscribe, or send an error; a sid in use keeps its subscription."""
        self.activity += 1
        error = self._check_subscribe(subject, queue)
        if error:
            self.send_error(error)
            return
        if sid not in self.subs:
            if not subjects.is_well_formed(subject) or subjects.REST in subjects.tokens(subject)[:-1]:
                self.send_error("Invalid Subject")
                return
            sub = Subscription(self, subject, queue, sid)
            sub.needs_check = self._needs_check(subject, queue)
            self.subs[sid] = sub
            self.router.subscribe(sub)
        self._send_ok()

    def _check_subscribe(self, subject: bytes, queue: bytes | None) -> bytes:
        """Return why a subscription is rejected, or b""."""
        asked = _subscription_violation(subject, queue)
        if queue == SYSTEM_QUEUE:
            return asked
        if self.permissions is not None and not self.permissions.may_subscribe(subject, queue):
            sometimes("subscription denied")
            return asked
        most = self.limits.subscription_tokens
        if most and subject.count(b".") + 1 > most:
            return b'Permissions Violation for Subscription to "%s", too many tokens' % subject
        limits = self.limits
        if limits.no_subscriptions or (limits.subscriptions and len(self.subs) >= limits.subscriptions):
            return b"maximum subscriptions exceeded"
        return b""

    def on_unsub(self, sid: bytes, most: bytes | None) -> None:
        """Unsubscribe, now or after `most` deliveries in total."""
        self.activity += 1
        sub = self.subs.get(sid)
        if sub is not None:
            limit = int(most) if most is not None and len(most) <= DIGITS_MAX and most.isdigit() else 0
            if limit > sub.delivered:
                sub.max_msgs = limit
            else:
                self._remove(sub)
        self._send_ok()

    # Called by the compiled core for unusual messages

    def on_traced_publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Publish a message that may have to be traced; return False, without any effect, if it need not be."""
        return publish_from_client(self, TracedMessage(subject, reply, header, payload))

    def may_trace_to(self, dest: bytes) -> bool:
        """Whether the client may publish to a trace destination."""
        return not dest.startswith(RESERVED_PREFIXES) and (
            self.permissions is None or self.permissions.may_publish(dest)
        )

    def on_pedantic_publish(self, subject: bytes) -> None:
        """Send an error to a pedantic client for an invalid publish subject; the message is still published."""
        if not subjects.is_valid_publish(subject):
            self.send_error("Invalid Publish Subject")

    def may_publish(self, subject: bytes) -> bool:
        if self.permissions is None or self.permissions.may_publish(subject):
            return True
        return self.allowed_responses is not None and self.allowed_responses.use(
            subject, self.transport.now_ns()
        )

    def may_reply(self, reply: bytes) -> bool:
        return self.permissions is None or self.permissions.may_reply(reply)

    def deny_publish(self, subject: bytes) -> None:
        sometimes("publish denied")
        self.send_error(b'Permissions Violation for Publish to "%s"' % subject)

    def deny_reply(self, reply: bytes) -> None:
        self.send_error(b'Permissions Violation for Publish with Reply of "%s"' % reply)

    def may_deliver(self, sub: Subscription, subject: bytes, reply: bytes) -> bool:
        """Whether a subscription with `needs_check` gets a message; if it does, the client may respond to `reply`."""
        rules = self.permissions
        if rules is not None and rules.denies_delivery(subject, sub.queue):
            sometimes("delivery denied")
            return False
        if (
            reply
            and self.allowed_responses is not None
            and rules is not None
            and not rules.may_publish(reply)
        ):
            self.allowed_responses.allow(reply, self.transport.now_ns())
        return True

    def _needs_check(self, pattern: bytes, queue: bytes | None) -> bool:
        """Whether deliveries to a subscription have to be checked."""
        rules = self.permissions
        return rules is not None and (
            self.allowed_responses is not None or rules.denies_part_of(pattern, queue)
        )

    def on_max_msgs(self, sub: Subscription) -> None:
        """Remove a subscription that reached its maximum number of messages."""
        self._remove(sub)

    def on_no_responders(self, subject: bytes, reply: bytes) -> None:
        """Send a 503 to the requester if its request had no receiver and it subscribes to the reply subject itself."""
        if not subjects.is_well_formed(reply):
            return
        for sub in self.router.get_route(reply).subscribers:
            if sub.client is self:
                sometimes("no responders")
                self.send(
                    server_lines.encode_msg(
                        reply, sub.sid, b"", server_lines.no_responders_header(subject), b""
                    )
                )
                return

    def _remove(self, sub: Subscription) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self.router.unsubscribe(sub)

    def _send_ok(self) -> None:
        if self.verbose:
            self.send(server_lines.OK)


def _subscription_violation(subject: bytes, queue: bytes | None) -> bytes:
    asked = b'Permissions Violation for Subscription to "%s"' % subject
    return asked if queue is None else asked + b' using queue "%s"' % queue


def parse_connect(args: bytes) -> dict[str, Any]:
    """Parse CONNECT and return its fields with keys in lower case; invalid JSON or types end the connection silently."""
    try:
        decoded = msgspec.json.decode(args)
    except JSON_ERRORS:
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


def _share_text(text: str) -> str:
    """Return an equal text that other sessions use too, so that many clients of one kind cost little memory.

    Not `sys.intern`: some versions of Python never free interned texts, and clients choose them.
    """
    if len(_shared_texts) < _SHARED_TEXTS_MAX:
        return _shared_texts.setdefault(text, text)
    return _shared_texts.get(text, text)
