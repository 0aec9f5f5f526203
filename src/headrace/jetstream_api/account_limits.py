"""Limits of an account and of the server, and current usage, as validation needs them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.errors import ApiError

#: The tier of streams with one replica, the only one that this server uses.
TIER = "R1"


class JetStreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the account, then of the server; -1 or 0 means none."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False

    server_memory: int = -1
    server_storage: int = -1
    server_ack_pending: int = 0
    server_request_batch: int = 0
    server_duplicate_window: int = 0

    #: The limits of each tier ("R1", "R3") if the account has tiers; those above are of the tier of this server, R1.
    tiers: Mapping[str, JetStreamLimits] = {}

    @property
    def lacks_tier(self) -> bool:
        """Whether the account has tiers, but none for streams with one replica."""
        return bool(self.tiers) and TIER not in self.tiers


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the account's other streams use: their number, and the sums of their `max_bytes` by storage."""

    streams: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0


NO_LIMITS = JetStreamLimits()
NO_USAGE = Usage()


def check_reservation(config: StreamConfig, limits: JetStreamLimits, usage: Usage) -> None:
    """Reject a stream whose `max_bytes` no longer fit, or that allows more consumers than the account."""
    if limits.lacks_tier:
        raise ApiError.NO_LIMITS()
    if 0 < limits.max_consumers < config.max_consumers:
        raise ApiError.MAXIMUM_CONSUMERS_LIMIT()
    requested = config.max_bytes if config.max_bytes >= 0 else 1
    if config.storage == "memory":
        caps, reserved, api_error = (
            (limits.max_memory, limits.server_memory),
            usage.reserved_memory,
            ApiError.MEMORY_RESOURCES_EXCEEDED,
        )
    else:
        caps, reserved, api_error = (
            (limits.max_storage, limits.server_storage),
            usage.reserved_storage,
            ApiError.STORAGE_RESOURCES_EXCEEDED,
        )
    if any(cap >= 0 and requested > cap - reserved for cap in caps):
        raise api_error()


def check_stream_bytes(config: StreamConfig, limits: JetStreamLimits) -> None:
    """Reject a stream without `max_bytes` where they are required, or with more than one stream may have."""
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise ApiError.STREAM_MAX_BYTES_REQUIRED()
    memory = config.storage == "memory"
    cap = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
    if 0 < cap < config.max_bytes:
        raise ApiError.STREAM_MAX_STREAM_BYTES_EXCEEDED()
