"""Answers queries about a stream from its columns: which sequence, how many, which subjects.

Owns the list of segments and the searches over them. Invariant: results cover live rows only, and a filter scans a
sealed segment at most once. Must not know files, frames or the bytes of a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator

import numpy as np

from headrace.storage.log.filters import Filter, FilterTable
from headrace.storage.log.id_listener import SubjectIdListener
from headrace.storage.log.last_seqs import iter_resolve_last_seqs
from headrace.storage.log.row_lookup import find_live_rows
from headrace.storage.native_records import (
    BOUND_ONLY_BIT,
    Array,
    LogWriter,
    OpenFrame,
    SegmentIndex,
    SubjectIndex,
)
from headrace.storage.segments.segment import Segment
from headrace.storage.sequence_arrays import search_sorted

SPARSE_RATIO = 256  # a filter that matches fewer than one row in this many caches them
#: Up to this many subjects, their last messages are looked up one by one.
FEW_SUBJECTS = 16
_NO_SEQS: Array = np.empty(0, np.uint64)


def _find_live_row(columns: SegmentIndex, rows: Array, at: int, step: int) -> int:
    """Return the first live one of `rows` from index `at` on, forwards or backwards; -1 if none."""
    while 0 <= at < len(rows):
        row = int(rows[at])
        if columns.is_live(row):
            return row
        at += step
    return -1


class LogIndex(LogWriter):
    """The read side of a log."""

    def __init__(
        self,
        open_frame: OpenFrame,
        ident: int,
        block_bytes: int,
        large_bytes: int,
        journaled: bool,
        first_seq: int,
    ) -> None:
        super().__init__(open_frame, ident, SubjectIndex(), block_bytes, large_bytes, journaled, first_seq)
        self.sealed_segments: list[Segment] = []
        self._first_seqs: list[int] = []
        self._filters = FilterTable(self.subject_index)
        #: Told when subjects get new ids; they must be removed when they are no longer used.
        self.id_listeners: list[SubjectIdListener] = []
        self.active_segment = self.make_active_segment()

    def make_active_segment(self) -> Segment:
        """Make a segment for `self.columns`."""
        raise NotImplementedError

    # Where a sequence is

    def _segment_for(self, seq: int) -> Segment | None:
        """Return the segment that would contain a sequence."""
        if self.columns.rows and seq >= self.columns.base:
            return self.active_segment
        at = bisect_right(self._first_seqs, seq) - 1
        return self.sealed_segments[at] if at >= 0 else None

    def _find_live_segment(self, seq: int) -> Segment | None:
        """Return the segment in which a sequence is live."""
        segment = self._segment_for(seq)
        return segment if segment is not None and segment.columns.find_live_row(seq) >= 0 else None

    def restore_segment(self, segment: Segment) -> None:
        """Append a segment that existed before; its sequences follow those restored so far."""
        self.sealed_segments.append(segment)
        self._first_seqs.append(segment.columns.base)
        self.add_segment_counts(segment.columns)

    def recompute_first_seq(self) -> None:
        """Find the first sequence again after rows were restored and tombstoned."""
        self.first_seq = self._find_first_live(0) if self.messages else self.last_seq + 1

    def _locate(self, seq: int) -> tuple[Segment | None, int]:
        """Return the segment that would contain a sequence, and where the next segment begins (0: never)."""
        if self.columns.rows and seq >= self.columns.base:
            return self.active_segment, 0
        at = bisect_right(self._first_seqs, seq)
        following = (
            self._first_seqs[at]
            if at < len(self._first_seqs)
            else self.columns.base
            if self.columns.rows
            else 0
        )
        return (self.sealed_segments[at - 1] if at else None), following

    def get_time_ns(self, seq: int) -> int:
        """Return when a message was stored; 0 if it is absent."""
        segment = self._find_live_segment(seq)
        return segment.columns.get_time(segment.columns.find_row(seq)) if segment is not None else 0

    @property
    def first_time_ns(self) -> int:
        return self.get_time_ns(self.first_seq) if self.messages else 0

    # Subjects

    def get_last_seq(self, subject: bytes) -> int:
        last = self.cached_last_seq(subject)
        return last if last >= 0 else self._resolve_last_seq(self.subject_index.find(subject))

    def get_first_seq(self, subject: bytes) -> int:
        sid = self.subject_index.find(subject)
        if sid < 0:
            return 0
        first = int(self.subject_index.firsts[sid])
        if first & BOUND_ONLY_BIT:
            first = self.subject_index.firsts[sid] = self._scan_first_seq(sid, (first ^ BOUND_ONLY_BIT) + 1)
        return int(first)

    def get_subject_count(self, subject: bytes) -> int:
        sid = self.subject_index.find(subject)
        return int(self.subject_index.counts[sid]) if sid >= 0 else 0

    def _resolve_last_seq(self, sid: int) -> int:
        last = int(self.subject_index.lasts[sid])
        if last & BOUND_ONLY_BIT:
            last = self._scan_last_seq(sid, (last ^ BOUND_ONLY_BIT) - 1)
            self.subject_index.lasts[sid] = last
        return last

    def _resolve_last_seqs(self, sids: Array) -> None:
        """Find the last messages of many subjects in one pass over the columns."""
        if len(sids) <= FEW_SUBJECTS:
            for sid in sids.tolist():
                self._resolve_last_seq(sid)
            return
        for _ in iter_resolve_last_seqs(self, sids):
            pass

    def _scan_first_seq(self, sid: int, seq: int) -> int:
        for segment in self.iter_segments_from(seq):
            columns = segment.columns
            row = columns.next_for_subject(sid, columns.lower_bound(seq), columns.rows)
            if row >= 0:
                return columns.seq(row)
        return 0

    def _scan_last_seq(self, sid: int, seq: int) -> int:
        for segment in self.iter_segments_back(seq):
            columns = segment.columns
            row = columns.prev_for_subject(sid, 0, columns.lower_bound(seq + 1))
            if row >= 0:
                return columns.seq(row)
        return 0

    def find_subject_ids(
        self, subject_filter: Filter | None, start: int = 0, end: int | None = None
    ) -> Array:
        """Return the ids, from `start` to `end` (exclusive), of subjects with a live message that match a filter."""
        mask = self._get_mask(subject_filter)
        alive = self.subject_index.counts[start:end] != 0
        if mask is not None and len(alive):
            alive &= mask[self.subject_index.classes[start:end]] != 0
        return np.flatnonzero(alive) + start

    # Filters and ranges

    @property
    def subject_epoch(self) -> int:
        """How often subjects got new ids."""
        return self._filters.remapped

    def get_filter(self, patterns: tuple[bytes, ...]) -> Filter:
        return self._filters.get(patterns)

    def iter_filter(self, patterns: tuple[bytes, ...]) -> Generator[None, None, Filter]:
        """Return the same as `get_filter`, in slices; hold it, or it is made again."""
        return self._filters.iter_get(patterns)

    def _get_mask(self, subject_filter: Filter | None) -> Array | None:
        if subject_filter is None or subject_filter.mask is None:
            return None
        self._filters.refresh()
        return subject_filter.mask

    def iter_segments_from(self, seq: int) -> Iterator[Segment]:
        if self.columns.rows and seq >= self.columns.base:
            yield self.active_segment
            return
        at = max(bisect_right(self._first_seqs, seq) - 1, 0)
        for segment_index in range(at, len(self.sealed_segments)):
            yield self.sealed_segments[segment_index]
        if self.columns.rows:
            yield self.active_segment

    def iter_segments_back(self, seq: int) -> Iterator[Segment]:
        if self.columns.rows and seq >= self.columns.base:
            yield self.active_segment
        for segment_index in range(bisect_right(self._first_seqs, seq) - 1, -1, -1):
            yield self.sealed_segments[segment_index]

    def _find_sparse_rows(
        self, subject_filter: Filter | None, mask: Array | None, segment: Segment
    ) -> Array | None:
        """Return the rows of a sealed segment that match a filter, if they are few; each segment is scanned once."""
        if subject_filter is None or mask is None or segment is self.active_segment:
            return None
        try:
            return subject_filter.matching_rows[segment.number]
        except KeyError:
            columns = segment.columns
            few = columns.rows // SPARSE_RATIO + 1
            found = subject_filter.matching_rows[segment.number] = columns.find_matching(
                self.subject_index, mask, 0, columns.rows, few
            )
            return found

    def _find_first_live(self, seq: int) -> int:
        for segment in self.iter_segments_from(seq):
            columns = segment.columns
            row = columns.next(self.subject_index, None, columns.lower_bound(seq), columns.rows)
            if row >= 0:
                return columns.seq(row)
        return 0

    def find_next(self, subject_filter: Filter | None, seq: int) -> int:
        """Return the first live match at `seq` or later; 0 if none."""
        seq = max(seq, self.first_seq)
        if seq > self.last_seq:
            return 0
        mask = self._get_mask(subject_filter)
        if mask is None and not self.num_deleted:
            return seq
        for segment in self.iter_segments_from(seq):
            columns = segment.columns
            lo = columns.lower_bound(seq)
            matching_rows = self._find_sparse_rows(subject_filter, mask, segment)
            if matching_rows is None:
                row = columns.next(self.subject_index, mask, lo, columns.rows)
            else:
                row = _find_live_row(columns, matching_rows, search_sorted(matching_rows, lo), 1)
            if row >= 0:
                return columns.seq(row)
        return 0

    def find_prev(self, subject_filter: Filter | None, seq: int) -> int:
        """Return the last live match at `seq` or earlier; 0 if none."""
        mask = self._get_mask(subject_filter)
        for segment in self.iter_segments_back(seq):
            columns = segment.columns
            hi = columns.lower_bound(seq + 1)
            matching_rows = self._find_sparse_rows(subject_filter, mask, segment)
            if matching_rows is None:
                row = columns.prev(self.subject_index, mask, 0, hi)
            else:
                row = _find_live_row(columns, matching_rows, search_sorted(matching_rows, hi) - 1, -1)
            if row >= 0:
                return columns.seq(row)
        return 0

    def count_from(self, subject_filter: Filter | None, seq: int) -> int:
        """Count the live matches at `seq` or later."""
        mask = self._get_mask(subject_filter)
        if seq <= self.first_seq:
            if mask is None:
                return self.messages
            return int(self.subject_index.counts[mask[self.subject_index.classes] != 0].sum(dtype=np.int64))
        total = 0
        for segment in self.iter_segments_from(seq):
            columns = segment.columns
            lo = columns.lower_bound(seq)
            matching_rows = self._find_sparse_rows(subject_filter, mask, segment)
            if matching_rows is not None:
                following = matching_rows[search_sorted(matching_rows, lo) :]
                total += (
                    len(following)
                    if columns.live is None
                    else int(columns.live[following].sum(dtype=np.int64))
                )
            elif mask is None and lo == 0:
                total += columns.alive
            else:
                total += columns.count(self.subject_index, mask, lo, columns.rows)
        return total

    def find_seqs(self, subject_filter: Filter | None, lo: int, hi: int, most: int = -1) -> Array:
        """Return the sequences of live matches from `lo` to `hi`, both included, ascending.

        Only the first `most`, unless that is negative.
        """
        mask = self._get_mask(subject_filter)
        found: list[Array] = [_NO_SEQS]
        for segment in self.iter_segments_from(lo):
            columns = segment.columns
            if columns.base > hi or most == 0:
                break
            start, end = columns.lower_bound(lo), columns.lower_bound(hi + 1)
            rows = None if subject_filter is None else subject_filter.matching_rows.get(segment.number)
            if rows is None or segment is self.active_segment:
                seqs = columns.seqs(self.subject_index, mask, start, end, most)
            else:  # they are known, because `find_next` has looked for them
                rows = rows[search_sorted(rows, start) : search_sorted(rows, end)].astype(np.intp)
                seqs = columns.get_seqs(rows if columns.live is None else rows[columns.live[rows] != 0])
                seqs = seqs if most < 0 else seqs[:most]
            found.append(seqs)
            most -= len(seqs) if most > 0 else 0
        return np.concatenate(found)

    def filter_live(self, seqs: Array) -> Array:
        """Return those of ascending sequences that have a message."""
        if not len(seqs):
            return seqs
        if not self.num_deleted and seqs[0] >= self.first_seq and seqs[-1] <= self.last_seq:
            return seqs
        return self.get_subject_ids(seqs)[0]

    def get_subject_ids(self, seqs: Array) -> tuple[Array, Array]:
        """Return those of ascending sequences that have a message, and the ids of their subjects."""
        found: list[Array] = [_NO_SEQS]
        subject_ids: list[Array] = [np.empty(0, np.uint32)]
        for segment in self.iter_segments_from(int(seqs[0])) if len(seqs) else ():
            if segment.columns.base > seqs[-1]:
                break
            live, rows = find_live_rows(segment.columns, seqs)
            found.append(live)
            subject_ids.append(segment.columns.get_subjects(rows))
        return np.concatenate(found), np.concatenate(subject_ids)

    def find_times_and_ttls(self, lo: int, hi: int) -> tuple[Array, Array, Array]:
        """Return sequence, time and TTL of the live messages from `lo` to `hi`, both included, ascending."""
        parts: list[tuple[Array, Array, Array]] = [(_NO_SEQS, _NO_SEQS, np.empty(0, np.uint32))]
        for segment in self.iter_segments_from(lo):
            columns = segment.columns
            if columns.base > hi:
                break
            seqs = columns.seqs(
                self.subject_index, None, columns.lower_bound(lo), columns.lower_bound(hi + 1)
            )
            at = columns.find_rows(seqs)
            parts.append((seqs, columns.get_times(at), columns.get_ttls(at)))
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
        )

    def find_seq_at_time(self, time_ns: int) -> int:
        """Return the first live message of that time or later; 0 if none."""
        if time_ns >= 1 << 64:
            return 0
        time_ns = max(time_ns, 0)
        for segment in self.iter_segments_from(0):
            if segment is not self.active_segment and segment.latest_time_ns < time_ns:
                continue
            row = segment.columns.first_at_time(time_ns)
            if row >= 0:
                return segment.columns.seq(row)
        return 0

    def get_last_seqs(self, subject_filter: Filter | None, start: int = 0, end: int | None = None) -> Array:
        """Return the last live message of each subject with an id from `start` to `end` (exclusive), in no order."""
        sids = self.find_subject_ids(subject_filter, start, end)
        self._resolve_last_seqs(sids[self.subject_index.lasts[sids] >= np.uint64(BOUND_ONLY_BIT)])
        return self.subject_index.lasts[sids]

    def find_last_per_subject(self, subject_filter: Filter | None, upto: int) -> Array:
        """Return the last live message up to `upto` of each subject, ascending."""
        if upto >= self.last_seq:
            return np.sort(self.get_last_seqs(subject_filter))
        mask = self._get_mask(subject_filter)
        seen = np.zeros(len(self.subject_index), np.uint8)
        parts = []
        for segment in self.iter_segments_back(upto):
            columns = segment.columns
            row = columns.lower_bound(upto + 1)
            parts.append(columns.last_per_subject(self.subject_index, mask, seen, row))
        return np.sort(np.concatenate(parts)) if parts else _NO_SEQS

    def iter_subject_counts(self, subject_filter: Filter | None) -> Iterator[tuple[bytes, int]]:
        """Yield (subject, count) of the live messages that match a filter, sorted by subject."""
        sids = self.find_subject_ids(subject_filter).tolist()
        found = [(self.subject_index.name(sid), sid) for sid in sids]
        return ((name, int(self.subject_index.counts[sid])) for name, sid in sorted(found))

    def find_deleted_seqs(self, lo: int, hi: int) -> Array:
        """Return the sequences from `lo` to `hi`, both included, that are not live, ascending."""
        is_deleted = np.ones(hi - lo + 1, bool)
        is_deleted[(self.find_seqs(None, lo, hi) - np.uint64(lo)).astype(np.intp)] = False
        return np.flatnonzero(is_deleted).astype(np.uint64) + np.uint64(lo)
