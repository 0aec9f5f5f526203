"""The JetStream limits that an account's JWT grants, in tiers by the number of replicas or for all streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.auth.jwt import AccountClaims
from headrace.jetstream_api.account_limits import NO_LIMITS, TIER, JetStreamLimits


def make_jetstream_limits(claims: AccountClaims) -> JetStreamLimits | None:
    """Return the limits of an account; None if it may not use JetStream."""
    caps = claims.nats.limits
    if caps.tiered_limits:
        tiers = {name: _make_limits(values.get) for name, values in caps.tiered_limits.items()}
        return msgspec.structs.replace(tiers.get(TIER, NO_LIMITS), tiers=tiers)
    if not caps.mem_storage and not caps.disk_storage:
        return None
    return _make_limits(lambda name: getattr(caps, name))


def _make_limits(get_value: Callable[[str], Any]) -> JetStreamLimits:
    """Return the limits of an account or a tier; a value that is 0 or absent is no limit, except the storage."""

    def get_limit(name: str) -> int:
        return int(get_value(name) or -1)

    return JetStreamLimits(
        max_memory=int(get_value("mem_storage") or 0),
        max_storage=int(get_value("disk_storage") or 0),
        max_streams=get_limit("streams"),
        max_consumers=get_limit("consumer"),
        max_ack_pending=get_limit("max_ack_pending"),
        memory_max_stream_bytes=get_limit("mem_max_stream_bytes"),
        storage_max_stream_bytes=get_limit("disk_max_stream_bytes"),
        max_bytes_required=bool(get_value("max_bytes_required")),
    )
