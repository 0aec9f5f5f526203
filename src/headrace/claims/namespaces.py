"""A namespace's configuration, published in the system itself: two programs that disagree find out.

The first program to open a namespace publishes its configuration; later ones compare. What would lose data or
orphan claims is refused, what is merely inconsistent is a warning.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.claims.config import ClaimConfig
from headrace.claims.errors import Disagreement
from headrace.claims.records import Malformed, Rejected, decode_config, log_rejected
from headrace.claims.registry import STREAM, scan_subjects
from headrace.claims.wire import WRONG_LAST_SEQUENCE, Wire
from headrace.errors import RequestError

_MUST_AGREE = ("bucket", "backend")
_SHOULD_AGREE = ("compression", "threshold", "enabled")


def _subject(namespace: str) -> str:
    return f"$CLAIMS.namespace.{namespace}"


async def published(wire: Wire, namespace: str) -> dict[str, Any] | None:
    """The configuration that others agree with; `Malformed` if what is published there is none."""
    found = await wire.last(STREAM, _subject(namespace))
    return decode_config(found.subject, found.data) if found and found.data else None


async def all_published(wire: Wire) -> list[dict[str, Any]]:
    """Every namespace's configuration, but for those that cannot be read."""
    found = []
    async for page in scan_subjects(wire, STREAM, _subject("*")):
        for item in page:
            try:
                found += [decode_config(item.subject, item.data)] if item.data else []
            except Malformed as error:
                await log_rejected(Rejected("config", item.subject, item.seq, str(error)))
    return found


async def publish(wire: Wire, config: ClaimConfig) -> None:
    """Make this the namespace's configuration, whatever was there."""
    await wire.publish(_subject(config.namespace), json.dumps(config.published()).encode())


async def agree(wire: Wire, config: ClaimConfig) -> list[str]:
    """Publish the configuration if there is none, else compare; the warnings. `Disagreement` if it cannot work."""
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    try:
        await wire.publish(_subject(config.namespace), json.dumps(config.published()).encode(), headers)
        return []
    except RequestError as error:
        if error.err_code != WRONG_LAST_SEQUENCE:
            raise
    return await check(wire, config)


async def check(wire: Wire, config: ClaimConfig, *, required: bool = False) -> list[str]:
    """Compare with the configuration that is published; the warnings. `Disagreement` if it cannot work."""
    try:
        there = await published(wire, config.namespace)
    except Malformed as error:
        raise Disagreement(
            f"the published configuration of namespace {config.namespace!r} cannot be read: {error}. Publish yours "
            "(headrace claims publish)"
        ) from error
    if there is None and required:
        raise Disagreement(
            f"namespace {config.namespace!r} is not set up; start a collector, or open it once with set_up=True"
        )
    if there is None:
        return []
    errors, warnings = compare(there, config.published())
    if errors:
        raise Disagreement(
            f"namespace {config.namespace!r} is configured otherwise: {'; '.join(errors)}. Use the published "
            "values (headrace claims ls), or publish yours (headrace claims publish)"
        )
    return warnings


def compare(there: dict[str, Any], mine: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Where two configurations of a namespace differ: (errors, warnings)."""

    def differing(section: str, keys: tuple[str, ...]) -> list[str]:
        left, right = (there.get("ttl", {}), mine["ttl"]) if section else (there, mine)
        return [
            f"{section}{key} is {right.get(key)!r} here and {left.get(key)!r} there"
            for key in keys
            if left.get(key) != right.get(key)
        ]

    errors = differing("", _MUST_AGREE) + differing("ttl.", ("max_age",))
    if there.get("required") and not mine["enabled"]:
        errors.append("enabled is false here and the claim check is required there")
    kept, longest = mine["ttl"]["retention_after_read"], there.get("ttl", {}).get("max_age") or 0
    if kept > longest:
        errors.append(f"ttl.retention_after_read {kept} exceeds max_age {longest}")
    warnings = differing("", _SHOULD_AGREE)
    return errors, warnings + differing("ttl.", ("delete_after_read", "retention_after_read", "grace_period"))
