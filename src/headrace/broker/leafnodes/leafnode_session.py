"""One leafnode connection without a socket: exchanges interest and messages with another server.

Owns the order of the handshake and the handling of messages that arrive; the content of the handshake, the other side's
interest, the permissions and the routes of messages are parts. Both ends are implemented here: the one that dialed (by
default a spoke) and the one that was dialed. Invariants: a message never goes back over the connection it came from; all
interest of the other side is in the router, and none of it after `close`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headrace.broker.leafnodes.inbound_routes import InboundRoutes, deliver_traced
from headrace.broker.leafnodes.interest_announcer import AnnouncedInterest, LeafnodeSet
from headrace.broker.leafnodes.leafnode_handshake import (
    LOOP_DELAY_S,
    PROTOCOL,
    DialingHandshake,
    LeafnodeLocalInfo,
    LeafnodePeer,
    get_reconnect_delay_s,
    parse_connect,
    parse_object,
)
from headrace.broker.leafnodes.leafnode_permissions import (
    ConnectionPermissions,
    is_local_only,
    permissions_for,
    to_info,
)
from headrace.broker.leafnodes.leafnode_transport import LeafnodeTransport
from headrace.broker.leafnodes.received_interest import ReceivedInterest
from headrace.broker.routing.backpressure import BackpressuredClient
from headrace.broker.routing.message_trace import DEST
from headrace.broker.routing.session import SessionIdentity
from headrace.broker.routing.traced_delivery import TracedMessage
from headrace.code_probes import sometimes
from headrace.errors import ProtocolError
from headrace.protocol import leafnode, server_lines, subjects

UNAUTHORIZED = "Authorization Violation"
DUPLICATE_REMOTE = "Duplicate Remote LeafNode Connection"


class LeafnodeSession(BackpressuredClient):
    """One connection. `spoke`: this side is the spoke; `peer` is what the other server reports about itself."""

    __slots__ = (
        "_awaits_compressed_info",
        "_compression_negotiated",
        "_domain",
        "_established",
        "_handshake",
        "_inbound_routes",
        "_leafnodes",
        "activity",
        "announced_interest",
        "cid",
        "identity",
        "lang",
        "leafnode_permissions",
        "peer",
        "pings_out",
        "received_interest",
        "reconnect_delay_s",
        "router",
        "solicited",
        "spoke",
        "transport",
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
        self.transport, self.cid, self._domain = transport, cid, local_info.domain
        self._handshake = DialingHandshake(local_info, hub_role=hub_role)
        self.solicited = solicited
        self.spoke = solicited and not hub_role
        self.verbose = self.pedantic = self.echo = False
        self.received_interest = ReceivedInterest(self.router, self)
        self.announced_interest = AnnouncedInterest(self)
        self.leafnode_permissions = ConnectionPermissions(deny_imports, deny_exports)
        self.identity: SessionIdentity | None = None
        self.peer = LeafnodePeer()
        self.lang = "leafnode"
        self.reconnect_delay_s = 0.0
        self.activity = self.pings_out = 0
        self._established = False
        self._compression_negotiated = self._awaits_compressed_info = False
        self._inbound_routes = InboundRoutes()

    @property
    def account(self) -> str:
        return self._leafnodes.account

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def version(self) -> str:
        return self.peer.version

    @property
    def cluster(self) -> str:
        return self.peer.cluster

    @property
    def supports_tracing(self) -> bool:
        return self.peer.protocol >= PROTOCOL

    def may_trace_to(self, dest: bytes) -> bool:
        """Whether the other side may publish to a trace destination."""
        inbound = self.leafnode_permissions.inbound
        return inbound.allows_inbound(dest) and inbound.allows_reply(dest)

    def deny_publish(self, subject: bytes) -> None:
        """Reject a message of the other side."""
        self.on_violation("Publish", subject)

    @property
    def advertised_urls(self) -> list[str]:
        """More addresses of the other side, as it advertises them."""
        return self._handshake.advertised_urls

    # Handshake, dialing side

    def on_info(self, body: bytes) -> None:
        """Reply to the first INFO with CONNECT; later ones carry permissions and confirm the connection.

        A server that dialed sends an INFO only to negotiate compression.
        """
        fields = parse_object(body)
        if not self.solicited:
            if not self.authenticated:
                self._negotiate_compression(fields.get("compression"))
            return
        first = self._handshake.receive_info(fields)
        self.peer = self._handshake.peer
        if first:
            self.headers = bool(fields.get("headers"))
            self.transport.start_tls(requested=bool(fields.get("tls_required")))
            return
        if self._awaits_compressed_info:
            self._awaits_compressed_info = False
            self.send_connect()
            return
        if self.leafnode_permissions.apply_info(fields) and self._established:
            self._deny_local_subjects()
        if fields.get("connect_info"):
            self._establish()

    def send_connect(self) -> None:
        """Send CONNECT, after TLS is set up if it is needed, and after an INFO of each side if they compress."""
        handshake = self._handshake
        info = handshake.info
        if self._negotiate_compression(info.get("compression")):
            self._awaits_compressed_info = True
            return
        credentials = self.transport.credentials(str(info.get("nonce") or ""))
        denied = self.leafnode_permissions.deny_imports
        self.send(handshake.encode_connect(self.account, credentials, denied, self.transport.compression))
        if not info.get("info_on_connect"):
            self._establish()

    def _negotiate_compression(self, offered: object) -> bool:
        """Agree on the compression, once; return whether that has just switched it on."""
        if self._compression_negotiated:
            return False
        self._compression_negotiated = True
        return self.transport.negotiate_compression(offered if isinstance(offered, str) else "")

    # Handshake, accepting side

    def on_connect(self, body: bytes) -> None:
        """Authenticate the server that dialed."""
        if self.solicited or self.authenticated:
            raise ProtocolError(None)
        fields, peer = parse_connect(body)
        # Unless an INFO of the other side did that before.
        self._negotiate_compression("" if fields.get("compress_mode") in (None, "not supported") else "off")
        identity = self.transport.authenticate(fields)
        if identity is None:
            raise ProtocolError(UNAUTHORIZED)
        self.identity = identity
        self._bind(self.transport.leafnodes(identity.account))
        self.spoke = bool(fields.get("is_hub"))
        self.headers = bool(fields.get("headers"))
        self.peer = peer
        publish, subscribe = permissions_for(identity.permissions)
        self.leafnode_permissions.apply_user(publish, subscribe, fields.get("deny_pub"))
        self._replace_stale()
        self.send(self.transport.info(self.account, to_info(subscribe), to_info(publish)))
        self._establish()

    def _bind(self, leafnodes: LeafnodeSet) -> None:
        """Move to an account."""
        self._leafnodes, self.router, self.table = leafnodes, leafnodes.router, leafnodes.router.table
        self.received_interest.bind(leafnodes.router)

    def _replace_stale(self) -> None:
        """Close an older connection of the same server that dialed again before its loss was noticed."""
        for other in tuple(self._leafnodes.sessions):
            if not other.solicited and self.peer.is_same_server(other.peer):
                sometimes("stale leafnode connection replaced")
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
        self.leafnode_permissions.deny_local_subjects(self._domain, self.peer.domain)
        self.router.invalidate_routes()

    def close(self) -> None:
        """Remove the other side's interest: the connection is closed."""
        self.authenticated = False
        if self._established:
            self._established = False
            self._leafnodes.remove(self)
        self._inbound_routes.clear()
        self.received_interest.clear()
        self.notify_writable()

    def on_ping(self) -> None:
        self.activity += 1
        self.send(server_lines.PONG)

    def on_pong(self) -> None:
        self.pings_out = 0
        self.transport.on_pong()

    def on_error(self, text: str) -> None:
        """Handle an error from the other side, which closes the connection next."""
        self.reconnect_delay_s = get_reconnect_delay_s(text)
        self.transport.on_remote_error(text)

    # Interest

    def may_announce(self, pattern: bytes) -> bool:
        """Whether interest in a pattern may be announced to the other side."""
        return self.leafnode_permissions.may_announce(pattern)

    def may_send(self, subject: bytes) -> bool:
        """Whether messages on this subject may be sent to the other side."""
        return self.leafnode_permissions.may_send(subject)

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
            self.on_violation("Subscription", subject)
            return
        interest = self.received_interest
        if (subject, queue) not in interest and not self.transport.may_subscribe(len(interest)):
            self.send(server_lines.encode_error("maximum subscriptions exceeded"))
        else:
            interest.add(subject, queue, weight)

    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None:
        """Remove interest of the other side."""
        self._require_established()
        self.activity += 1
        self.received_interest.remove(subject, queue)

    def _fail_on_loop(self) -> None:
        """Close the connection because our own loop subject came back: messages would circulate forever."""
        self.reconnect_delay_s = LOOP_DELAY_S
        text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
        raise ProtocolError(text)

    def on_violation(self, what: str, subject: bytes) -> None:
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

    def send_run(self, data: bytes | bytearray, count: int, size: int) -> None:
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
        inbound_route = self._inbound_routes.find(self, subject, queues)
        if inbound_route is None:
            return
        original_subject = subject
        if b"@" in reply:
            reply, original_subject = leafnode.decode_original_subject(reply)
            original_subject = original_subject if subjects.is_well_formed(original_subject) else subject
        inbound = self.leafnode_permissions.inbound
        if reply and not inbound.allows_reply(reply):
            # Only this message is dropped: the server that dialed cannot know which replies its clients may use.
            return
        stored_subject = subject
        if inbound_route.fast_paths and (original_subject is subject or inbound.allows(original_subject)):
            # A message is never stored under an original subject that the other side may not publish to.
            stored_subject = original_subject
        if header and (DEST in header or self._traces_external()):
            message = TracedMessage(original_subject, reply, header, payload)
            header = deliver_traced(self.router, self, inbound_route, message, stored_subject)
            if not header:
                return
        if inbound_route.local_route is not None:
            self.table.deliver(inbound_route.local_route, original_subject, reply, header, payload)
        for subscriber in inbound_route.internal_subscribers:
            subscriber.on_message(self, original_subject, reply, header, payload)
        for fast_path in inbound_route.fast_paths:
            fast_path.on_message(self, stored_subject, reply, header, payload)

    def takes_deliveries(self, subject: bytes) -> bool:
        """Whether all messages on this subject go to one receiver that takes runs."""
        if not self._established or self._traces_external():
            return False
        return self._inbound_routes.find_run_receiver(self, subject) is not None

    def on_deliveries(
        self,
        subject: bytes,
        ack_prefix: bytes,
        records: bytearray,
        seqs: array[int],
        consumer_seq: int,
        num_pending: int,
    ) -> int:
        """Pass a run of deliveries to its receiver; return how many it took."""
        self._require_established()
        receiver = self._inbound_routes.find_run_receiver(self, subject)
        if receiver is None or not self.leafnode_permissions.may_name_replies_below(ack_prefix):
            return 0
        count, size = receiver.take_deliveries(ack_prefix, records, seqs, consumer_seq, num_pending)
        self.in_msgs += count
        self.in_bytes += size
        return int(count)

    def _traces_external(self) -> bool:
        tracing = self.router.tracing
        return tracing is not None and bool(tracing.dest)
