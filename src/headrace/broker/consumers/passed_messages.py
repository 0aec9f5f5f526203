"""Which messages a consumer with order per key passed over, and how many.

Owns the count, which the table of keys keeps, and what changes it besides deliveries: removals, and a new filter, after
which everything is counted again in slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace._native import KeyTable
from headrace.broker.consumers.message_keys import Keys, MessageKeys
from headrace.code_probes import sometimes
from headrace.storage import Filter, StreamLog
from headrace.storage.sequence_arrays import Seqs, sort_unique

#: Messages that are counted at a time, when everything has to be counted again.
_COUNT_ROWS = 16_384
#: Position of a count that is complete.
_ALL_COUNTED = 1 << 63


class DeliveryPosition(Protocol):
    """The position of a consumer; messages from there on were not passed over."""

    next_seq: int
    dirty: bool


class PassedMessages:
    """The passed-over messages of one consumer."""

    __slots__ = ("_counted_to", "_keys", "_log", "_position", "_table", "subject_filter")

    def __init__(
        self, log: StreamLog, keys: MessageKeys, table: KeyTable, position: DeliveryPosition
    ) -> None:
        self._log = log
        self._keys = keys
        self._table = table
        self._position = position
        self._counted_to = _ALL_COUNTED  # earlier messages are in the count
        self.subject_filter: Filter | None = None

    @property
    def end(self) -> int:
        """The position: messages from there on were not passed over."""
        return self._position.next_seq

    def find_keys(self, seqs: Seqs) -> tuple[Seqs, Keys]:
        """Return those of ascending sequences that have a message, and their keys."""
        live, subject_ids = self._log.get_subject_ids(seqs)
        return live, self._keys.from_subjects(subject_ids)

    def find(self, seqs: Seqs) -> npt.NDArray[np.bool_]:
        """Return which of these messages, which match the filter, were passed over."""
        mask = np.zeros(len(seqs), bool)
        if self._table.blocked and len(seqs):
            live, keys = self.find_keys(np.sort(seqs))
            mask = np.isin(seqs, live[self._are_passed(live, keys)], assume_unique=True)
        return mask

    def _are_passed(self, seqs: Seqs, keys: Keys) -> npt.NDArray[np.bool_]:
        firsts = np.zeros(len(keys), np.uint64)
        if self._table.blocked:
            self._table.get_firsts(np.ascontiguousarray(keys), firsts)
        passed: npt.NDArray[np.bool_] = (
            (firsts != 0) & (seqs >= firsts) & (seqs < np.uint64(self._position.next_seq))
        )
        return passed

    # The count

    def set_counted(self) -> None:
        """The count is complete."""
        self._counted_to = _ALL_COUNTED

    def start_count(self) -> None:
        """Begin to count again, with `iter_count`; until then, no message is in the count."""
        self._table.passed = self._counted_to = 0

    def iter_count(self) -> Iterator[None]:
        """Count in slices."""
        log, table = self._log, self._table
        table.passed, self._counted_to = 0, table.min_first()
        # Sequences without messages, of which there may be billions, take no time.
        while (
            self._counted_to and 0 < (seq := log.find_next(None, self._counted_to)) < self._position.next_seq
        ):
            end = min(seq + _COUNT_ROWS, self._position.next_seq)
            seqs = log.find_seqs(self.subject_filter, seq, end - 1)
            table.passed += int(self._are_passed(*self.find_keys(seqs)).sum())
            self._counted_to = end
            if end < self._position.next_seq:
                yield
        self.set_counted()

    def before_removal(self, seqs: npt.ArrayLike) -> None:
        """Subtract messages that are about to leave the stream."""
        table = self._table
        if table.passed:
            found = sort_unique(np.asarray(seqs, dtype=np.uint64))
            end = min(self._position.next_seq, self._counted_to)
            live, subject_ids = self._log.get_subject_ids(found[found < np.uint64(end)])
            is_passed = self._are_passed(live, self._keys.from_subjects(subject_ids))
            removed = int((is_passed & self._log.match_subjects(self.subject_filter, subject_ids)).sum())
            if removed:
                sometimes("passed-over message removed")
                table.passed -= removed

    def before_trim(self, seq: int) -> None:
        """Subtract messages before `seq`, which are about to leave the stream."""
        at = self._table.min_first()
        while at and 0 < (at := self._log.find_next(None, at)) < seq:
            end = min(at + _COUNT_ROWS, seq)
            self.before_removal(self._log.find_seqs(self.subject_filter, at, end - 1))
            at = end
