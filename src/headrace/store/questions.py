"""Every question about a stream that its columns answer: which sequence, how many, which subjects.

Owns the list of segments and the walks over them. Invariant: an answer speaks of live rows only, and a filter
looks at a sealed segment once. Must not know files, frames or the bytes of a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from headrace.store.filters import Filter, FilterTable
from headrace.store.records import STALE, Appender, Array, Columns, Gate, Subjects
from headrace.store.segments import Segment

SPARSE_HITS = 256  # a filter that wants fewer rows than one in so many remembers them
_NONE: Array = np.empty(0, np.uint64)


def _first_alive(columns: Columns, rows: Array, at: int, step: int) -> int:
    """The first live one of `rows` from place `at` on, forwards or backwards; -1 = none."""
    while 0 <= at < len(rows):
        row = int(rows[at])
        if columns.is_live(row):
            return row
        at += step
    return -1


class Questions(Appender):
    """The reading half of a log."""

    def __init__(
        self, gate: Gate, ident: int, block_bytes: int, large_bytes: int, journaled: bool, first_seq: int
    ) -> None:
        super().__init__(gate, ident, Subjects(), block_bytes, large_bytes, journaled, first_seq)
        self.sealed: list[Segment] = []
        self._bases: list[int] = []
        self._filters = FilterTable(self.table)
        self.active = self.fresh_segment()

    def fresh_segment(self) -> Segment:
        """A segment for `self.columns`."""
        raise NotImplementedError

    # Where a sequence is

    def _segment(self, seq: int) -> Segment | None:
        """The segment that would hold a sequence."""
        if self.columns.rows and seq >= self.columns.base:
            return self.active
        at = bisect_right(self._bases, seq) - 1
        return self.sealed[at] if at >= 0 else None

    def _find(self, seq: int) -> Segment | None:
        """The segment in which a sequence lives."""
        segment = self._segment(seq)
        return segment if segment is not None and segment.columns.find(seq) >= 0 else None

    def restore_segment(self, segment: Segment) -> None:
        """A segment that was there before, later than those restored so far."""
        self.sealed.append(segment)
        self._bases.append(segment.columns.base)
        self.account(segment.columns)

    def settle_first(self) -> None:
        """Finds the first sequence again, after rows were restored and buried."""
        self.first_seq = self._first_live(0) if self.messages else self.last_seq + 1

    def _reach(self, seq: int) -> tuple[Segment | None, int]:
        """The segment that would hold a sequence, and where the next one begins (0: never)."""
        if self.columns.rows and seq >= self.columns.base:
            return self.active, 0
        at = bisect_right(self._bases, seq)
        later = self._bases[at] if at < len(self._bases) else self.columns.base if self.columns.rows else 0
        return (self.sealed[at - 1] if at else None), later

    def time_of(self, seq: int) -> int:
        """When a message was stored; 0 if it is absent."""
        segment = self._find(seq)
        return segment.columns.time_at(segment.columns.index(seq)) if segment is not None else 0

    @property
    def first_time_ns(self) -> int:
        return self.time_of(self.first_seq) if self.messages else 0

    # Subjects

    def last_of(self, subject: bytes) -> int:
        last = self.newest(subject)
        return last if last >= 0 else self._last(self.table.find(subject))

    def first_of(self, subject: bytes) -> int:
        sid = self.table.find(subject)
        if sid < 0:
            return 0
        first = int(self.table.firsts[sid])
        if first & STALE:
            first = self.table.firsts[sid] = self._seek_first(sid, (first ^ STALE) + 1)
        return int(first)

    def count_of(self, subject: bytes) -> int:
        sid = self.table.find(subject)
        return int(self.table.counts[sid]) if sid >= 0 else 0

    def _last(self, sid: int) -> int:
        last = int(self.table.lasts[sid])
        if last & STALE:
            last = self._seek_last(sid, (last ^ STALE) - 1)
            self.table.lasts[sid] = last
        return last

    def _seek_first(self, sid: int, seq: int) -> int:
        for segment in self._up(seq):
            columns = segment.columns
            row = columns.next_of(sid, columns.lower(seq), columns.rows)
            if row >= 0:
                return columns.seq(row)
        return 0

    def _seek_last(self, sid: int, seq: int) -> int:
        for segment in self._down(seq):
            columns = segment.columns
            row = columns.prev_of(sid, 0, columns.lower(seq + 1))
            if row >= 0:
                return columns.seq(row)
        return 0

    def subjects_of(self, f: Filter | None) -> Array:
        """Ids of the subjects with a live message that a filter wants."""
        alive = self.table.counts != 0
        mask = self._mask(f)
        if mask is not None and len(alive):
            alive = alive & (mask[self.table.classes] != 0)
        return np.flatnonzero(alive)

    # Filters and ranges

    def filter(self, patterns: tuple[bytes, ...]) -> Filter:
        return self._filters.get(patterns)

    def _mask(self, f: Filter | None) -> Array | None:
        if f is None or f.mask is None:
            return None
        self._filters.refresh()
        return f.mask

    def _up(self, seq: int) -> Iterator[Segment]:
        if self.columns.rows and seq >= self.columns.base:
            yield self.active
            return
        at = max(bisect_right(self._bases, seq) - 1, 0)
        for place in range(at, len(self.sealed)):
            yield self.sealed[place]
        if self.columns.rows:
            yield self.active

    def _down(self, seq: int) -> Iterator[Segment]:
        if self.columns.rows and seq >= self.columns.base:
            yield self.active
        for place in range(bisect_right(self._bases, seq) - 1, -1, -1):
            yield self.sealed[place]

    def _hits(self, f: Filter, mask: Array, segment: Segment) -> Array | None:
        """The rows of a sealed segment that a filter wants, if they are few; each segment is looked at
        once.
        """
        if segment is self.active:
            return None
        try:
            return f.hits[segment.number]
        except KeyError:
            columns = segment.columns
            few = columns.rows // SPARSE_HITS + 1
            found = f.hits[segment.number] = columns.hits(self.table, mask, 0, columns.rows, few)
            return found

    def _first_live(self, seq: int) -> int:
        for segment in self._up(seq):
            columns = segment.columns
            row = columns.next(self.table, None, columns.lower(seq), columns.rows)
            if row >= 0:
                return columns.seq(row)
        return 0

    def next(self, f: Filter | None, seq: int) -> int:
        """The first live match at `seq` or later; 0 = none."""
        seq = max(seq, self.first_seq)
        if seq > self.last_seq:
            return 0
        mask = self._mask(f)
        if mask is None and not self.num_deleted:
            return seq
        for segment in self._up(seq):
            columns = segment.columns
            lo = columns.lower(seq)
            hits = self._hits(f, mask, segment) if f is not None and mask is not None else None
            if hits is None:
                row = columns.next(self.table, mask, lo, columns.rows)
            else:
                row = _first_alive(columns, hits, int(np.searchsorted(hits, lo)), 1)
            if row >= 0:
                return columns.seq(row)
        return 0

    def prev(self, f: Filter | None, seq: int) -> int:
        """The last live match at `seq` or earlier; 0 = none."""
        mask = self._mask(f)
        for segment in self._down(seq):
            columns = segment.columns
            hi = columns.lower(seq + 1)
            hits = self._hits(f, mask, segment) if f is not None and mask is not None else None
            if hits is None:
                row = columns.prev(self.table, mask, 0, hi)
            else:
                row = _first_alive(columns, hits, int(np.searchsorted(hits, hi)) - 1, -1)
            if row >= 0:
                return columns.seq(row)
        return 0

    def count(self, f: Filter | None, seq: int) -> int:
        """How many live matches there are at `seq` or later."""
        mask = self._mask(f)
        if seq <= self.first_seq:
            if mask is None:
                return self.messages
            return int(self.table.counts[mask[self.table.classes] != 0].sum(dtype=np.int64))
        total = 0
        for segment in self._up(seq):
            columns = segment.columns
            lo = columns.lower(seq)
            hits = self._hits(f, mask, segment) if f is not None and mask is not None else None
            if hits is not None:
                later = hits[np.searchsorted(hits, lo) :]
                total += len(later) if columns.live is None else int(columns.live[later].sum(dtype=np.int64))
            elif mask is None and lo == 0:
                total += columns.alive
            else:
                total += columns.count(self.table, mask, lo, columns.rows)
        return total

    def seqs(self, f: Filter | None, lo: int, hi: int) -> Array:
        """The sequences of live matches from `lo` to `hi`, both included, ascending."""
        mask = self._mask(f)
        found = []
        for segment in self._up(lo):
            columns = segment.columns
            if columns.base > hi:
                break
            rows = columns.lower(lo), columns.lower(hi + 1)
            found.append(columns.seqs(self.table, mask, *rows))
        return np.concatenate(found) if found else _NONE

    def rows(self, lo: int, hi: int) -> tuple[Array, Array, Array]:
        """Sequence, time and TTL of the live messages from `lo` to `hi`, both included, ascending."""
        parts: list[tuple[Array, Array, Array]] = [(_NONE, _NONE, np.empty(0, np.uint32))]
        for segment in self._up(lo):
            columns = segment.columns
            if columns.base > hi:
                break
            seqs = columns.seqs(self.table, None, columns.lower(lo), columns.lower(hi + 1))
            steps = seqs - np.uint64(columns.base)
            at = steps if columns.delta is None else np.searchsorted(columns.delta[: columns.rows], steps)
            at = at.astype(np.intp)
            parts.append((seqs, columns.time[at], columns.ttl[at]))
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate([part[2] for part in parts]),
        )

    def seq_at(self, time_ns: int) -> int:
        """The first live message of that time or later; 0 = none."""
        if time_ns >= 1 << 64:
            return 0
        time_ns = max(time_ns, 0)
        for segment in self._up(0):
            if segment is not self.active and segment.latest < time_ns:
                continue
            row = segment.columns.first_at(time_ns)
            if row >= 0:
                return segment.columns.seq(row)
        return 0

    def last_per_subject(self, f: Filter | None, upto: int) -> Array:
        """The last live message of each subject that is not beyond `upto`, ascending."""
        if upto >= self.last_seq:
            sids = self.subjects_of(f)
            for sid in sids[self.table.lasts[sids] >= np.uint64(STALE)].tolist():
                self._last(sid)
            return np.sort(self.table.lasts[sids])
        mask = self._mask(f)
        seen = np.zeros(len(self.table), np.uint8)
        parts = []
        for segment in self._down(upto):
            columns = segment.columns
            parts.append(columns.lasts(self.table, mask, seen, columns.lower(upto + 1)))
        return np.sort(np.concatenate(parts)) if parts else _NONE

    def subjects(self, f: Filter | None) -> Iterator[tuple[bytes, int]]:
        """(subject, count) of the live messages a filter wants, sorted by subject."""
        found = [(self.table.name(sid), sid) for sid in self.subjects_of(f).tolist()]
        return ((name, int(self.table.counts[sid])) for name, sid in sorted(found))

    def deleted(self) -> Iterator[int]:
        """Sequences between first and last that do not live."""
        expected = self.first_seq
        for segment in self._up(self.first_seq):
            columns = segment.columns
            for seq in columns.seqs(self.table, None, 0, columns.rows).tolist():
                yield from range(expected, seq)
                expected = seq + 1
        yield from range(expected, self.last_seq + 1)
