"""Publishes a namespace's configuration in the broker, so that two programs that disagree find out.

The first program to open a namespace publishes its configuration; later ones compare. Differences that would lose data
or orphan claims are rejected; others are warnings.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from headrace.claims.config import ClaimConfig
from headrace.claims.errors import ConfigConflict
from headrace.claims.jetstream_client import WRONG_LAST_SEQUENCE, JetStreamClient
from headrace.claims.records import MalformedRecord, RejectedRecord, decode_config, log_rejected
from headrace.claims.registry import STREAM, scan_subjects
from headrace.errors import RequestError

_MUST_MATCH = ("bucket", "backend")
_SHOULD_MATCH = ("compression", "threshold", "enabled")


def _config_subject(namespace: str) -> str:
    return f"$CLAIMS.namespace.{namespace}"


async def get_published(jetstream: JetStreamClient, namespace: str) -> dict[str, Any] | None:
    """Return the published configuration; raise `MalformedRecord` if what is published is invalid."""
    found = await jetstream.get_last(STREAM, _config_subject(namespace))
    return decode_config(found.subject, found.data) if found and found.data else None


async def list_published(jetstream: JetStreamClient) -> list[dict[str, Any]]:
    """Return every namespace's configuration, except unreadable ones."""
    found = []
    async for page in scan_subjects(jetstream, STREAM, _config_subject("*")):
        for item in page:
            try:
                found += [decode_config(item.subject, item.data)] if item.data else []
            except MalformedRecord as error:
                await log_rejected(RejectedRecord("config", item.subject, item.seq, str(error)))
    return found


async def publish(jetstream: JetStreamClient, config: ClaimConfig) -> None:
    """Publish this as the namespace's configuration, whatever was there."""
    await jetstream.publish(_config_subject(config.namespace), json.dumps(config.to_published()).encode())


async def check_published_config(jetstream: JetStreamClient, config: ClaimConfig) -> list[str]:
    """Publish the configuration if there is none, otherwise compare.

    Returns warnings; raises `ConfigConflict` if it cannot work.
    """
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    try:
        await jetstream.publish(
            _config_subject(config.namespace), json.dumps(config.to_published()).encode(), headers
        )
        return []
    except RequestError as error:
        if error.err_code not in WRONG_LAST_SEQUENCE:
            raise
    return await check(jetstream, config)


async def check(jetstream: JetStreamClient, config: ClaimConfig, *, required: bool = False) -> list[str]:
    """Compare with the published configuration; return warnings, raise `ConfigConflict` if it cannot work."""
    try:
        published = await get_published(jetstream, config.namespace)
    except MalformedRecord as error:
        raise ConfigConflict(
            f"the published configuration of namespace {config.namespace!r} cannot be read: {error}. Publish it "
            "again (headrace claims publish)"
        ) from error
    if published is None and required:
        raise ConfigConflict(
            f"namespace {config.namespace!r} is not set up; start a collector, or open it once with set_up=True"
        )
    if published is None:
        return []
    errors, warnings = compare_with(published, config)
    if errors:
        raise ConfigConflict(
            f"namespace {config.namespace!r} has a different published configuration: {'; '.join(errors)}. Use the "
            "published values (headrace claims ls), or publish yours (headrace claims publish)"
        )
    return warnings


def compare_with(published: dict[str, Any], config: ClaimConfig) -> tuple[list[str], list[str]]:
    """Return how a configuration differs from the published one: (errors, warnings)."""
    places = [(item.backend, item.bucket) for item in config.read_configs()]
    return compare_configs(published, config.to_published(), places)


def compare_configs(
    published: dict[str, Any], own: dict[str, Any], read_places: Collection[tuple[str, str]] = ()
) -> tuple[list[str], list[str]]:
    """Return how two configurations of a namespace differ: (errors, warnings).

    `read_places` are backends and buckets from which this program reads as well: others may write there.
    """

    def find_differences(section: str, keys: tuple[str, ...]) -> list[str]:
        left, right = (published.get("ttl", {}), own["ttl"]) if section else (published, own)
        return [
            f"{section}{key} is {right.get(key)!r}, published is {left.get(key)!r}"
            for key in keys
            if left.get(key) != right.get(key)
        ]

    errors = find_differences("ttl.", ("max_age",))
    if (published.get("backend"), published.get("bucket")) not in read_places:
        errors = find_differences("", _MUST_MATCH) + errors
    if published.get("required") and not own["enabled"]:
        errors.append("enabled is false, but the published configuration requires the claim check")
    retention_s, max_age_s = own["ttl"]["retention_after_read"], published.get("ttl", {}).get("max_age") or 0
    if retention_s > max_age_s:
        errors.append(f"ttl.retention_after_read {retention_s} exceeds the published max_age {max_age_s}")
    warnings = find_differences("", _SHOULD_MATCH)
    return errors, warnings + find_differences(
        "ttl.", ("delete_after_read", "retention_after_read", "grace_period")
    )
