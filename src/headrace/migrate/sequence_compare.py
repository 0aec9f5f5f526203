"""Compares which sequences two copies of a stream have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LiveSequences:
    """The sequences of a stream's messages: all from first to last except the deleted ones."""

    first: int
    last: int
    count: int
    deleted: frozenset[int]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LiveSequences:
        """Read the state of a stream, requested with `deleted_details`."""
        return cls(
            state["first_seq"], state["last_seq"], state["messages"], frozenset(state.get("deleted") or ())
        )

    @property
    def is_complete(self) -> bool:
        """Whether the server listed all deleted messages: Headrace lists a million at most."""
        return self.count == 0 or self.last - self.first + 1 - len(self.deleted) == self.count

    def has(self, seq: int) -> bool:
        return bool(self.count) and self.first <= seq <= self.last and seq not in self.deleted


@dataclass(frozen=True)
class Difference:
    """What a copy lacks, and what it has although the original does not.

    `missing` counts the messages that it lacks; those below `extra_below` are extra, besides those in `extra`.
    """

    missing: int
    first_missing: int
    extra: tuple[int, ...]
    extra_below: int

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.extra or self.extra_below)


def compare(original: LiveSequences, copy: LiveSequences) -> Difference:
    """Compare a copy with its original."""
    if not (original.is_complete and copy.is_complete):
        return _compare_counts(original, copy)
    missing = sorted(seq for seq in copy.deleted if original.has(seq))
    if original.count:
        # What the copy has not yet, or has no longer, at either end.
        below = range(original.first, min(copy.first, original.last + 1)) if copy.count else range(0)
        above = range(max(original.first, copy.last + 1 if copy.count else 0), original.last + 1)
        for part in (below, above):
            missing += [seq for seq in part if seq not in original.deleted]
    extra_below = original.first if copy.count and copy.first < original.first else 0
    extra = tuple(sorted(seq for seq in original.deleted if copy.has(seq)))
    if copy.count and copy.last > original.last:
        extra += tuple(
            seq for seq in range(max(original.last + 1, copy.first), copy.last + 1) if copy.has(seq)
        )
    return Difference(len(missing), min(missing, default=0), extra, extra_below)


def _compare_counts(original: LiveSequences, copy: LiveSequences) -> Difference:
    """Compare by count, where a server does not list all deleted messages."""
    extra_below = original.first if copy.count and copy.first < original.first else 0
    missing = max(0, original.count - copy.count) + max(0, original.last - copy.last)
    return Difference(missing, copy.last + 1 if missing else 0, (), extra_below)
