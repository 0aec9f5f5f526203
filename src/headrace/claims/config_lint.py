"""Checks a namespace against its streams, its store and the published configuration, and reports problems.

Errors lose claims or leak objects; warnings cost something or deserve a look. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.claims import published_config
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.jetstream_client import STREAM_NOT_FOUND, JetStreamClient
from headrace.claims.records import MalformedRecord
from headrace.claims.stores import CombinedStore, ObjectStore, ObjectStoreError
from headrace.claims.stores import lifecycle as lifecycles
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
    jetstream: JetStreamClient, config: ClaimConfig, store: ObjectStore, streams: Sequence[str] = ()
) -> list[Finding]:
    """Return all findings about a namespace; `streams` are those that carry its references."""
    found = list(_lint_config(config))
    found += await _lint_published(jetstream, config)
    found += await _lint_store(config, store)
    found += await _lint_read_stores(config, store)
    for stream in streams:
        found += await _lint_stream(jetstream, config, stream)
    return found


def _lint_config(config: ClaimConfig) -> Iterable[Finding]:
    if config.store.get("sync") is False:
        yield Finding(
            "warning",
            "claim_check.store.sync",
            "objects may be lost in a power failure although their references were published",
        )
    if not config.enabled:
        yield Finding("warning", "claim_check.enabled", "large payloads are rejected")


async def _lint_published(jetstream: JetStreamClient, config: ClaimConfig) -> list[Finding]:
    about = f"namespace {config.namespace}"
    try:
        published = await published_config.get_published(jetstream, config.namespace)
    except MalformedRecord as error:
        return [Finding("error", about, f"the published configuration cannot be read: {error}")]
    if published is None:
        return []
    errors, warnings = published_config.compare_with(published, config)
    return [Finding("error", about, text) for text in errors] + [
        Finding("warning", about, text) for text in warnings
    ]


async def _lint_store(config: ClaimConfig, store: ObjectStore) -> list[Finding]:
    about = f"bucket {config.bucket}"
    try:
        if not await store.bucket_exists():
            return [
                Finding("error", about, "it does not exist; the next producer that starts will create it")
            ]
        if store.lifecycle is None:
            text = "it has no lifecycle rules: run headrace claims collect --watch, or headrace serve with --claims"
            return [Finding("warning", about, text)]
        if await lifecycles.has_required_rules(store.lifecycle, config.namespace, config.lifecycle_days):
            return []
        text = f"the lifecycle rule for {config.namespace}/ is missing or not {config.lifecycle_days} days"
        return [Finding("error", about, text)]
    except ObjectStoreError as error:
        return [Finding("error", about, f"it cannot be reached: {error}")]


async def _lint_read_stores(config: ClaimConfig, store: ObjectStore) -> list[Finding]:
    """Report stores from which nothing is left to read."""
    found = []
    for other in store.others if isinstance(store, CombinedStore) else ():
        about = f"bucket {other.bucket} in claim_check.read_from"
        try:
            if await anext(aiter(other.list(f"{config.namespace}/")), None) is None:
                text = (
                    f"it has no claims of {config.namespace} any more: remove it when no program writes to it"
                )
                found.append(Finding("warning", about, text))
        except ObjectStoreError as error:
            found.append(Finding("error", about, f"it cannot be reached: {error}"))
    return found


async def _lint_stream(jetstream: JetStreamClient, config: ClaimConfig, stream: str) -> list[Finding]:
    about = f"stream {stream}"
    try:
        info = (await jetstream.api_request(f"STREAM.INFO.{stream}"))["config"]
    except RequestError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return [Finding("error", about, "it does not exist")]
        raise
    found = [Finding("warning", about, text) for text in _lint_message_age(info, config)]
    async for consumer in _iter_consumers(jetstream, stream):
        found += _lint_consumer(consumer["config"], config, f"consumer {stream}/{consumer['name']}")
    return found


async def _iter_consumers(jetstream: JetStreamClient, stream: str) -> AsyncIterator[dict[str, Any]]:
    """Yield all consumers of a stream; a server returns them in pages."""
    offset, total = 0, 1
    while offset < total:
        page = await jetstream.api_request(f"CONSUMER.LIST.{stream}", {"offset": offset})
        listed, total = page.get("consumers") or (), page.get("total", 0)
        for consumer in listed:
            yield consumer
        offset += len(listed) or total


def _lint_message_age(info: dict[str, Any], config: ClaimConfig) -> Iterable[str]:
    limit_s = info.get("max_age", 0) / SECOND_NS
    if info.get("allow_msg_ttl") or 0 < limit_s <= config.ttl.max_age:
        return
    yield (
        f"messages outlive their claims (max_age of messages {limit_s:g} s, of claims {config.ttl.max_age} s), so a "
        "replay finds no payloads. Set allow_msg_ttl, so that messages expire together with their claims"
    )


def _lint_consumer(info: dict[str, Any], config: ClaimConfig, about: str) -> Iterable[Finding]:
    ttl = config.ttl
    needed_s = max_redelivery_s(info)
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


def max_redelivery_s(info: dict[str, Any]) -> float | None:
    """Return how long a consumer may keep redelivering a message; None if unlimited."""
    times = info.get("max_deliver", -1)
    if info.get("ack_policy") == "none":
        return 0
    if times is None or times < 1:
        return None
    waits = info.get("backoff") or [info.get("ack_wait") or _DEFAULT_ACK_WAIT_S * SECOND_NS]
    padded = [waits[min(index, len(waits) - 1)] for index in range(times)]
    return float(sum(padded)) / SECOND_NS
