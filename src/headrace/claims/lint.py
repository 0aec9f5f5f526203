"""Looks at a namespace beside its streams, its store and what others published, and says what will go wrong.

Errors lose claims or leak objects; warnings cost something or deserve a look. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.claims import namespaces
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.records import Malformed
from headrace.claims.stores import ObjectStore, StoreError
from headrace.claims.stores import lifecycle as lifecycles
from headrace.claims.wire import STREAM_MISSING, Wire
from headrace.errors import RequestError

_DEFAULT_ACK_WAIT_S = 30


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.about}: {self.text}"


async def lint(
    wire: Wire, config: ClaimConfig, store: ObjectStore, streams: Sequence[str] = ()
) -> list[Finding]:
    """Everything found about a namespace; `streams` are those that carry its references."""
    found = list(_alone(config))
    found += await _against_published(wire, config)
    found += await _store(config, store)
    for stream in streams:
        found += await _stream(wire, config, stream)
    return found


def _alone(config: ClaimConfig) -> Iterable[Finding]:
    if config.store.get("sync") is False:
        yield Finding(
            "warning", "claim_check.store.sync", "objects may be lost in a power cut after their publish"
        )
    if not config.enabled:
        yield Finding("warning", "claim_check.enabled", "large payloads are refused")


async def _against_published(wire: Wire, config: ClaimConfig) -> list[Finding]:
    about = f"namespace {config.namespace}"
    try:
        there = await namespaces.published(wire, config.namespace)
    except Malformed as error:
        return [Finding("error", about, f"its published configuration cannot be read: {error}")]
    if there is None:
        return []
    errors, warnings = namespaces.compare(there, config.published())
    return [Finding("error", about, text) for text in errors] + [
        Finding("warning", about, text) for text in warnings
    ]


async def _store(config: ClaimConfig, store: ObjectStore) -> list[Finding]:
    about = f"bucket {config.bucket}"
    try:
        if not await store.bucket_exists():
            return [Finding("error", about, "it does not exist; a producer that starts creates it")]
        if store.lifecycle is None:
            text = "it has no expiry rule of its own: run headrace claims collect --watch, or serve with --claims"
            return [Finding("warning", about, text)]
        if await lifecycles.is_right(store.lifecycle, config.namespace, config.lifecycle_days):
            return []
        text = f"its lifecycle rule for {config.namespace}/ is missing or not {config.lifecycle_days} days"
        return [Finding("error", about, text)]
    except StoreError as error:
        return [Finding("error", about, f"it cannot be reached: {error}")]


async def _stream(wire: Wire, config: ClaimConfig, stream: str) -> list[Finding]:
    about = f"stream {stream}"
    try:
        info = (await wire.api(f"STREAM.INFO.{stream}"))["config"]
    except RequestError as error:
        if error.err_code == STREAM_MISSING:
            return [Finding("error", about, "it does not exist")]
        raise
    found = [Finding("warning", about, text) for text in _outliving(info, config)]
    listed = await wire.api(f"CONSUMER.LIST.{stream}", {"offset": 0})
    for consumer in listed.get("consumers") or ():
        found += _consumer(consumer["config"], config, f"consumer {stream}/{consumer['name']}")
    return found


def _outliving(info: dict[str, Any], config: ClaimConfig) -> Iterable[str]:
    limit_s = info.get("max_age", 0) / SECOND_NS
    if info.get("allow_msg_ttl") or 0 < limit_s <= config.ttl.max_age:
        return
    yield (
        f"its messages outlive their claims by far (max_age {limit_s:g} s, claims {config.ttl.max_age} s): a replay "
        "finds nothing. Set allow_msg_ttl, and message and claim end together"
    )


def _consumer(info: dict[str, Any], config: ClaimConfig, about: str) -> Iterable[Finding]:
    ttl = config.ttl
    needed_s = redelivery_s(info)
    if needed_s is None:
        text = f"max_deliver is unlimited: redeliveries after max_age ({ttl.max_age} s) find no claim"
        yield Finding("warning", about, text)
    elif needed_s + ttl.retention_after_read > ttl.max_age:
        yield Finding(
            "error",
            about,
            f"redelivery takes up to {needed_s:g} s and retention {ttl.retention_after_read} s, more than max_age "
            f"{ttl.max_age} s: raise claim_check.ttl.max_age, or lower ack_wait, backoff or max_deliver",
        )


def redelivery_s(info: dict[str, Any]) -> float | None:
    """How long a consumer may go on redelivering a message; None without a limit."""
    times = info.get("max_deliver", -1)
    if info.get("ack_policy") == "none":
        return 0
    if times is None or times < 1:
        return None
    waits = info.get("backoff") or [info.get("ack_wait") or _DEFAULT_ACK_WAIT_S * SECOND_NS]
    padded = [waits[min(index, len(waits) - 1)] for index in range(times)]
    return float(sum(padded)) / SECOND_NS
