"""Configurations with the fields that nats-py's dataclasses lack.

Each extends nats-py's class, so it can be used wherever that one can. Unset fields are not sent, so that a server that
does not know them does not see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nats.js import api

__all__ = [
    "ConsumerConfig",
    "ConsumerInfo",
    "DeadLetter",
    "Placement",
    "PriorityPolicy",
    "StreamConfig",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
]

_NANOSECONDS = 1_000_000_000


@dataclass
class Placement(api.Placement):
    """Where a stream's replicas are placed; `preferred` is the server that should lead."""

    preferred: str | None = None


@dataclass
class StreamConsumerSource(api.StreamConsumerSource):
    """The durable consumer that a mirror or source reads from.

    Created by the user beforehand (`name` and `deliver_subject`; see `create_sourcing_consumer`), or, on servers that
    support it, by the sourcing server itself (`name` and `server_managed=True`).
    """

    name: str = ""
    deliver_subject: str | None = None  # type: ignore[assignment]
    server_managed: bool | None = None


@dataclass
class StreamSource(api.StreamSource):
    """An upstream of a mirror or source, for programs; `jetstream_api.configs.StreamSource` is the API's."""

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> StreamSource:
        consumer = resp.pop("consumer", None)
        source: StreamSource = super().from_response(resp)
        source.consumer = consumer and StreamConsumerSource.from_response(consumer)
        return source


@dataclass
class StreamSourceInfo(api.StreamSourceInfo):
    """How far a mirror or source is; `seq` is the last upstream sequence it has."""

    seq: int | None = None
    filter_subject: str | None = None
    external: api.ExternalStream | None = None
    subject_transforms: list[api.SubjectTransform] | None = None

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> StreamSourceInfo:
        cls._convert(resp, "external", api.ExternalStream)
        cls._convert(resp, "subject_transforms", api.SubjectTransform)
        return super().from_response(resp)


@dataclass
class StreamConfig(api.StreamConfig):
    """A stream's configuration: nats-py's, with all fields of its parts."""

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> StreamConfig:
        placement, mirror, sources = (resp.pop(part, None) for part in ("placement", "mirror", "sources"))
        config: StreamConfig = super().from_response(resp)
        config.placement = placement and Placement.from_response(placement)
        config.mirror = mirror and StreamSource.from_response(mirror)
        config.sources = sources and [StreamSource.from_response(source) for source in sources]
        return config


@dataclass
class StreamInfo(api.StreamInfo):
    """A stream's configuration and state."""

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> StreamInfo:
        config, mirror, sources = (resp.pop(part, None) for part in ("config", "mirror", "sources"))
        info: StreamInfo = super().from_response({**resp, "config": None})
        info.config = StreamConfig.from_response(config)
        info.mirror = mirror and StreamSourceInfo.from_response(mirror)
        info.sources = sources and [StreamSourceInfo.from_response(source) for source in sources]
        return info


class PriorityPolicy(StrEnum):
    """How a pull consumer with priority groups chooses among its clients."""

    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


@dataclass
class DeadLetter:
    """Where a consumer publishes messages that it gives up, and when: at `max_deliver`, after a term, or both."""

    subject: str
    on: Sequence[str] = ("max_deliver", "term")

    def as_dict(self) -> dict[str, object]:
        return {"subject": self.subject, "on": list(self.on)}


@dataclass
class ConsumerConfig(api.ConsumerConfig):
    """A consumer's configuration; durations are seconds, as everywhere in nats-py."""

    #: Limits of a single pull.
    max_batch: int | None = None
    max_expires: float | None = None
    max_bytes: int | None = None
    #: Clients of a pull consumer in groups.
    priority_groups: list[str] | None = None
    priority_policy: PriorityPolicy | None = None
    priority_timeout: float | None = None
    #: Order per key: messages of one subject, or of chosen tokens of it, that may be unacknowledged at a time.
    max_ack_pending_per_subject: int | None = None
    key_tokens: str | None = None
    #: A subject, or a `DeadLetter`.
    dead_letter: str | DeadLetter | None = None

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> ConsumerConfig:
        if isinstance(dead_letter := resp.get("dead_letter"), dict):
            resp["dead_letter"] = DeadLetter(**dead_letter)
        for name in ("max_expires", "priority_timeout"):
            cls._convert_nanoseconds(resp, name)
        config: ConsumerConfig = super().from_response(resp)
        return config

    def as_dict(self) -> dict[str, object]:
        result = super().as_dict()
        for name in ("max_expires", "priority_timeout"):
            if (seconds := getattr(self, name)) is not None:
                result[name] = round(seconds * _NANOSECONDS)
        if isinstance(self.dead_letter, str):
            result["dead_letter"] = {"subject": self.dead_letter}
        elif self.dead_letter is not None:
            result["dead_letter"] = self.dead_letter.as_dict()
        return result


@dataclass
class ConsumerInfo(api.ConsumerInfo):
    """A consumer's configuration and state."""

    #: Keys with messages that wait for an ack; None if the consumer keeps no order per key.
    num_blocked_subjects: int | None = None

    @classmethod
    def from_response(cls, resp: dict[str, Any]) -> ConsumerInfo:
        config = resp.pop("config", None)
        info: ConsumerInfo = super().from_response({**resp, "config": None})
        info.config = ConsumerConfig.from_response(config)
        return info
