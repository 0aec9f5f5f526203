"""The bucket's own expiry rules: the safety net below the collector.

A vendor's document is replaced as a whole, so it is read, merged, written and read back: rules of other namespaces and
other owners stay as they are. Each vendor describes its rules in a `Lifecycle`; days are whole and at least one,
because no vendor accepts less.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.claims.stores.object_store import ObjectStoreError

LifecycleRule = dict[str, Any]
_ATTEMPTS = 10


class Lifecycle(Protocol):
    async def read(self) -> list[LifecycleRule]:
        """All rules of the bucket."""

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        """Replace all rules of the bucket."""

    def make_rules(self, namespace: str, days: int) -> list[LifecycleRule]:
        """Return the rules a namespace needs: expiry, and a separate one for abandoned uploads if the vendor has it."""

    def is_own_rule(self, rule: LifecycleRule, namespace: str) -> bool:
        """Return whether a rule was written by us for this namespace."""


async def ensure_rules(lifecycle: Lifecycle, namespace: str, days: int) -> bool:
    """Make sure that the namespace's rules exist; return whether anything had to be written."""
    if await has_required_rules(lifecycle, namespace, days):
        return False
    for _ in range(_ATTEMPTS):
        started = time.monotonic()
        other_rules = [rule for rule in await lifecycle.read() if not lifecycle.is_own_rule(rule, namespace)]
        await lifecycle.write([*other_rules, *lifecycle.make_rules(namespace, days)])
        # A program that read the rules before they were written here replaces them within about the same time.
        await asyncio.sleep((time.monotonic() - started) * random.uniform(3, 6))
        if await has_required_rules(lifecycle, namespace, days):
            return True
    raise ObjectStoreError(
        f"the lifecycle rules for {namespace!r} were written but are not in the bucket; another program may "
        "write rules at the same time: try again"
    )


async def has_required_rules(lifecycle: Lifecycle, namespace: str, days: int) -> bool:
    """Return whether the bucket has exactly the rules that the namespace needs."""
    own_rules = [rule for rule in await lifecycle.read() if lifecycle.is_own_rule(rule, namespace)]
    required = lifecycle.make_rules(namespace, days)
    return len(own_rules) == len(required) and all(
        any(_contains(rule, required_rule) for rule in own_rules) for required_rule in required
    )


def _contains(actual: Any, expected: Any) -> bool:
    """Return whether `actual` contains `expected`: vendors add fields of their own to what they return."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            _contains(actual.get(key), item) for key, item in expected.items()
        )
    return bool(actual == expected)
