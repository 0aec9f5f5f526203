"""Counts which backups of a target name an object, so that a prune reads each index once.

Owns the counts. Invariant: an object that one of the added backups names has a count. Must not know files or prunes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from headrace.backup.records import BackupIndex, BackupRecord


class ObjectUsers:
    """The objects that backups name, with their indexes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._backups: set[int] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._counts

    async def update(
        self,
        backups: list[tuple[int, BackupRecord]],
        read_index: Callable[[BackupRecord], Awaitable[BackupIndex]],
    ) -> None:
        """Count these backups, by the numbers of their records, and no others."""
        if self._backups - {
            number for number, _ in backups
        }:  # another run has dropped them, with their indexes
            self._counts.clear()
            self._backups.clear()
        for number, record in backups:
            if number not in self._backups:
                self._counts.update(_list_keys(record, await read_index(record)))
                self._backups.add(number)

    def remove(self, number: int, record: BackupRecord, index: BackupIndex) -> None:
        """Stop counting this backup, if it was counted."""
        if number not in self._backups:
            return
        self._backups.remove(number)
        for key in _list_keys(record, index):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def _list_keys(record: BackupRecord, index: BackupIndex) -> Iterable[str]:
    return {record.index.key, *(ref.key for ref in index.list_objects())}
