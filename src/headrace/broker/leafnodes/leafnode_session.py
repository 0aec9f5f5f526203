"""One leafnode connection without a socket: exchanges interest and messages with another server.

Owns the handshake, the other side's interest as entries of the router, and the handling of messages that arrive. Both
ends are implemented here: the one that dialed (by default a spoke) and the one that was dialed. Invariants: a message
never goes back over the connection it came from; all interest of the other side is in the router, and none of it after
`close`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace._native import KEY_EXACT, PublishFastPath, Route
from headrace.broker.leafnodes.interest_announcer import AnnouncedInterest, LeafnodeSet
from headrace.broker.leafnodes.leafnode_permissions import (
    ALWAYS_ALLOWED,
    LOCAL_ONLY,
    LeafnodePermissions,
    from_info,
    is_local_only,
    permissions_for,
    to_info,
)
from headrace.broker.leafnodes.leafnode_transport import LeafnodeLocalInfo, LeafnodeTransport
from headrace.broker.routing.backpressure import BackpressuredClient
from headrace.broker.routing.remote_interest import LeafnodeFanout, RemoteInterest
from headrace.broker.routing.session import SessionIdentity
from headrace.code_probes import sometimes
from headrace.errors import ProtocolError
from headrace.protocol import leafnode, server_lines, subjects
from headrace.protocol.json_exceptions import JSON_ERRORS

UNAUTHORIZED = "Authorization Violation"
SAME_CLUSTER = "remote leafnode has same cluster name"
WRONG_PORT = "attempted to connect to wrong port"
CLIENT_ON_LEAFNODE_PORT = "attempted to connect to leaf node port"
DUPLICATE_REMOTE = "Duplicate Remote LeafNode Connection"
INBOUND_ROUTES_MAX = 4096
PROTOCOL = 1
#: How long a server that dialed waits before it retries after an error that would only happen again.
LOOP_DELAY_S = 30.0
_DELAYS = (("Loop detected", LOOP_DELAY_S), (SAME_CLUSTER, 30.0), ("Permissions Violation", 30.0))


class InboundRoute(NamedTuple):
    """The route of one subject for messages that arrive over one connection; usable as long as `route.valid`."""

    route: Route
    local_route: Route | None
    internal_subscribers: list[Any]
    fast_paths: list[PublishFastPath]


class LeafnodeSession(BackpressuredClient):
    """One connection. `spoke`: this side is the spoke; `cluster` and `domain` are those of the other side."""

    __slots__ = (
        "_deny_exports",
        "_deny_imports",
        "_established",
        "_hub_role",
        "_inbound_routes",
        "_info",
        "_leafnodes",
        "_local_info",
        "activity",
        "announced_interest",
        "cid",
        "cluster",
        "domain",
        "identity",
        "inbound_permissions",
        "lang",
        "name",
        "outbound_permissions",
        "pings_out",
        "reconnect_delay_s",
        "remote_account",
        "remote_interest",
        "router",
        "solicited",
        "spoke",
        "transport",
        "version",
    )

    def __init__(
        self,
        leafnodes: LeafnodeSet,
        transport: LeafnodeTransport,
        cid: int,
        local_info: LeafnodeLocalInfo,
        *,
        solicited: bool,
        hub_role: bool = False,
        deny_imports: Sequence[bytes] = (),
        deny_exports: Sequence[bytes] = (),
    ) -> None:
        """`solicited`: this side dialed. `hub_role`: the other side is the spoke nevertheless."""
        super().__init__(leafnodes.router.table)
        self._leafnodes, self.router = leafnodes, leafnodes.router
        self.transport, self.cid, self._local_info = transport, cid, local_info
        self.solicited, self._hub_role = solicited, hub_role
        self._deny_imports, self._deny_exports = tuple(deny_imports), tuple(deny_exports)
        self.spoke = solicited and not hub_role
        self.verbose = self.pedantic = self.echo = False
        self.remote_interest: dict[tuple[bytes, bytes | None], RemoteInterest] = {}
        self.announced_interest = AnnouncedInterest(self)
        self.inbound_permissions = LeafnodePermissions(deny=self._deny_imports)
        self.outbound_permissions = LeafnodePermissions(deny=self._deny_exports)
        self.identity: SessionIdentity | None = None
        self.name = self.cluster = self.domain = self.version = self.remote_account = ""
        self.lang = "leafnode"
        self.reconnect_delay_s = 0.0
        self.activity = self.pings_out = 0
        self._established = False
        self._info: dict[str, Any] = {}
        self._inbound_routes: dict[bytes | tuple[bytes, ...], InboundRoute] = {}

    @property
    def account(self) -> str:
        return self._leafnodes.account

    @property
    def advertised_urls(self) -> list[str]:
        """More addresses of the other side, as it advertises them."""
        found = self._info.get("leafnode_urls")
        return [url for url in found if isinstance(url, str)] if isinstance(found, list) else []

    # Handshake, dialing side

    def on_info(self, body: bytes) -> None:
        """Reply to the first INFO with CONNECT; later ones carry permissions and confirm the connection."""
        if not self.solicited:
            return  # only sent to negotiate compression, which this server never offers
        fields = _parse_object(body)
        first = not self._info
        if first and not (fields.get("client_id") and "leafnode_urls" in fields):
            raise ProtocolError(WRONG_PORT)
        self._info = self._info | fields
        if first:
            self.name = str(fields.get("server_name") or fields.get("server_id") or "")
            self.domain, self.cluster = str(fields.get("domain") or ""), str(fields.get("cluster") or "")
            self.version = str(fields.get("version") or "")
            self.headers = bool(fields.get("headers"))
            self.transport.start_tls(requested=bool(fields.get("tls_required")))
            return
        self.remote_account = str(fields.get("remote_account") or self.remote_account)
        self._apply_info(fields)
        if fields.get("connect_info"):
            self._establish()

    def send_connect(self) -> None:
        """Send CONNECT, after TLS is set up if it is needed."""
        local, info = self._local_info, self._info
        fields: dict[str, Any] = {
            "version": local.version,
            **self.transport.credentials(str(info.get("nonce") or "")),
            "server_id": local.server_id,
            "domain": local.domain,
            "name": local.name,
            "is_hub": self._hub_role,
            "cluster": local.name,
            "headers": True,
            "jetstream": local.jetstream,
            "deny_pub": [subject.decode() for subject in self._deny_imports],
            "remote_account": self.account,
            "protocol": PROTOCOL,
        }
        self.send(b"CONNECT " + msgspec.json.encode({k: v for k, v in fields.items() if v}) + b"\r\n")
        if not info.get("info_on_connect"):
            self._establish()

    def _apply_info(self, fields: Mapping[str, Any]) -> None:
        """Apply the permissions that the other side grants."""
        if "export" in fields or "import" in fields:
            self.outbound_permissions = from_info(fields.get("export")).with_denied(self._deny_exports)
            self.inbound_permissions = from_info(fields.get("import")).with_denied(self._deny_imports)
            if self._established:
                self._deny_local_subjects()

    # Handshake, accepting side

    def on_connect(self, body: bytes) -> None:
        """Authenticate the server that dialed."""
        if self.solicited or self.authenticated:
            raise ProtocolError(None)
        fields = _parse_object(body)
        if fields.get("lang"):
            raise ProtocolError(CLIENT_ON_LEAFNODE_PORT)
        identity = self.transport.authenticate(fields)
        if identity is None:
            raise ProtocolError(UNAUTHORIZED)
        self.identity = identity
        self._bind(self.transport.leafnodes(identity.account))
        self.spoke = bool(fields.get("is_hub"))
        self.headers = bool(fields.get("headers"))
        for name in ("name", "cluster", "domain", "version", "remote_account"):
            setattr(self, name, str(fields.get(name) or ""))
        publish, subscribe = permissions_for(identity.permissions)
        deny = fields.get("deny_pub")
        self.inbound_permissions = publish
        self.outbound_permissions = subscribe.with_denied(
            each.encode() for each in (deny if isinstance(deny, list) else ()) if isinstance(each, str)
        )
        self._replace_stale()
        self.send(self.transport.info(self.account, to_info(subscribe), to_info(publish)))
        self._establish()

    def _bind(self, leafnodes: LeafnodeSet) -> None:
        """Move to an account."""
        self._leafnodes, self.router, self.table = leafnodes, leafnodes.router, leafnodes.router.table

    def _replace_stale(self) -> None:
        """Close an older connection of the same server that dialed again before its loss was noticed."""
        for other in tuple(self._leafnodes.sessions):
            same = (other.name, other.cluster) == (self.name, self.cluster)
            if same and self.name and not other.solicited and other.remote_account == self.remote_account:
                sometimes("a leafnode dials before it is missed")
                other.transport.fail(DUPLICATE_REMOTE)

    # Both sides

    def _establish(self) -> None:
        """Start exchanging interest and messages."""
        if self._established:
            return
        if (
            self.solicited
            and self.cluster
            and any(s.cluster == self.cluster for s in self._leafnodes.sessions)
        ):
            self._fail_on_loop()  # already connected to it, in the other direction or under another name
        self._established = self.authenticated = True
        self._deny_local_subjects()
        self._leafnodes.add(self)
        self.transport.on_established()

    def _deny_local_subjects(self) -> None:
        """Keep the JetStream API and buckets local: each side serves its own, and requests for ours are not sent away."""
        self.outbound_permissions = self.outbound_permissions.with_denied(LOCAL_ONLY)
        self.inbound_permissions = self.inbound_permissions.with_denied(LOCAL_ONLY)
        domain = self._local_info.domain
        if domain and domain != self.domain:
            self.outbound_permissions = self.outbound_permissions.with_denied(
                [f"$JS.{domain}.API.>".encode()]
            )
        self.router.invalidate_routes()

    def close(self) -> None:
        """Remove the other side's interest: the connection is closed."""
        self.authenticated = False
        if self._established:
            self._established = False
            self._leafnodes.remove(self)
        old_interest, self.remote_interest = self.remote_interest, {}
        self._inbound_routes.clear()
        for entry in old_interest.values():
            self.router.unsubscribe_remote(entry)
        self.notify_writable()

    def on_ping(self) -> None:
        self.activity += 1
        self.send(server_lines.PONG)

    def on_pong(self) -> None:
        self.pings_out = 0

    def on_error(self, text: str) -> None:
        """Handle an error from the other side, which closes the connection next."""
        self.reconnect_delay_s = next((delay for start, delay in _DELAYS if start in text), 0.0)
        self.transport.on_remote_error(text)

    # Interest

    def may_announce(self, pattern: bytes) -> bool:
        """Whether interest in a pattern may be announced to the other side."""
        return self.inbound_permissions.allows_interest(pattern)

    def may_send(self, subject: bytes) -> bool:
        """Whether messages on this subject may be sent to the other side."""
        return subject.startswith(ALWAYS_ALLOWED) or self.outbound_permissions.allows(subject)

    def on_interest(self, subject: bytes, queue: bytes | None, weight: int) -> None:
        """Add interest of the other side, or change the size of a queue group there."""
        self._require_established()
        self.activity += 1
        if subject == self._leafnodes.loop_subject:
            self._fail_on_loop()
            return
        if not subjects.is_valid(subject):
            self.send(server_lines.encode_error("Invalid Subscription"))
            return
        if subjects.is_literal(subject) and not self.may_send(subject) and not is_local_only(subject):
            self._on_violation("Subscription", subject)
            return
        entry = self.remote_interest.get((subject, queue))
        if entry is None and not self.transport.may_subscribe(len(self.remote_interest)):
            self.send(server_lines.encode_error("maximum subscriptions exceeded"))
        elif entry is None:
            entry = self.remote_interest[(subject, queue)] = RemoteInterest(self, subject, queue, weight)
            self.router.subscribe_remote(entry)
        elif entry.weight != weight:
            self.router.set_remote_weight(entry, weight)

    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None:
        """Remove interest of the other side."""
        self._require_established()
        self.activity += 1
        entry = self.remote_interest.pop((subject, queue), None)
        if entry is not None:
            self.router.unsubscribe_remote(entry)

    def _fail_on_loop(self) -> None:
        """Close the connection because our own loop subject came back: messages would circulate forever."""
        self.reconnect_delay_s = LOOP_DELAY_S
        text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
        raise ProtocolError(text)

    def _on_violation(self, what: str, subject: bytes) -> None:
        """Raise on a violation, unless the other side is the hub: then it sets the permissions, and we ignore it."""
        if not self.spoke:
            raise ProtocolError(f'Permissions Violation for {what} to "{subject.decode("utf-8", "replace")}"')

    def _require_established(self) -> None:
        if not self._established:
            raise ProtocolError(UNAUTHORIZED)

    # Messages

    def send_msg(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        """Send a message to the other side."""
        if header and not self.headers:
            header = b""
        self.buffer += leafnode.encode_msg(subject, reply, queues, header, payload)
        self.out_msgs += 1
        self.out_bytes += len(header) + len(payload)
        self.mark_dirty()

    def send_run(self, data: bytes, count: int, size: int) -> None:
        """Send messages that are already encoded."""
        self.buffer += data
        self.out_msgs += count
        self.out_bytes += size
        self.mark_dirty()

    def on_message(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        """Deliver a message from the other side to subscribers here and on other connections."""
        if not self._established:
            raise ProtocolError(UNAUTHORIZED)
        self.in_msgs += 1
        self.in_bytes += len(header) + len(payload)
        key = subject if not queues else (subject, *queues)
        inbound_route = self._inbound_routes.get(key)
        if inbound_route is None or not inbound_route.route.valid:
            if not subjects.is_well_formed(subject):
                return
            if not self.inbound_permissions.allows_inbound(subject):
                if not is_local_only(subject):
                    self._on_violation("Publish", subject)
                return
            inbound_route = self._resolve_inbound(subject, queues)
            if len(self._inbound_routes) >= INBOUND_ROUTES_MAX:
                self._inbound_routes.clear()
            self._inbound_routes[key] = inbound_route
        original_subject = subject
        if b"@" in reply:
            reply, original_subject = leafnode.decode_original_subject(reply)
            original_subject = original_subject if subjects.is_well_formed(original_subject) else subject
        if inbound_route.local_route is not None:
            self.table.deliver(inbound_route.local_route, original_subject, reply, header, payload)
        for subscriber in inbound_route.internal_subscribers:
            subscriber.on_message(self, original_subject, reply, header, payload)
        if inbound_route.fast_paths:
            # A message is never stored under an original subject that the other side may not publish to.
            stored_subject = (
                original_subject
                if original_subject is subject or self.inbound_permissions.allows(original_subject)
                else subject
            )
            for fast_path in inbound_route.fast_paths:
                fast_path.on_message(self, stored_subject, reply, header, payload)

    def _resolve_inbound(self, subject: bytes, queues: Collection[bytes]) -> InboundRoute:
        route = self.router.get_route(subject)
        queue_groups = [group for group in route.queue_groups if group[0].queue in queues]
        internal_subscribers: list[Any] = []
        fast_paths = [
            subscriber for subscriber in route.internal_subscribers if isinstance(subscriber, PublishFastPath)
        ]
        for subscriber in route.internal_subscribers:
            forwarded = (
                subscriber.excluding(self, queues) if isinstance(subscriber, LeafnodeFanout) else subscriber
            )
            if forwarded is not None and not isinstance(subscriber, PublishFastPath):
                internal_subscribers.append(forwarded)
        local = (
            Route(subject, KEY_EXACT, route.subscribers, queue_groups, [])
            if route.subscribers or queue_groups
            else None
        )
        return InboundRoute(route, local, internal_subscribers, fast_paths)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except JSON_ERRORS:
        raise ProtocolError(None) from None
    if not isinstance(found, dict):
        raise ProtocolError(None)
    return {str(key).lower(): value for key, value in found.items()}
