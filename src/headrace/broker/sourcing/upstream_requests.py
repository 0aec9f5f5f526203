"""Builds the requests of a mirror or source to its upstream: names, subjects, and the requests that set up a consumer.

Everything uses API subjects, so an upstream in this server and one behind another prefix (`external`) get the same
requests. Owns only the form of requests; when to send them and what follows is decided by the replicator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.broker.sourcing.consumer_ownership import ConsumerOwner
from headrace.broker.sourcing.handover import ConsumerAddress
from headrace.jetstream_api.configs import ConsumerConfig, StreamSource, to_public
from headrace.jetstream_api.encode import dumps
from headrace.jetstream_api.names import short_hash
from headrace.jetstream_api.times import SECOND_NS, format_time, parse_time_ns
from headrace.jetstream_api.validation import sourcing
from headrace.protocol import headers
from headrace.protocol.nuid import nuid

IDENTITY = b"Nats-Stream-Identity"
REQUIRED_API_LEVEL = b"Nats-Required-Api-Level"
_API_PREFIX = "$JS.API"
_ACK_WAIT_NS = 22 * 3600 * SECOND_NS
_CREATE_TIMEOUT_NS = 30 * SECOND_NS
_RESET_TIMEOUT_NS = 5 * SECOND_NS
#: High on purpose: for a server-managed consumer the flow-control window, counted in bytes, is the limit.
_MAX_ACK_PENDING = 65_536


class UpstreamRequest(NamedTuple):
    """A request, and how long to wait for its response."""

    subject: bytes
    header: bytes
    body: bytes
    timeout_ns: int


class StartPosition(NamedTuple):
    """Where to start: a sequence, else a time, else with everything."""

    seq: int = 0
    time_ns: int = 0


class Upstream:
    """Builds the requests of one mirror or source entry."""

    __slots__ = (
        "consumer",
        "consumer_base_name",
        "durable_name",
        "entry",
        "index_name",
        "is_mirror",
        "owner",
        "stream_name",
        "upstream_name",
    )

    def __init__(
        self, entry: StreamSource, owner: ConsumerOwner, *, is_mirror: bool, sole_entry: bool
    ) -> None:
        """`owner`: the stream that copies; `sole_entry`: no other entry of it has the same upstream."""
        self.entry = entry
        self.stream_name = entry.name
        self.consumer = entry.consumer
        #: The name of the configured consumer; "" if the consumer is ephemeral.
        self.durable_name = entry.consumer.name if entry.consumer is not None else ""
        self.is_mirror = is_mirror
        self.index_name = sourcing.make_index_name(entry)
        self.upstream_name = sourcing.make_upstream_name(entry)
        self.owner = owner
        ident = short_hash(" ".join(filter(None, (owner.stream, owner.account, owner.domain))))
        if is_mirror:
            self.consumer_base_name = "JS_MIRROR_" + ident
        else:
            self.consumer_base_name = "JS_SRC_" + short_hash(
                ident if sole_entry else f"{ident} {self.index_name}"
            )

    # Subjects

    def _make_api_subject(self, tail: str) -> bytes:
        return f"{self._api_prefix}.{tail}".replace("..", ".").encode()

    @property
    def _api_prefix(self) -> str:
        external = self.entry.external
        return external.api if external is not None and external.api else _API_PREFIX

    @property
    def is_user_managed(self) -> bool:
        """Whether the user creates the consumer, and only its own configuration says what it filters."""
        return self.consumer is not None and not self.consumer.server_managed

    @property
    def reachability_subject(self) -> bytes:
        """An API subject of the upstream: without a subscriber there, the upstream is not reachable."""
        return self._make_api_subject(f"CONSUMER.CREATE.{self.stream_name}")

    @property
    def consumer_key(self) -> tuple[bytes, str]:
        """The consumer that the configuration names, at its server: two replicators must not read through one."""
        return self.reachability_subject, self.durable_name

    def _make_deliver_subject(self, token: str) -> str:
        kind = "M" if self.is_mirror else "S"
        external = self.entry.external
        prefix = external.deliver if external is not None and external.deliver else "$JS"
        return f"{prefix}.{kind}.{token}"

    def get_stable_deliver_subject(self) -> str:
        """Return the deliver subject of a server-managed consumer: the configured one, or one that never changes."""
        consumer = self.consumer
        assert consumer is not None
        if consumer.deliver_subject:
            return consumer.deliver_subject
        return self._make_deliver_subject(short_hash(f"{self.consumer_base_name} {consumer.name}"))

    def get_filters(self) -> list[str]:
        """Return the filters of the consumer; [] for everything."""
        if self.entry.subject_transforms:
            return [each.src or ">" for each in self.entry.subject_transforms]
        return [self.entry.filter_subject] if self.entry.filter_subject else []

    def get_configured_start(self) -> StartPosition:
        """Return where a copy starts that has no position yet."""
        entry = self.entry
        if entry.opt_start_seq:
            return StartPosition(entry.opt_start_seq)
        return StartPosition(0, parse_time_ns(entry.opt_start_time) if entry.opt_start_time else 0)

    # Requests

    def make_create_request(
        self, start_position: StartPosition, identity: str, variant: int, *, within_limits: bool = False
    ) -> UpstreamRequest:
        """Make the request for a new ephemeral consumer; variants above 0 ask older servers for less and less.

        `within_limits` leaves what the upstream limits to the upstream.
        """
        is_oldest_variant = variant == self.compat_variants - 1
        name = f"{self.consumer_base_name}_{nuid()[:8]}" if is_oldest_variant else self.consumer_base_name
        config = self._make_consumer_config(start_position, name, self._make_deliver_subject(nuid()[:8]))
        config.ack_policy, config.ack_wait, config.max_deliver = "none", _ACK_WAIT_NS, 1
        config.inactive_threshold = 0 if within_limits else 10 * SECOND_NS
        config.max_ack_pending = -1 if within_limits else 0  # without acks a limit on them is an error
        config.direct, config.sourcing = True, not is_oldest_variant
        header_fields: list[tuple[bytes, bytes]] = []
        if not is_oldest_variant:
            with_identity = not self.is_mirror and variant == 0
            header_fields.append((REQUIRED_API_LEVEL, b"5" if with_identity else b"4"))
            if with_identity:
                header_fields.append((IDENTITY, identity.encode()))
        return self._make_request(config, header_fields)

    @property
    def compat_variants(self) -> int:
        """How many variants of the create request there are."""
        return 2 if self.is_mirror else 3

    def make_info_request(self) -> UpstreamRequest:
        """Make the request for the info of the durable consumer; it changes nothing."""
        assert self.consumer is not None
        subject = self._make_api_subject(f"CONSUMER.INFO.{self.stream_name}.{self.durable_name}")
        return UpstreamRequest(subject, b"", b"", _RESET_TIMEOUT_NS)

    def adopt(self, config: dict[str, Any]) -> UpstreamRequest:
        """Make the request that sets this stream as the owner of the durable consumer and changes nothing else."""
        assert self.consumer is not None
        owner_fields = self.owner.metadata(mirror=self.is_mirror)
        changed = {**config, "metadata": {**config.get("metadata", {}), **owner_fields}}
        body = {"stream_name": self.stream_name, "config": changed, "action": "update"}
        tail = f"CONSUMER.CREATE.{self.stream_name}.{self.durable_name}"
        if config.get("filter_subject"):
            tail += f".{config['filter_subject']}"
        return UpstreamRequest(self._make_api_subject(tail), b"", dumps(body), _CREATE_TIMEOUT_NS)

    def make_create_durable_request(
        self, start_position: StartPosition, *, within_limits: bool
    ) -> UpstreamRequest:
        """Make the request that creates the durable consumer of the configuration, if it does not exist.

        `within_limits` leaves what the upstream limits to the upstream.
        """
        assert self.consumer is not None
        config = self._make_consumer_config(
            start_position, self.durable_name, self.get_stable_deliver_subject()
        )
        config.durable_name, config.ack_policy, config.max_deliver = config.name, "flow_control", -1
        config.max_ack_pending = 0 if within_limits else _MAX_ACK_PENDING
        config.metadata = self.owner.metadata(mirror=self.is_mirror)
        return self._make_request(config, [], named=True)

    def _make_consumer_config(
        self, start_position: StartPosition, name: str, deliver_subject: str
    ) -> ConsumerConfig:
        config = ConsumerConfig(
            name=name,
            flow_control=True,
            deliver_subject=deliver_subject,
            idle_heartbeat=SECOND_NS,
            metadata=self.owner._replace(server="").metadata(mirror=self.is_mirror),
        )
        if start_position.seq:
            config.deliver_policy, config.opt_start_seq = "by_start_sequence", start_position.seq
        elif start_position.time_ns:
            config.deliver_policy, config.opt_start_time = (
                "by_start_time",
                format_time(start_position.time_ns),
            )
        filters = self.get_filters()
        if len(filters) == 1:
            config.filter_subject = filters[0]
        else:
            config.filter_subjects = filters
        return config

    def _make_request(
        self, config: ConsumerConfig, header_fields: list[tuple[bytes, bytes]], *, named: bool = False
    ) -> UpstreamRequest:
        tail = f"CONSUMER.CREATE.{self.stream_name}"
        if named or config.filter_subject:
            tail += f".{config.name}"
        if config.filter_subject:
            tail += f".{config.filter_subject}"
        action = "create" if named else ""
        body = {"stream_name": self.stream_name, "config": to_public(config), "action": action}
        header = headers.build(header_fields) if header_fields else b""
        return UpstreamRequest(self._make_api_subject(tail), header, dumps(body), _CREATE_TIMEOUT_NS)

    def make_reset_request(self, identity: str) -> UpstreamRequest:
        """Make the request that resets the durable consumer to its ack floor."""
        assert self.consumer is not None
        header_fields = [] if self.is_mirror else [(REQUIRED_API_LEVEL, b"5"), (IDENTITY, identity.encode())]
        subject = self._make_api_subject(f"CONSUMER.RESET.{self.stream_name}.{self.durable_name}")
        return UpstreamRequest(
            subject, headers.build(header_fields) if header_fields else b"", b"", _RESET_TIMEOUT_NS
        )

    def make_consumer_address(self, name: str) -> ConsumerAddress:
        """Return the address of a consumer of the upstream."""
        return ConsumerAddress(self._api_prefix.replace("..", ".").rstrip("."), self.stream_name, name)
