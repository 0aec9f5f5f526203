"""Searches the next passed-over messages of ready keys, those of many keys in one pass over the log.

Owns the keys that are searched, and how far each was. A pass goes forward in chunks, from the lowest sequence to the
position of the consumer; then the next one begins. So the cost does not depend on the number of keys, and no key waits for
more than two passes. The table keeps the sequences from before a search: a change of the filter starts from there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace._native import KeyTable, find_first_rows
from headrace.broker.consumers.message_keys import Keys, MessageKeys
from headrace.broker.consumers.passed_messages import PassedMessages
from headrace.code_probes import sometimes
from headrace.storage import StreamLog
from headrace.storage.native_records import SegmentIndex
from headrace.storage.sequence_arrays import NO_SEQS, Seqs

#: Maximum number of keys that one chunk is searched for.
_KEYS_MAX = 4_096
#: From this number of keys on, comparing all at once takes less time than a search for each.
_COMPARED_MIN = 3
_NO_KEYS: Keys = np.empty(0, np.uint32)


def _sort(seqs: Seqs, keys: Keys) -> tuple[Seqs, Keys]:
    order = seqs.argsort()
    return seqs[order], keys[order]


class KeySearch:
    """The keys of one consumer that are searched."""

    __slots__ = ("_added", "_bounds", "_keys", "_log", "_passed", "_searched_to", "_table", "_wanted")

    def __init__(self, log: StreamLog, keys: MessageKeys, table: KeyTable, passed: PassedMessages) -> None:
        self._log = log
        self._keys = keys
        self._table = table
        self._passed = passed
        self.clear()

    def clear(self) -> None:
        """Forget all keys; the table must do so, too."""
        self._wanted, self._bounds = _NO_KEYS, NO_SEQS
        self._added: list[tuple[Keys, Seqs]] = []
        self._searched_to = 0

    def is_active(self) -> bool:
        """Return whether a key is searched."""
        return bool(self._added or len(self._wanted))

    def add(self, keys: Keys, bounds: Seqs) -> None:
        """Search for the next messages of keys, which are not in the queue of ready keys, from these sequences on."""
        if len(keys):
            self._table.start_search(keys)
            self._added.append((keys, bounds))

    def cancel(self) -> None:
        """Let all keys be ready again, with the sequences from before the search."""
        self._take_added()
        firsts = np.zeros(len(self._wanted), np.uint64)
        self._table.get_firsts(self._wanted, firsts)
        self._table.end_search(self._wanted, firsts)
        self.clear()

    # Near messages

    def find_next(self, key: int, seq: int) -> tuple[int, int]:
        """Find the next passed-over message of a key if it is near; also return where to continue, 0 for nowhere."""
        end = self._passed.end
        found, resume = self._keys.find_next(key, seq, end, self._passed.subject_filter)
        return found, (resume if resume < end else 0)

    def find_near(self, firsts: Seqs, keys: Keys) -> tuple[Seqs, Keys, int]:
        """Find the next messages of keys, which are not in the queue of ready keys; those far away are searched.

        `firsts` are lower bounds, ascending. Returns those that were found, ascending, with their keys, and how many
        searches that took.
        """
        is_found = self._are_next(firsts, keys)
        if is_found.all():
            return firsts, keys, 0
        seqs, missing = firsts.copy(), np.flatnonzero(~is_found).tolist()
        if not self._keys.ARE_SUBJECTS and len(missing) >= _COMPARED_MIN:
            return self._find_among_many(seqs, keys, is_found, missing)
        far = []
        for at in missing:
            seq, resume = self.find_next(int(keys[at]), int(firsts[at]))
            if seq:
                is_found[at] = True
            elif resume:
                far.append(at)
            else:
                self._table.set_first(int(keys[at]), 0)
            seqs[at] = seq or resume
        if far:
            sometimes("next message of a key is far")
            self.add(keys[far], seqs[far])
        return *_sort(seqs[is_found], keys[is_found]), len(missing)

    def _find_among_many(
        self, seqs: Seqs, keys: Keys, is_found: npt.NDArray[np.bool_], missing: list[int]
    ) -> tuple[Seqs, Keys, int]:
        """Find the missing ones in one chunk, because a search for each costs more; continue as `find_near` does."""
        found, searched_to, _ = self._find(keys[missing], seqs[missing])
        is_missing = found == 0
        if searched_to < self._passed.end:
            bounds = np.maximum(seqs[missing], np.uint64(searched_to))
            self.add(keys[missing][is_missing], bounds[is_missing])
        else:
            for key in keys[missing][is_missing].tolist():
                self._table.set_first(key, 0)
        seqs[missing] = found
        is_found[missing] = ~is_missing
        return *_sort(seqs[is_found], keys[is_found]), len(missing)

    def _are_next(self, firsts: Seqs, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for which keys the lower bound is certainly the next message, without a search."""
        if len(firsts) < _COMPARED_MIN or (firsts[1:] == firsts[:-1]).any():
            return np.zeros(len(firsts), bool)
        if self._passed.subject_filter is not None and not self._keys.ARE_SUBJECTS:
            return np.zeros(len(firsts), bool)
        live, live_keys = self._passed.find_keys(firsts)
        is_next: npt.NDArray[np.bool_]
        if len(live) == len(firsts):
            is_next = live_keys == keys
        else:
            is_next = np.zeros(len(firsts), bool)
            places = firsts.searchsorted(live)
            is_next[places] = live_keys == keys[places]
        if firsts[-1] >= self._passed.end:
            is_next &= firsts < np.uint64(self._passed.end)
        return is_next

    # All messages

    def search_chunk(self) -> int:
        """Search a chunk of the log; keys whose next messages were found are ready. Returns how many rows it had."""
        self._take_added()
        places = np.flatnonzero(self._bounds >= np.uint64(self._searched_to))
        if not len(places):  # a new pass
            places = np.arange(len(self._bounds))
        if len(places) > _KEYS_MAX:
            places = places[np.argpartition(self._bounds[places], _KEYS_MAX)[:_KEYS_MAX]]
        wanted, bounds = self._wanted[places], self._bounds[places]
        found, searched_to, rows = self._find(wanted, bounds)
        is_done = found != 0
        if searched_to >= self._passed.end:
            is_done[:], searched_to = True, 0
        self._table.end_search(wanted[is_done], found[is_done])
        self._bounds[places] = np.maximum(bounds, np.uint64(searched_to))
        self._searched_to = searched_to
        is_left = np.ones(len(self._wanted), bool)
        is_left[places[is_done]] = False
        self._wanted, self._bounds = self._wanted[is_left], self._bounds[is_left]
        return rows

    def _take_added(self) -> None:
        if self._added:
            self._wanted = np.concatenate([self._wanted, *(keys for keys, _ in self._added)])
            self._bounds = np.concatenate([self._bounds, *(bounds for _, bounds in self._added)])
            self._added = []

    def _find(self, wanted: Keys, bounds: Seqs) -> tuple[Seqs, int, int]:
        """Find the first message of each key in a chunk; return 0 for those without, its end, and its rows."""
        found, end = np.zeros(len(wanted), np.uint64), self._passed.end
        seq, rows_left = int(bounds.min()), self._keys.CHUNK_ROWS
        for segment in self._log.iter_segments_from(seq):
            columns = segment.columns
            if columns.base >= end:
                break
            lo, end_row = columns.lower_bound(seq), columns.lower_bound(end)
            hi = min(end_row, lo + rows_left)
            if lo < hi:
                self._find_in_segment(columns, lo, hi, wanted, bounds, found)
                rows_left -= hi - lo
            if hi < end_row:
                return found, columns.seq(hi), self._keys.CHUNK_ROWS - rows_left
        return found, end, self._keys.CHUNK_ROWS - rows_left

    def _find_in_segment(
        self, columns: SegmentIndex, lo: int, hi: int, wanted: Keys, bounds: Seqs, found: Seqs
    ) -> None:
        """Put the first messages of keys, in rows from `lo` to `hi` (exclusive), into `found`, unless there are any."""
        subject_ids = columns.get_subjects(np.arange(lo, hi))
        is_live = None if columns.live is None else columns.live[lo:hi]
        if (subject_filter := self._passed.subject_filter) is not None:
            is_match = self._log.match_subjects(subject_filter, subject_ids).view(np.uint8)
            is_live = is_match if is_live is None else is_match & is_live
        starts = np.maximum(columns.find_rows(bounds) - lo, 0)
        starts[found != 0] = hi - lo
        rows = np.empty(len(wanted), np.intp)
        find_first_rows(self._keys.from_subjects(subject_ids), is_live, wanted, starts, rows)
        is_found = rows >= 0
        found[is_found] = columns.get_seqs(rows[is_found] + lo)
