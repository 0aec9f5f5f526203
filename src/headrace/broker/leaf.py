"""One leafnode connection without a socket: two servers that let each other have what they want.

Owns the handshake, the interest of the other side as entries of the hub, and what becomes of a message that arrives.
Both ends are here: the one that dialled (by default a spoke) and the one that was dialled. Invariants: a message never
goes back over the connection it came by; everything the other side wants is in the hub, and nothing after `close`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.broker.draining import DrainingPeer
from headrace.broker.leaf_interest import Leaves, Told
from headrace.broker.leaf_owner import LeafOwner, Local
from headrace.broker.leaf_routes import Fan, FarInterest
from headrace.broker.leaf_rules import FREE, OWN, Rules, heard, own, rules_for, told
from headrace.broker.session import Identity
from headrace.errors import ProtocolError
from headrace.kernel import EXACT, Lane, Route
from headrace.probes import probe
from headrace.protocol import frames, leaf, subjects
from headrace.protocol.bodies import UNREADABLE

UNAUTHORIZED = "Authorization Violation"
SAME_CLUSTER = "remote leafnode has same cluster name"
WRONG_PORT = "attempted to connect to wrong port"
CLIENT_HERE = "attempted to connect to leaf node port"
REPLACED = "Duplicate Remote LeafNode Connection"
WAYS_MAX = 4096
PROTOCOL = 1
#: How long a server that dialled waits before it tries again, after what would only happen again.
LOOP_DELAY_S = 30.0
_DELAYS = (("Loop detected", LOOP_DELAY_S), (SAME_CLUSTER, 30.0), ("Permissions Violation", 30.0))


class Way(NamedTuple):
    """Where messages of one subject go that come over one connection; good as long as `route.live`."""

    route: Route
    local: Route | None
    sinks: list[Any]
    lanes: list[Lane]


class LeafSession(DrainingPeer):
    """One connection. `spoke` is whether this side joins the other's system; `cluster` and `domain` are the other's."""

    __slots__ = (
        "_deny_exports",
        "_deny_imports",
        "_hub_role",
        "_info",
        "_joined",
        "_leaves",
        "_local",
        "_ways",
        "activity",
        "cid",
        "cluster",
        "delay_s",
        "dialled",
        "domain",
        "far",
        "hub",
        "identity",
        "incoming",
        "lang",
        "name",
        "outgoing",
        "owner",
        "pings_out",
        "remote_account",
        "spoke",
        "told",
        "version",
    )

    def __init__(
        self,
        leaves: Leaves,
        owner: LeafOwner,
        cid: int,
        local: Local,
        *,
        dialled: bool,
        hub_role: bool = False,
        deny_imports: Sequence[bytes] = (),
        deny_exports: Sequence[bytes] = (),
    ) -> None:
        """`dialled`: we are the client side. `hub_role`: and yet the other side joins us."""
        super().__init__(leaves.hub.table)
        self._leaves, self.hub = leaves, leaves.hub
        self.owner, self.cid, self._local = owner, cid, local
        self.dialled, self._hub_role = dialled, hub_role
        self._deny_imports, self._deny_exports = tuple(deny_imports), tuple(deny_exports)
        self.spoke = dialled and not hub_role
        self.verbose = self.pedantic = self.echo = False
        self.far: dict[tuple[bytes, bytes | None], FarInterest] = {}
        self.told = Told(self)
        self.incoming = Rules(deny=self._deny_imports)
        self.outgoing = Rules(deny=self._deny_exports)
        self.identity: Identity | None = None
        self.name = self.cluster = self.domain = self.version = self.remote_account = ""
        self.lang = "leafnode"
        self.delay_s = 0.0
        self.activity = self.pings_out = 0
        self._joined = False
        self._info: dict[str, Any] = {}
        self._ways: dict[bytes | tuple[bytes, ...], Way] = {}

    @property
    def account(self) -> str:
        return self._leaves.account

    @property
    def other_urls(self) -> list[str]:
        """Where else the other side can be dialled, as it says."""
        found = self._info.get("leafnode_urls")
        return [url for url in found if isinstance(url, str)] if isinstance(found, list) else []

    # The handshake, client side

    def on_info(self, body: bytes) -> None:
        """The first one is answered by CONNECT; later ones tell permissions and that all is well."""
        if not self.dialled:
            return  # only asked for where compression is negotiated, which we never offer
        fields = _object(body)
        first = not self._info
        if first and not (fields.get("client_id") and "leafnode_urls" in fields):
            raise ProtocolError(WRONG_PORT)
        self._info = self._info | fields
        if first:
            self.name = str(fields.get("server_name") or fields.get("server_id") or "")
            self.domain, self.cluster = str(fields.get("domain") or ""), str(fields.get("cluster") or "")
            self.version = str(fields.get("version") or "")
            self.headers = bool(fields.get("headers"))
            self.owner.secure(asked=bool(fields.get("tls_required")))
            return
        self.remote_account = str(fields.get("remote_account") or self.remote_account)
        self._learn(fields)
        if fields.get("connect_info"):
            self._join()

    def greet(self) -> None:
        """Say who we are; called again when TLS was to be set up first."""
        local, info = self._local, self._info
        fields: dict[str, Any] = {
            "version": local.version,
            **self.owner.credentials(str(info.get("nonce") or "")),
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
            self._join()

    def _learn(self, fields: Mapping[str, Any]) -> None:
        """The other side tells what it lets us do."""
        if "export" in fields or "import" in fields:
            self.outgoing = heard(fields.get("export")).without(self._deny_exports)
            self.incoming = heard(fields.get("import")).without(self._deny_imports)
            if self._joined:
                self._close_in()

    # The handshake, server side

    def on_connect(self, body: bytes) -> None:
        """Somebody says who it is."""
        if self.dialled or self.ready:
            raise ProtocolError(None)
        fields = _object(body)
        if fields.get("lang"):
            raise ProtocolError(CLIENT_HERE)
        identity = self.owner.authenticate(fields)
        if identity is None:
            raise ProtocolError(UNAUTHORIZED)
        self.identity = identity
        self._bind(self.owner.leaves(identity.account))
        self.spoke = bool(fields.get("is_hub"))
        self.headers = bool(fields.get("headers"))
        for name in ("name", "cluster", "domain", "version", "remote_account"):
            setattr(self, name, str(fields.get(name) or ""))
        publish, subscribe = rules_for(identity.permissions)
        deny = fields.get("deny_pub")
        self.incoming = publish
        self.outgoing = subscribe.without(
            each.encode() for each in (deny if isinstance(deny, list) else ()) if isinstance(each, str)
        )
        self._replace_stale()
        self.send(self.owner.info(self.account, told(subscribe), told(publish)))
        self._join()

    def _bind(self, leaves: Leaves) -> None:
        """Belong to an account."""
        self._leaves, self.hub, self.table = leaves, leaves.hub, leaves.hub.table

    def _replace_stale(self) -> None:
        """The same server dialled again before we noticed that it was gone."""
        for other in tuple(self._leaves.sessions):
            same = (other.name, other.cluster) == (self.name, self.cluster)
            if same and self.name and not other.dialled and other.remote_account == self.remote_account:
                probe("a leafnode dials before it is missed")
                other.owner.fail(REPLACED)

    # Both

    def _join(self) -> None:
        """From now on interest and messages go to and fro."""
        if self._joined:
            return
        if self.dialled and self.cluster and any(s.cluster == self.cluster for s in self._leaves.sessions):
            self._loop()  # joined with it already, the other way round or by another name
        self._joined = self.ready = True
        self._close_in()
        self._leaves.join(self)
        self.owner.joined()

    def _close_in(self) -> None:
        """Each side answers for its own JetStream; a request for ours is not sent away."""
        self.outgoing = self.outgoing.without(OWN)
        self.incoming = self.incoming.without(OWN)
        domain = self._local.domain
        if domain and domain != self.domain:
            self.outgoing = self.outgoing.without([f"$JS.{domain}.API.>".encode()])
        self.hub.forget_routes()

    def close(self) -> None:
        """The connection is gone, and with it what the other side wanted."""
        self.ready = False
        if self._joined:
            self._joined = False
            self._leaves.part(self)
        gone, self.far = self.far, {}
        self._ways.clear()
        for entry in gone.values():
            self.hub.unsubscribe_far(entry)
        self.drained()

    def on_ping(self) -> None:
        self.activity += 1
        self.send(frames.PONG)

    def on_pong(self) -> None:
        self.pings_out = 0

    def on_error(self, text: str) -> None:
        """The other side complains; it closes next."""
        self.delay_s = next((delay for start, delay in _DELAYS if start in text), 0.0)
        self.owner.complained(text)

    # Interest

    def may_tell(self, pattern: bytes) -> bool:
        """Whether the other side may know that we want this."""
        return self.incoming.cover(pattern)

    def may_send(self, subject: bytes) -> bool:
        """Whether messages on this subject may go to the other side."""
        return subject.startswith(FREE) or self.outgoing.permit(subject)

    def on_interest(self, subject: bytes, queue: bytes | None, weight: int) -> None:
        """The other side wants something, or a queue group there has grown or shrunk."""
        self._require_joined()
        self.activity += 1
        if subject == self._leaves.loop_subject:
            self._loop()
            return
        if not subjects.valid(subject):
            self.send(frames.error("Invalid Subscription"))
            return
        if subjects.literal(subject) and not self.may_send(subject) and not own(subject):
            self._violated("Subscription", subject)
            return
        entry = self.far.get((subject, queue))
        if entry is None and not self.owner.may_want(len(self.far)):
            self.send(frames.error("maximum subscriptions exceeded"))
        elif entry is None:
            entry = self.far[(subject, queue)] = FarInterest(self, subject, queue, weight)
            self.hub.subscribe_far(entry)
        elif entry.weight != weight:
            self.hub.weigh_far(entry, weight)

    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None:
        """The other side wants it no more."""
        self._require_joined()
        self.activity += 1
        entry = self.far.pop((subject, queue), None)
        if entry is not None:
            self.hub.unsubscribe_far(entry)

    def _loop(self) -> None:
        """Our own mark came back: messages would go round for ever."""
        self.delay_s = LOOP_DELAY_S
        text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
        raise ProtocolError(text)

    def _violated(self, what: str, subject: bytes) -> None:
        """Where the other side decides what we may do we keep silent; else it should have known better."""
        if not self.spoke:
            raise ProtocolError(f'Permissions Violation for {what} to "{subject.decode("utf-8", "replace")}"')

    def _require_joined(self) -> None:
        if not self._joined:
            raise ProtocolError(UNAUTHORIZED)

    # Messages

    def carry(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        """Send a message across."""
        if header and not self.headers:
            header = b""
        self.out += leaf.message(subject, reply, queues, header, payload)
        self.out_msgs += 1
        self.out_bytes += len(header) + len(payload)
        self.touch()

    def carry_run(self, data: bytes, count: int, size: int) -> None:
        """Send messages that are encoded already."""
        self.out += data
        self.out_msgs += count
        self.out_bytes += size
        self.touch()

    def on_message(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        """A message came across: hand it to those who want it here, and beyond."""
        if not self._joined:
            raise ProtocolError(UNAUTHORIZED)
        self.in_msgs += 1
        self.in_bytes += len(header) + len(payload)
        key = subject if not queues else (subject, *queues)
        way = self._ways.get(key)
        if way is None or not way.route.live:
            if not subjects.whole(subject):
                return
            if not self.incoming.admit(subject):
                if not own(subject):
                    self._violated("Publish", subject)
                return
            way = self._way(subject, queues)
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            self._ways[key] = way
        shown = subject
        if b"@" in reply:
            reply, shown = leaf.split_shown(reply)
            shown = shown if subjects.whole(shown) else subject
        if way.local is not None:
            self.table.send(way.local, shown, reply, header, payload)
        for sink in way.sinks:
            sink.offer(self, shown, reply, header, payload)
        if way.lanes:
            # Whatever it shows, nobody stores under a subject that it may not publish to.
            under = shown if shown is subject or self.incoming.permit(shown) else subject
            for lane in way.lanes:
                lane.offer(self, under, reply, header, payload)

    def _way(self, subject: bytes, queues: Collection[bytes]) -> Way:
        route = self.hub.route(subject)
        groups = [group for group in route.groups if group[0].queue in queues]
        sinks: list[Any] = []
        lanes = [sink for sink in route.sinks if isinstance(sink, Lane)]
        for sink in route.sinks:
            onward = sink.beyond(self, queues) if isinstance(sink, Fan) else sink
            if onward is not None and not isinstance(sink, Lane):
                sinks.append(onward)
        local = Route(subject, EXACT, route.plain, groups, []) if route.plain or groups else None
        return Way(route, local, sinks, lanes)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        raise ProtocolError(None) from None
    if not isinstance(found, dict):
        raise ProtocolError(None)
    return {str(key).lower(): value for key, value in found.items()}
