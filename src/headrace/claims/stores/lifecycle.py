"""The bucket's own expiry rules: the safety net below the collector.

A vendor's document is replaced as a whole, so it is read, merged, written and read back: rules of other namespaces
and other people stay as they are. Each vendor says in a `Lifecycle` what its rules look like; days are whole and
at least one, because none of them takes less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.claims.stores.base import StoreError

Rule = dict[str, Any]


class Lifecycle(Protocol):
    async def read(self) -> list[Rule]:
        """All rules of the bucket."""

    async def write(self, rules: Sequence[Rule]) -> None:
        """Replace all rules of the bucket."""

    def wanted(self, namespace: str, days: int) -> list[Rule]:
        """The rules a namespace needs: expiry, and one of its own for abandoned uploads where the vendor has it."""

    def is_of(self, rule: Rule, namespace: str) -> bool:
        """Whether a rule was written by us for this namespace."""


async def ensure(lifecycle: Lifecycle, namespace: str, days: int) -> bool:
    """Have the namespace's rules in place; whether anything had to be written."""
    if await is_right(lifecycle, namespace, days):
        return False
    foreign = [rule for rule in await lifecycle.read() if not lifecycle.is_of(rule, namespace)]
    await lifecycle.write([*foreign, *lifecycle.wanted(namespace, days)])
    if not await is_right(lifecycle, namespace, days):
        raise StoreError(
            f"the bucket took lifecycle rules for {namespace!r} and does not show them; another program may "
            "write rules at the same time: start again"
        )
    return True


async def is_right(lifecycle: Lifecycle, namespace: str, days: int) -> bool:
    """Whether the bucket has exactly the rules that the namespace needs."""
    ours = [rule for rule in await lifecycle.read() if lifecycle.is_of(rule, namespace)]
    wanted = lifecycle.wanted(namespace, days)
    return len(ours) == len(wanted) and all(any(_covers(rule, want) for rule in ours) for want in wanted)


def _covers(there: Any, wanted: Any) -> bool:
    """Vendors add fields of their own to what they return; what was written must be in it."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(_covers(there.get(key), item) for key, item in wanted.items())
    return bool(there == wanted)
