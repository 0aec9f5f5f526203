"""Configurations of streams and consumers as typed values, with the names, order and zero rules of their JSON.

A decoded value has what the client sent, and zero where it sent nothing; `validation.streams` and
`validation.consumers` turn it into the configuration that is stored. Configurations are shared freely, so nobody
changes one in place: use `copy_config` and change the copy. Must not know rules between fields.
"""

from __future__ import annotations

import copy as _copy
from typing import Annotated, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from headrace.jetstream_api.encode import dumps, to_plain
from headrace.jetstream_api.field_types import (
    AckPolicy,
    Compression,
    DeliverPolicy,
    Discard,
    Duration,
    Int,
    Int32,
    Int64,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    Retention,
    Storage,
    Time,
    Uint64,
)

Kind = TypeVar("Kind", bound=msgspec.Struct)


class ApiStruct(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of every typed value that is decoded from JSON; `GO` is nats-server's name of the type."""

    GO: ClassVar[str] = ""
    ALWAYS: ClassVar[frozenset[str]] = frozenset()


class Placement(ApiStruct):
    """Where a stream's replicas are placed, as in the API. `client.configs.Placement` is for programs."""

    GO: ClassVar[str] = "server.Placement"

    cluster: str = ""
    tags: list[str] = []
    preferred: str = ""


class External(ApiStruct):
    """Where the API of an upstream in another account or domain is found."""

    GO: ClassVar[str] = "server.ExternalStream"
    ALWAYS: ClassVar[frozenset[str]] = frozenset({"api", "deliver"})

    api: str = ""
    deliver: str = ""


class SubjectTransform(ApiStruct):
    GO: ClassVar[str] = "server.SubjectTransformConfig"
    ALWAYS: ClassVar[frozenset[str]] = frozenset({"src", "dest"})

    src: str = ""
    dest: str = ""


class RePublish(ApiStruct):
    GO: ClassVar[str] = "server.RePublish"
    ALWAYS: ClassVar[frozenset[str]] = frozenset({"dest"})

    src: str = ""
    dest: str = ""
    headers_only: bool = False


class ConsumerLimits(ApiStruct):
    GO: ClassVar[str] = "server.StreamConsumerLimits"

    inactive_threshold: Duration = 0
    max_ack_pending: Int = 0


class StreamConsumerSource(ApiStruct):
    """The durable consumer upstream that a mirror or source reads from.

    `client.configs.StreamConsumerSource` is for programs.
    """

    GO: ClassVar[str] = "server.StreamConsumerSource"

    name: str = ""
    server_managed: bool = False
    deliver_subject: str = ""


Transforms = Annotated[list[SubjectTransform], Meta(extra={"go": "[]server.SubjectTransformConfig"})]


class StreamSource(ApiStruct):
    """What a mirror, or one of a stream's sources, copies and from where."""

    GO: ClassVar[str] = "server.StreamSource"
    ALWAYS: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str = ""
    opt_start_seq: Uint64 = 0
    opt_start_time: Time | None = None
    filter_subject: str = ""
    subject_transforms: Transforms = []
    external: External | None = None
    consumer: StreamConsumerSource | None = None


Sources = Annotated[list[StreamSource | None], Meta(extra={"go": "[]*server.StreamSource"})]


class StreamConfig(ApiStruct):
    """A stream's configuration, as in the API: times in nanoseconds. `client.configs.StreamConfig` is for programs."""

    GO: ClassVar[str] = "server.StreamConfig"
    ALWAYS: ClassVar[frozenset[str]] = frozenset(
        {
            "name",
            "retention",
            "max_consumers",
            "max_msgs",
            "max_bytes",
            "max_age",
            "max_msgs_per_subject",
            "discard",
            "storage",
            "num_replicas",
            "compression",
            "allow_direct",
            "mirror_direct",
            "sealed",
            "deny_delete",
            "deny_purge",
            "allow_rollup_hdrs",
            "consumer_limits",
            "allow_msg_ttl",
        }
    )

    name: str = ""
    description: str = ""
    subjects: list[str] = []
    retention: Retention = "limits"
    max_consumers: Int = 0
    max_msgs: Int64 = 0
    max_bytes: Int64 = 0
    max_age: Duration = 0
    max_msgs_per_subject: Int64 = 0
    max_msg_size: Int32 = 0
    discard: Discard = "old"
    storage: Storage = "file"
    num_replicas: Int = 0
    no_ack: bool = False
    duplicate_window: Duration = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: Sources = []
    compression: Compression = "none"
    first_seq: Uint64 = 0
    subject_transform: SubjectTransform | None = None
    republish: RePublish | None = None
    allow_direct: bool = False
    mirror_direct: bool = False
    discard_new_per_subject: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    consumer_limits: ConsumerLimits = msgspec.field(default_factory=ConsumerLimits)
    allow_msg_ttl: bool = False
    # From the TTL specification, unknown to nats-server: returned only to clients that use it, so None until one sent it.
    subject_delete_markers: bool | None = None
    subject_delete_marker_ttl: Duration = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = "default"
    allow_batched: bool = False
    metadata: dict[str, str] = {}


class DeadLetter(ApiStruct):
    """Where a consumer publishes messages that it gives up, and when. `client.configs.DeadLetter` is for programs."""

    GO: ClassVar[str] = "server.DeadLetterConfig"
    ALWAYS: ClassVar[frozenset[str]] = frozenset({"subject", "on"})

    subject: str = ""
    on: list[str] = []


class ConsumerConfig(ApiStruct):
    """A consumer's configuration, as in the API: times in nanoseconds. `client.configs.ConsumerConfig` is for programs."""

    GO: ClassVar[str] = "server.ConsumerConfig"
    ALWAYS: ClassVar[frozenset[str]] = frozenset(
        {"deliver_policy", "ack_policy", "replay_policy", "num_replicas"}
    )

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = "all"
    opt_start_seq: Uint64 = 0
    opt_start_time: Time | None = None
    ack_policy: AckPolicy = "none"
    ack_wait: Duration = 0
    max_deliver: Int = 0
    backoff: Annotated[list[Duration], Meta(extra={"go": "[]time.Duration"})] = []
    filter_subject: str = ""
    filter_subjects: list[str] = []
    replay_policy: ReplayPolicy = "instant"
    rate_limit_bps: Uint64 = 0
    sample_freq: str = ""
    max_waiting: Int = 0
    max_ack_pending: Int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: Int = 0
    max_expires: Duration = 0
    max_bytes: Int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = 0
    inactive_threshold: Duration = 0
    num_replicas: Int = 0
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: Time | None = None
    priority_groups: list[str] = []
    priority_policy: PriorityPolicy = "none"
    priority_timeout: Duration = 0
    # Unknown to nats-server, which refuses them.
    max_ack_pending_per_subject: Int = 0
    key_tokens: str = ""
    dead_letter: DeadLetter | None = None

    def get_filters(self) -> list[str]:
        """Return the filters from either field; an empty list means every subject."""
        return [self.filter_subject] if self.filter_subject else self.filter_subjects

    def is_push(self) -> bool:
        return bool(self.deliver_subject)


def copy_config(config: Kind) -> Kind:
    """Return a copy whose own fields may be set; lists, dicts and nested values are shared and must be replaced."""
    return _copy.copy(config)


def encode_config(config: ApiStruct) -> bytes:
    """Encode a configuration as JSON, as in responses and in the store."""
    return dumps(to_public(config))


def to_public(config: ApiStruct) -> dict[str, object]:
    """Return a configuration as a dict, in the order and with the omissions of its JSON."""
    out = to_plain(config)
    for choice, zero in (("persist_mode", "default"), ("priority_policy", "none")):
        if out.get(choice) == zero:
            del out[choice]
    return out
