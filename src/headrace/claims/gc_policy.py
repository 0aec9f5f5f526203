"""Decides when a claim may be deleted, from its record, the time and the floors. No other module decides that.

A claim is kept until every consumer concerned has acknowledged its message, or the message has left its streams, plus
the retention; at `max_age` it ends unless it is still needed, and at `max_age` + `grace_period` in any case (not
before clocks that differ by `clock_skew` agree). A claim that several messages may reference is kept until then. The
time of release is the server's, or the reader's if that is later: the retention runs on the server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.claims.ack_floors import Floors
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.registry import ClaimEntry
from headrace.errors import RequestError

RECHECK_S = 30.0


@dataclass(frozen=True, slots=True)
class GcDecision:
    """`event` is expired or collected if the claim may be deleted, otherwise "": check again in `wait_s`, because of
    `reason`. `unread_by` names a consumer that needed a claim which ends by its age.
    """

    event: str
    wait_s: float = 0
    reason: str = ""
    unread_by: str = ""


async def decide(entry: ClaimEntry, config: ClaimConfig, now_ns: int, floors: Floors) -> GcDecision:
    """Decide whether a claim may be deleted now; if not, say when to check again and why."""
    ttl = config.ttl
    end_ns = entry.expires_ns + config.end_grace_s * SECOND_NS
    if now_ns >= end_ns:
        unread_by = await _find_unread(entry, floors)
        return GcDecision("expired", reason="past max_age and grace_period", unread_by=unread_by)
    if entry.state == "released" and ttl.delete_after_read and not entry.shared:
        released_ns = max(entry.updated_ns, entry.released_ns)
        retained_until_ns = released_ns + ttl.retention_after_read * SECOND_NS
        if now_ns < retained_until_ns:
            return _defer(retained_until_ns - now_ns, "retention_after_read")
        blocker = await _find_blocker(entry, floors)
        if not blocker:
            return GcDecision("collected", reason="all consumers have read it")
        # Check less and less often: a consumer that lags releases the claim itself if it uses this package.
        pause_ns = max(round(RECHECK_S * SECOND_NS), now_ns - released_ns)
        limit_ns = entry.expires_ns if now_ns < entry.expires_ns else end_ns
        return _defer(min(pause_ns, max(limit_ns - now_ns, SECOND_NS)), f"{blocker} still needs it")
    if now_ns < entry.expires_ns:
        return _defer(entry.expires_ns - now_ns, "max_age")
    if entry.state == "pending" or not entry.places or entry.shared:
        return _defer(end_ns - now_ns, "it may have been published")
    blocker = await _find_blocker(entry, floors)
    if blocker:
        return _defer(end_ns - now_ns, f"{blocker} still needs it")
    return GcDecision("expired", reason="past max_age")


async def _find_blocker(entry: ClaimEntry, floors: Floors) -> str:
    for stream, (seq, subject) in entry.places.items():
        name = await floors.find_blocking_consumer(stream, subject, seq)
        if name:
            return f"{stream}/{name}"
    return ""


async def _find_unread(entry: ClaimEntry, floors: Floors) -> str:
    """Return a consumer that has not read the claim, also if its message expired a moment ago; "" if that is unknown."""
    for stream, (seq, subject) in entry.places.items():
        try:
            name = await floors.find_unread(stream, subject, seq)
        except (RequestTimeout, RequestError):
            continue  # the claim ends in any case
        if name:
            return f"{stream}/{name}"
    return ""


def _defer(wait_ns: int, reason: str) -> GcDecision:
    return GcDecision("", wait_ns / SECOND_NS, reason)
