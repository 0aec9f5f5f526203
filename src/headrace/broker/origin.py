"""What a mirror or source says to its origin: names, subjects, and the requests that set up a consumer there.

Everything goes through the API's subjects, so an origin in this server and one behind another prefix (`external`) are
asked in the same words. Owns the wording only; when to ask and what follows is the link's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.api import origins
from headrace.api.configs import ConsumerConfig, StreamSource, shown
from headrace.api.encode import dumps
from headrace.api.names import short_hash
from headrace.api.times import SECOND, text
from headrace.broker.advisories import nuid
from headrace.broker.ownership import Owner
from headrace.protocol import headers

IDENTITY = b"Nats-Stream-Identity"
LEVEL = b"Nats-Required-Api-Level"
_API = "$JS.API"
_FOREVER = 22 * 3600 * SECOND
_CREATE_WAIT_NS = 30 * SECOND
_RESET_WAIT_NS = 5 * SECOND
#: With a durable consumer of ours the flow-control window, counted in bytes, is what limits; not this.
_PENDING_MAX = 65_536


class Ask(NamedTuple):
    """A request, and how long to wait for its answer."""

    subject: bytes
    header: bytes
    body: bytes
    wait_ns: int


class Start(NamedTuple):
    """Where to begin: a sequence, else a time, else with everything."""

    seq: int = 0
    time_ns: int = 0


class Origin:
    """How one entry of a stream's configuration speaks to its origin."""

    __slots__ = ("base_name", "entry", "index", "mirror", "owner", "place")

    def __init__(self, entry: StreamSource, owner: Owner, *, mirror: bool, alone: bool) -> None:
        """`owner`: the stream that copies; `alone`: no other entry of it has the same origin."""
        self.entry = entry
        self.mirror = mirror
        self.index = origins.index_name(entry)
        self.place = origins.origin_name(entry)
        self.owner = owner
        ident = short_hash(" ".join(filter(None, (owner.stream, owner.account, owner.domain))))
        if mirror:
            self.base_name = "JS_MIRROR_" + ident
        else:
            self.base_name = "JS_SRC_" + short_hash(ident if alone else f"{ident} {self.index}")

    # Subjects

    def _subject(self, tail: str) -> bytes:
        external = self.entry.external
        prefix = external.api if external is not None and external.api else _API
        return f"{prefix}.{tail}".replace("..", ".").encode()

    @property
    def road(self) -> bytes:
        """A request subject of the origin: while nobody listens there, the way to it is down."""
        return self._subject(f"CONSUMER.CREATE.{self.entry.name}")

    def _deliver_subject(self, token: str) -> str:
        kind = "M" if self.mirror else "S"
        external = self.entry.external
        prefix = external.deliver if external is not None and external.deliver else "$JS"
        return f"{prefix}.{kind}.{token}"

    def stable_subject(self) -> str:
        """Where a consumer that this server manages delivers to: configured, or always the same."""
        consumer = self.entry.consumer
        assert consumer is not None
        if consumer.deliver_subject:
            return consumer.deliver_subject
        return self._deliver_subject(short_hash(f"{self.base_name} {consumer.name}"))

    def filters(self) -> list[str]:
        """What the consumer is asked to deliver; [] for everything."""
        if self.entry.subject_transforms:
            return [each.src or ">" for each in self.entry.subject_transforms]
        return [self.entry.filter_subject] if self.entry.filter_subject else []

    # Requests

    def create(self, start: Start, identity: str, form: int) -> Ask:
        """A new ephemeral consumer; forms above 0 ask older servers with less and less."""
        plain = form == self.forms - 1
        name = f"{self.base_name}_{nuid()[:8]}" if plain else self.base_name
        config = self._base(start, name, self._deliver_subject(nuid()[:8]))
        config.ack_policy, config.ack_wait, config.max_deliver = "none", _FOREVER, 1
        config.inactive_threshold, config.direct, config.sourcing = 10 * SECOND, True, not plain
        pairs: list[tuple[bytes, bytes]] = []
        if not plain:
            with_identity = not self.mirror and form == 0
            pairs.append((LEVEL, b"5" if with_identity else b"4"))
            if with_identity:
                pairs.append((IDENTITY, identity.encode()))
        return self._create(config, pairs)

    @property
    def forms(self) -> int:
        """How many forms of `create` there are."""
        return 2 if self.mirror else 3

    def look(self) -> Ask:
        """What the durable consumer is like; this changes nothing."""
        assert self.entry.consumer is not None
        subject = self._subject(f"CONSUMER.INFO.{self.entry.name}.{self.entry.consumer.name}")
        return Ask(subject, b"", b"", _RESET_WAIT_NS)

    def adopt(self, config: dict[str, Any]) -> Ask:
        """The durable consumer as it is, with this stream as its owner."""
        assert self.entry.consumer is not None
        about = self.owner.metadata(mirror=self.mirror)
        changed = {**config, "metadata": {**config.get("metadata", {}), **about}}
        body = {"stream_name": self.entry.name, "config": changed, "action": "update"}
        tail = f"CONSUMER.CREATE.{self.entry.name}.{self.entry.consumer.name}"
        if config.get("filter_subject"):
            tail += f".{config['filter_subject']}"
        return Ask(self._subject(tail), b"", dumps(body), _CREATE_WAIT_NS)

    def create_durable(self, start: Start) -> Ask:
        """The durable consumer that the configuration names, unless there is one."""
        assert self.entry.consumer is not None
        config = self._base(start, self.entry.consumer.name, self.stable_subject())
        config.durable_name, config.ack_policy, config.max_deliver = config.name, "flow_control", -1
        config.max_ack_pending = _PENDING_MAX
        config.metadata = self.owner.metadata(mirror=self.mirror)
        return self._create(config, [], named=True)

    def _base(self, start: Start, name: str, deliver_subject: str) -> ConsumerConfig:
        config = ConsumerConfig(
            name=name,
            flow_control=True,
            deliver_subject=deliver_subject,
            idle_heartbeat=SECOND,
            metadata=self.owner._replace(server="").metadata(mirror=self.mirror),
        )
        if start.seq:
            config.deliver_policy, config.opt_start_seq = "by_start_sequence", start.seq
        elif start.time_ns:
            config.deliver_policy, config.opt_start_time = "by_start_time", text(start.time_ns)
        filters = self.filters()
        if len(filters) == 1:
            config.filter_subject = filters[0]
        else:
            config.filter_subjects = filters
        return config

    def _create(
        self, config: ConsumerConfig, pairs: list[tuple[bytes, bytes]], *, named: bool = False
    ) -> Ask:
        tail = f"CONSUMER.CREATE.{self.entry.name}"
        if named or config.filter_subject:
            tail += f".{config.name}"
        if config.filter_subject:
            tail += f".{config.filter_subject}"
        action = "create" if named else ""
        body = {"stream_name": self.entry.name, "config": shown(config), "action": action}
        header = headers.build(pairs) if pairs else b""
        return Ask(self._subject(tail), header, dumps(body), _CREATE_WAIT_NS)

    def reset(self, identity: str) -> Ask:
        """The durable consumer goes back to what was acknowledged."""
        assert self.entry.consumer is not None
        pairs = [] if self.mirror else [(LEVEL, b"5"), (IDENTITY, identity.encode())]
        subject = self._subject(f"CONSUMER.RESET.{self.entry.name}.{self.entry.consumer.name}")
        return Ask(subject, headers.build(pairs) if pairs else b"", b"", _RESET_WAIT_NS)

    def delete(self, consumer: bytes) -> bytes:
        """The subject that deletes a consumer."""
        return self._subject(f"CONSUMER.DELETE.{self.entry.name}.{consumer.decode()}")
