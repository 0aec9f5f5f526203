"""Totals over all streams of an account, counted as they change, so that no request and no page looks at all streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AccountTotals:
    """What an account has now, and has had since the start."""

    #: Consumers, without internal ones.
    consumers: int = 0
    #: Streams and consumers that have ended since the start.
    ended: int = 0
    #: Changes that may lead dead letters elsewhere: of streams, and of consumers with dead letters.
    config_changes: int = 0
    #: The atomic batches that are not committed yet.
    staged_batches: set[Any] = field(default_factory=set)

    def add_batch(self, batch: Any) -> None:
        """Count an atomic batch that was begun."""
        self.staged_batches.add(batch)

    def remove_batch(self, batch: Any) -> None:
        """Stop counting an atomic batch, which was committed or abandoned."""
        self.staged_batches.discard(batch)

    @property
    def staged_bytes(self) -> int:
        """The size of the messages in those batches."""
        return sum(batch.bytes for batch in self.staged_batches)
