"""Stores how far an epoch is published: seldom, but often enough.

Owns when a position is stored. It is the start of the search for stored rows after a failure, and it stops other
drivers: one that has not stored a position for half the duplicate window stores one before it sends more. Invariant: rows
after a stored position have sequences above its `target_seq`, also those that an earlier driver stored. Must not know how
windows are published.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from headrace.spark.write.progress_log import Position, ProgressLog
from headrace.spark.write.stored_rows import StoredRows
from headrace.spark.write.write_target import WriteTarget

#: Windows after which a position is stored.
_WINDOWS = 32
_INTERVAL_S = 10.0


class PositionKeeper:
    """The position of one commit, stored by one driver."""

    def __init__(
        self, log: ProgressLog, target: WriteTarget, position: Position, on_progress: Callable[[], None]
    ) -> None:
        self._log = log
        self._on_progress = on_progress
        self._every = 1 if target.is_volatile else _WINDOWS
        self._interval_s = min(target.duplicate_window_s / 2, _INTERVAL_S)
        self._count = 0
        self._stored: StoredRows | None = None
        self.position = log.store_position(position)
        self._stored_s = time.monotonic()

    def continue_after(self, stored: StoredRows) -> None:
        """Continue what a driver began that has stored these rows, and may have sent others that arrive later."""
        self._stored = stored

    def check_before_send(self) -> None:
        """Store the position again after a pause: another driver may have taken over meanwhile."""
        if self._is_late:
            self._log_position()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._stored_s >= self._interval_s

    def advance(self, block: int, row: int, target_seq: int) -> None:
        """Record that all rows before a row are stored; `target_seq` is 0 if the last sequence is not known."""
        self._count += 1
        self._on_progress()
        self.position = replace(
            self.position, block=block, row=row, target_seq=target_seq or self.position.target_seq
        )
        if self._count >= self._every or self._is_late:
            self._log_position()

    def _log_position(self) -> None:
        position = self.position
        if self._stored is not None:
            # A reply says nothing about rows of the other driver, which may have lower sequences.
            position = replace(position, target_seq=self._stored.find_floor(position.block, position.row))
        self.position = self._log.store_position(position)
        self._count = 0
        self._stored_s = time.monotonic()
