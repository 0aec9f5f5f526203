"""Persists ack states that no reply waits for: at most every 100 ms, those of all consumers together."""

from __future__ import annotations

from typing import Protocol

from headrace.broker.commit.group_commit import GroupCommit, RunAll
from headrace.broker.timers import Timers

FLUSH_INTERVAL_NS = 100_000_000


class Persistable(Protocol):
    """Has state that changes without a request, such as a consumer's ack state."""

    def persist_state(self) -> None:
        """Put what changed into the open frame."""


class ConsumerFlusher:
    """The consumers of an account whose ack state is not persisted yet."""

    __slots__ = ("_dirty", "_group_commit", "_timers")

    def __init__(self, timers: Timers, group_commit: GroupCommit) -> None:
        self._timers = timers
        self._group_commit = group_commit
        self._dirty: dict[Persistable, None] = {}

    def persist_soon(self, consumer: Persistable) -> None:
        """Persist a consumer's ack state with the next flush."""
        if not self._dirty:
            self._timers.after(FLUSH_INTERVAL_NS, self.flush)
        self._dirty[consumer] = None

    def persist_now(self, consumer: Persistable) -> None:
        """Put changes of one consumer, which are so many that a flush would take long, into the open frame."""
        self._group_commit.schedule()
        consumer.persist_state()

    def flush(self) -> None:
        """Put all changes into the open frame."""
        dirty, self._dirty = self._dirty, {}
        if dirty:
            self._group_commit.schedule()
        with RunAll() as run_all:
            for consumer in dirty:
                run_all(consumer.persist_state)
