"""Records in memory, in pure Python: packing into blocks, columns, subject ids, and scans over them.

Owns the bytes between a publish and a frame: `LogWriter` assigns the sequence, writes the record once into the tail of
its block and updates columns and subjects; `build_frame_body` collects what is new for a frame. Invariant: bytes
written into a tail are never changed or moved while a view of them exists. Must not know files or time. `records` is
the compiled version; the same tests run on both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from headrace._native.column_packing_pure import unpack_column
from headrace._native.file_map import map_file as map_file
from headrace._native.record_header import RECORD_HEADER, RECORD_HEADER_BYTES, iter_selected_records
from headrace._native.segment_arrays import DELTA_MAX, KINDS, SegmentArrays, grow_array
from headrace._native.segment_arrays import Array as Array

BLOCK_HEADER_BYTES = 32
HAS_HEADER = 0x8000
BOUND_ONLY_BIT = 1 << 63
SUBJECT_MAX = 0xFFFF

_ALIGN = 512
_ENTRY = struct.Struct("<HHIQ")
_WATERMARK = struct.Struct("<IQ")
_U16 = struct.Struct("<H")
_RECORDS, _REMOVALS, _TRIM, _ADVANCE = 2, 4, 5, 6
_SEGMENT_HEAD = 512
# Values above are bounds (BOUND_ONLY_BIT); a log ends far below. No store writes a record with a higher sequence.
_SEQ_END = (1 << 63) - 1
_RECORD_MAX = 0x7FFFFFFF


def _holds(view: memoryview, at: int, end: int) -> bool:
    """Return whether a complete record begins at `at` and ends by `end`."""
    if end - at < RECORD_HEADER_BYTES:
        return False
    size, sl, _, hl, _, seq, _ = RECORD_HEADER.unpack_from(view, at)
    return bool(RECORD_HEADER_BYTES + sl + hl <= size <= end - at and 0 < seq <= _SEQ_END)


def _matches_pattern(pattern: list[bytes], subject: bytes) -> bool:
    tokens = subject.split(b".")
    for i, token in enumerate(pattern):
        if i >= len(tokens) or not tokens[i]:
            return False
        if token == b">" and i == len(pattern) - 1:
            return True
        if token not in (b"*", tokens[i]):
            return False
    return len(tokens) == len(pattern)


class OpenFrame:
    """What all log writers of a store share: how much still fits into the frame; `extend` makes room, or raises."""

    def __init__(self, extend: Callable[[int], None] | None = None) -> None:
        self.closed = False
        self.pending_bytes = 0
        self.max_bytes = 1 << 62
        self.number = 1
        self.dirty_logs: list[LogWriter] = []
        self.extend = extend


class SubjectIndex:
    """Stream-wide subject ids: bytes <-> id; per id its count, first and last live sequence, filter class.

    A first or last with BOUND_ONLY_BIT set is only a bound: the true one is after (first) or before (last) it.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._counts: Array = np.zeros(8, np.uint32)
        self._firsts: Array = np.zeros(8, np.uint64)
        self._lasts: Array = np.zeros(8, np.uint64)
        self._classes: Array = np.zeros(8, np.uint32)
        self.alive = 0

    def __len__(self) -> int:
        return len(self._names)

    def find(self, subject: bytes) -> int:
        return self._ids.get(subject, -1)

    def add(self, subject: bytes) -> int:
        sid = self._ids.get(subject, -1)
        if sid >= 0:
            return sid
        if len(subject) > SUBJECT_MAX:
            raise ValueError("a subject has more than 65,535 bytes")
        sid = self._ids[subject] = len(self._names)
        self._names.append(subject)
        if sid == len(self._counts):
            capacity = sid + (sid >> 1)
            self._counts = grow_array(self._counts, sid, capacity)
            self._firsts = grow_array(self._firsts, sid, capacity)
            self._lasts = grow_array(self._lasts, sid, capacity)
            self._classes = grow_array(self._classes, sid, capacity)
        return sid

    def name(self, sid: int) -> bytes:
        if sid < 0:
            raise IndexError(sid)
        return self._names[sid]

    def match(self, pattern: bytes, start: int = 0, end: int = -1) -> Array:
        if start < 0:
            raise IndexError(start)
        ids = range(start, len(self) if end < 0 else min(end, len(self)))
        tokens = pattern.split(b".")
        matches_pattern = [sid for sid in ids if _matches_pattern(tokens, self._names[sid])]
        return np.array(matches_pattern, np.uint32)

    def dump(self, lo: int, hi: int) -> bytes:
        if not 0 <= lo <= hi <= len(self):
            raise IndexError((lo, hi))
        return b"".join(_U16.pack(len(name)) + name for name in self._names[lo:hi])

    def load(self, data: Any, expected: int = -1) -> bool:
        """Add subjects encoded by `dump`; return False, adding none, if invalid or not `expected` many."""
        raw, at = bytes(data), 0
        names = []
        while at < len(raw):
            if at + 2 > len(raw):
                return False
            end = at + 2 + _U16.unpack_from(raw, at)[0]
            if end > len(raw):
                return False
            names.append(raw[at + 2 : end])
            at = end
        if 0 <= expected != len(names):
            return False
        for name in names:
            self.add(name)
        return True

    @property
    def counts(self) -> Array:
        return self._counts[: len(self)]

    @property
    def firsts(self) -> Array:
        return self._firsts[: len(self)]

    @property
    def lasts(self) -> Array:
        return self._lasts[: len(self)]

    @property
    def classes(self) -> Array:
        return self._classes[: len(self)]

    def check_id(self, sid: int) -> None:
        if sid >= len(self):
            raise IndexError(sid)

    def on_message_added(self, sid: int, seq: int) -> None:
        self.check_id(sid)
        if self._counts[sid] == 0:
            self._firsts[sid] = seq
            self.alive += 1
        self._counts[sid] += 1
        self._lasts[sid] = seq

    def clear(self) -> None:
        """Reset all counts: no subject has a live message any more."""
        self._counts[:] = 0
        self._firsts[:] = 0
        self._lasts[:] = 0
        self.alive = 0

    def copy_subjects(self, other: SubjectIndex, ids: Array) -> None:
        """Add subjects of another index, given by their ids there; this one must have none of them."""
        for sid in ids.tolist():
            self.add(other.name(sid))

    def replace(self, fresh: SubjectIndex, old_ids: Array) -> None:
        """Become `fresh`, which must not be used any more; all live subjects are in it, and had these ids here."""
        if len(old_ids) != len(fresh):
            raise ValueError(f"{len(old_ids)} ids for {len(fresh)} subjects")
        self._ids, self._names = fresh._ids, fresh._names
        for name in ("_counts", "_firsts", "_lasts", "_classes"):
            carried = getattr(self, name)[old_ids]
            setattr(self, name, grow_array(carried, len(old_ids), len(fresh._counts)))

    def encode_names(self, ids: Array, seqs: Array) -> bytes:
        """Encode pairs of a subject, given by its id, and a sequence as elements of an array of MessagePack."""
        pairs = zip((self.name(sid) for sid in ids.tolist()), seqs.tolist(), strict=True)
        return b"".join(
            b"\x92\xc5" + len(name).to_bytes(2, "big") + name + b"\xcf" + seq.to_bytes(8, "big")
            for name, seq in pairs
        )

    def on_message_removed(self, sid: int, seq: int) -> None:
        self._counts[sid] -= 1
        if self._counts[sid] == 0:
            self._firsts[sid] = self._lasts[sid] = 0
            self.alive -= 1
            return
        if self._lasts[sid] == seq:
            self._lasts[sid] = seq | BOUND_ONLY_BIT
        if self._firsts[sid] == seq:
            self._firsts[sid] = seq | BOUND_ONLY_BIT
        if self._counts[sid] == 1:
            # One message is left: an exact bound on one side is exact on both.
            if not int(self._lasts[sid]) & BOUND_ONLY_BIT:
                self._firsts[sid] = self._lasts[sid]
            elif not int(self._firsts[sid]) & BOUND_ONLY_BIT:
                self._lasts[sid] = self._firsts[sid]


class SegmentIndex(SegmentArrays):
    """One row per record of a segment, dead ones included: its position, its subject, whether it is live."""

    @staticmethod
    def from_arrays(
        base: int,
        time: Array,
        offset: Array,
        size: Array,
        subject: Array,
        ttl: Array,
        flags: Array,
        delta: Array | None = None,
    ) -> SegmentIndex:
        """Make a SegmentIndex over existing arrays, all live; they are only read."""
        self = SegmentIndex(base)
        self.time, self.offset, self.size, self.subject = time, offset, size, subject
        self.ttl, self.flags, self.delta = ttl, flags, delta
        self.rows = self.alive = len(time)
        if any(
            len(column) != self.rows
            for column in (offset, size, subject, ttl, flags, time if delta is None else delta)
        ):
            raise ValueError("columns of different lengths")
        self._capacity = -1
        self.alive_bytes = int(size.sum(dtype=np.uint64)) if self.rows else 0
        return self

    @staticmethod
    def from_packed(base: int, rows: int, columns: list[bytes]) -> SegmentIndex:
        """Make a SegmentIndex of packed columns, all live; raise ValueError if one cannot have this many rows.

        They are those of `pack_columns`. The values may be wrong: see `is_sound`.
        """
        found = [unpack_column(column, rows) for column in columns[: 7 if columns[6] else 6]]
        limits = [np.iinfo(kind).max for kind in (*KINDS, np.uint32)]
        if any(len(each) and each.max() > limit for each, limit in zip(found, limits, strict=False)):
            return SegmentIndex.from_arrays(0, *(np.zeros(rows, kind) for kind in KINDS))  # not sound
        return SegmentIndex.from_arrays(base, *map(np.ndarray.astype, found, (*KINDS, np.uint32)))

    def is_sound(self, subjects: int, end: int) -> bool:
        """Return whether every row can belong to a segment that ends at `end` and has this many subjects.

        Rows must ascend, each record must be in the segment and after the previous one, and each subject must have an
        id.
        """
        if not self.rows:
            return True
        n = self.rows
        offset, size = self.offset[:n].astype(np.int64), self.size[:n].astype(np.int64)
        delta = None if self.delta is None else self.delta[:n]
        free = np.concatenate(([_SEGMENT_HEAD + BLOCK_HEADER_BYTES], offset + size))
        return bool(
            0 < self.base <= _SEQ_END - DELTA_MAX
            and self.subject[:n].max() < subjects
            and size.min() >= RECORD_HEADER_BYTES
            and (offset >= free[:-1]).all()
            and free[-1] <= end
            and (delta is None or (delta[0] == 0 and (delta[1:] > delta[:-1]).all()))
        )

    def seal(self) -> None:
        """Stop accepting rows. The compiled version packs the columns."""
        if self.rows:
            self._capacity = -1

    def adopt_packed(self, columns: list[bytes]) -> None:
        """Stop accepting rows. The compiled version uses these columns, which `pack_columns` made of this one."""
        self.seal()

    def find_live_row(self, seq: int) -> int:
        i = self.find_row(seq)
        return i if i >= 0 and self.is_live(i) else -1

    def is_live(self, i: int) -> bool:
        self._check_row(i)
        return self.live is None or bool(self.live[i])

    def tombstone(self, i: int) -> bool:
        self._check_row(i)
        if self.live is None:
            self.live = np.ones(max(self._capacity, self.rows), np.uint8)
        elif not self.live[i]:
            return False
        self.live[i] = 0
        self.alive -= 1
        self.alive_bytes -= int(self.size[i])
        return True

    def tombstone_unless_live(self, sources: list[SegmentIndex]) -> None:
        """Tombstone the rows whose messages are not live in any of the sources, which ascend as the rows do."""
        alive = {source.seq(row) for source in sources for row in range(source.rows) if source.is_live(row)}
        for row in range(self.rows):
            if self.seq(row) not in alive:
                self.tombstone(row)

    def tombstone_all(self) -> None:
        """Mark every row as dead."""
        self.live = np.zeros(max(self._capacity, self.rows), np.uint8)
        self.alive = self.alive_bytes = 0

    def live_bits(self, lo: int = 0, hi: int = -1) -> bytes:
        hi = self.rows if hi < 0 else hi
        if self.live is None or self.alive == self.rows:
            return b""
        part = self.live[lo:hi]
        return b"" if part.all() else np.packbits(part).tobytes()

    def apply_live_bits(self, bits: bytes, lo: int = 0, hi: int = -1) -> None:
        hi = self.rows if hi < 0 else hi
        if not len(bits) or hi <= lo:
            return
        self.check_span(lo, hi)
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=hi - lo)
        for i in np.flatnonzero(flags == 0):
            self.tombstone(lo + int(i))

    def _match_mask(self, subjects: SubjectIndex, mask: Array | None, lo: int, hi: int) -> Array:
        self.check_span(lo, min(hi, self.rows))
        hi = max(min(hi, self.rows), lo)
        wanted = np.ones(hi - lo, bool) if self.live is None else self.live[lo:hi] != 0
        if mask is not None and hi > lo:
            wanted = wanted & (mask[subjects.classes[self.subject[lo:hi]]] != 0)
        return wanted

    def next(self, subjects: SubjectIndex, mask: Array | None, lo: int, hi: int) -> int:
        found = np.flatnonzero(self._match_mask(subjects, mask, lo, hi))
        return lo + int(found[0]) if len(found) else -1

    def prev(self, subjects: SubjectIndex, mask: Array | None, lo: int, hi: int) -> int:
        found = np.flatnonzero(self._match_mask(subjects, mask, lo, hi))
        return lo + int(found[-1]) if len(found) else -1

    def count(self, subjects: SubjectIndex, mask: Array | None, lo: int, hi: int) -> int:
        return int(np.count_nonzero(self._match_mask(subjects, mask, lo, hi)))

    def seqs(self, subjects: SubjectIndex, mask: Array | None, lo: int, hi: int, most: int = -1) -> Array:
        rows = np.flatnonzero(self._match_mask(subjects, mask, lo, hi))[: None if most < 0 else most]
        return self.get_seqs(lo + rows)

    def find_matching(self, subjects: SubjectIndex, mask: Array, lo: int, hi: int, most: int) -> Array | None:
        self.check_span(lo, hi)
        found = lo + np.flatnonzero(mask[subjects.classes[self.subject[lo:hi]]])
        return None if len(found) > most else found.astype(np.uint32)

    def _rows_for_subject(self, sid: int, lo: int, hi: int) -> Array:
        self.check_span(lo, min(hi, self.rows))
        hi = max(min(hi, self.rows), lo)
        return lo + np.flatnonzero(
            self._match_mask(SubjectIndex(), None, lo, hi) & (self.subject[lo:hi] == sid)
        )

    def next_for_subject(self, sid: int, lo: int, hi: int) -> int:
        found = self._rows_for_subject(sid, lo, hi)
        return int(found[0]) if len(found) else -1

    def prev_for_subject(self, sid: int, lo: int, hi: int) -> int:
        found = self._rows_for_subject(sid, lo, hi)
        return int(found[-1]) if len(found) else -1

    def last_per_subject(self, subjects: SubjectIndex, mask: Array | None, seen: Array, hi: int) -> Array:
        if len(seen) < len(subjects):
            raise ValueError("`seen` has fewer entries than there are subjects")
        found = []
        for i in np.flatnonzero(self._match_mask(subjects, mask, 0, hi))[::-1]:
            sid = self.subject[i]
            if not seen[sid]:
                seen[sid] = 1
                found.append(self.seq(int(i)))
        return np.array(found, np.uint64)

    def first_at_time(self, time_ns: int) -> int:
        found = np.flatnonzero(
            self._match_mask(SubjectIndex(), None, 0, self.rows)
            & (self.time[: self.rows] >= np.uint64(time_ns))
        )
        return int(found[0]) if len(found) else -1

    def get_sizes(self, lo: int, hi: int, overhead: int, header_extra: int) -> Array:
        self.check_span(lo, hi)
        has_header = self.flags[lo:hi].astype(np.int64) & HAS_HEADER
        extra = np.where(has_header, overhead + header_extra, overhead)
        sizes = self.size[lo:hi].astype(np.int64) + extra
        return sizes if self.live is None else sizes * self.live[lo:hi]

    def index_block(
        self, subjects: SubjectIndex, data: Any, start: int, length: int, place: int, expected: int = -1
    ) -> int:
        """Add a row for each record of a block that is at `start` of `data` and at `place` of its segment.

        Returns their number; -1, adding no row, if they are not ascending records, or not `expected` many.
        """
        view = memoryview(data)
        if start < 0 or length < 0 or start + length > len(view) or place + length > DELTA_MAX:
            raise ValueError("no block there")
        places = self._records(view, start, start + length)
        if places is None or 0 <= expected != len(places):
            return -1
        for at in places:
            size, sl, flags, _, ttl, seq, time = RECORD_HEADER.unpack_from(view, at)
            sid = subjects.add(bytes(view[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + sl]))
            self.append(seq, time, place + at - start, size, sid, ttl, flags)
        return len(places)

    def _records(self, view: memoryview, at: int, end: int) -> list[int] | None:
        """Return where the records of a block start; None if they are invalid or do not follow the rows so far."""
        places: list[int] = []
        last, base = (self.seq(self.rows - 1), self.base) if self.rows else (0, -1)
        while at < end:
            if not _holds(view, at, end):
                return None
            size, _, _, _, _, seq, _ = RECORD_HEADER.unpack_from(view, at)
            base = seq if base < 0 else base
            if seq <= last or seq - base > DELTA_MAX:
                return None
            places.append(at)
            last = seq
            at += size
        return places


class RecordBlock:
    """Contiguous records, finished or about to be. Its bytes do not change any more."""

    def __init__(
        self, offset: int, data: bytearray, used: int, first_seq: int, records: int, direct: bool
    ) -> None:
        self.offset, self.data, self.used = offset, data, used
        self.first_seq, self.records, self.direct = first_seq, records, direct

    @property
    def view(self) -> memoryview:
        return memoryview(self.data)[: self.used]


class BlockBuilder:
    """Packs records into blocks and rows into columns; the base of `LogWriter`, also used by compaction."""

    def __init__(self, subjects: SubjectIndex, block_bytes: int, start: int = 512) -> None:
        self.subject_index = subjects
        self.columns = SegmentIndex()
        self.blocks: list[RecordBlock] = []
        self.block_max = block_bytes - BLOCK_HEADER_BYTES
        self.block_offset = start
        self._reset_tail()

    def _reset_tail(self) -> None:
        self.tail = bytearray()
        self.tail_used = 0
        self.tail_row = self.columns.rows

    def _reserve(self, size: int) -> None:
        if self.tail_used and self.tail_used + size > self.block_max:
            self.finish_block()
        if self.tail_used + size > len(self.tail):
            capacity = max(min(max(len(self.tail) * 4, 1024), self.block_max), self.tail_used + size)
            fresh = bytearray(capacity)
            fresh[: self.tail_used] = self.tail[: self.tail_used]
            self.tail = fresh  # existing views keep the old one alive and unchanged

    def finish_block(self, direct: bool = False) -> RecordBlock | None:
        """Turn the tail into a block; does nothing if it is empty."""
        if self.tail_used == 0:
            return None
        first = self.columns.seq(self.tail_row)
        records = self.columns.rows - self.tail_row
        block = RecordBlock(self.block_offset, self.tail, self.tail_used, first, records, direct)
        self.blocks.append(block)
        self.block_offset += (BLOCK_HEADER_BYTES + self.tail_used + _ALIGN - 1) & ~(_ALIGN - 1)
        self._reset_tail()
        self.on_block_finished(block)
        return block

    def on_block_finished(self, block: RecordBlock) -> None:
        """Hook for subclasses."""

    def start_segment(self, start: int = 512) -> None:
        """Start a new segment: empty columns, blocks from `start` on. The tail must be empty."""
        if self.tail_used:
            raise ValueError("the tail is not empty: finish its block first")
        self.columns = SegmentIndex()
        self.block_offset = start
        self.tail_row = 0

    def _add_record(self, record: Any, sid: int) -> None:
        size, _, flags, _, ttl, seq, time = RECORD_HEADER.unpack_from(record)
        self._reserve(size)
        at = self.tail_used
        self.tail[at : at + size] = record
        self.columns.append(seq, time, self.block_offset + BLOCK_HEADER_BYTES + at, size, sid, ttl, flags)
        self.tail_used += size

    def copy_rows(self, source: SegmentIndex, lo: int, hi: int, data: Any, place: int) -> None:
        """Copy the live rows lo..hi of other columns; `data` has their records, from `place` on."""
        view = memoryview(data)
        source.check_span(lo, hi)
        for i in range(lo, hi):
            if not source.is_live(i):
                continue
            offset, size, sid = source.row(i)[:3]
            if offset < place or offset - place + size > len(view):
                raise ValueError("a row points outside of its block")
            if not self._is_row(source.seq(i), sid, view[offset - place : offset - place + size]):
                raise ValueError("a row does not match its record")
            if self.columns.rows and source.seq(i) - self.columns.base > DELTA_MAX:
                raise ValueError("rows are too far apart for one segment")
            self._add_record(view[offset - place : offset - place + size], sid)

    def _is_row(self, seq: int, sid: int, record: memoryview) -> bool:
        """Return whether a row matches its record: the copy replaces the original, so it must."""
        if not _holds(record, 0, len(record)) or sid >= len(self.subject_index):
            return False
        size, sl, _, _, _, own, _ = RECORD_HEADER.unpack_from(record)
        name = bytes(record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + sl])
        return size == len(record) and own == seq and name == self.subject_index.name(sid)


class LogWriter(BlockBuilder):
    """The growing end of one stream: assigns sequences, packs records, updates counts; the base class of a log."""

    def __init__(
        self,
        open_frame: OpenFrame,
        ident: int,
        subjects: SubjectIndex,
        block_bytes: int,
        large_bytes: int,
        journaled: bool,
        first_seq: int = 1,
    ) -> None:
        super().__init__(subjects, block_bytes)
        self.open_frame = open_frame
        self.ident = ident
        self.first_seq = first_seq
        self.last_seq = self.committed_seq = self.sealed_seq = first_seq - 1
        self.changed_frame = 0
        self.last_time_ns = 0
        self.messages = 0
        self.bytes = 0
        self.large_bytes = large_bytes
        self.journaled = journaled
        self.overhead = -2 if journaled else -16
        self.header_extra = 4 if journaled else 0
        self.dirty = False
        self._replaying = False
        self._collected_until = 0
        self._parts: list[Any] = []
        self._removed_ranges: list[list[int]] = []
        self._trim_to = self._advance_to = 0

    @property
    def num_subjects(self) -> int:
        return self.subject_index.alive

    @property
    def num_deleted(self) -> int:
        return self.last_seq + 1 - self.first_seq - self.messages

    def mark_dirty(self) -> None:
        """Record that this log has a change in the open frame."""
        if not self.dirty:
            self.dirty = True
            self.open_frame.dirty_logs.append(self)
        self.changed_frame = self.open_frame.number

    def append(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int = 0, flags: int = 0
    ) -> int:
        """Encode a message into the tail block, and count its bytes in the open frame; return its sequence."""
        size = RECORD_HEADER_BYTES + len(subject) + len(header) + len(payload)
        open_frame = self.open_frame
        if self.journaled and (open_frame.closed or open_frame.pending_bytes + size > open_frame.max_bytes):
            assert open_frame.extend is not None
            open_frame.extend(size)
        if size >= self.large_bytes:
            return self.append_large(subject, header, payload, time_ns, ttl_s, flags)
        return self.append_unchecked(subject, header, payload, time_ns, ttl_s, flags)

    def append_large(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int, flags: int
    ) -> int:
        """Add a message of at least `large_bytes`; a log that stores those separately overrides this."""
        return self.append_unchecked(subject, header, payload, time_ns, ttl_s, flags)

    def append_unchecked(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int = 0, flags: int = 0
    ) -> int:
        """Like `append`, without checking the open frame's limit or the message's size."""
        seq = self.last_seq + 1
        size = RECORD_HEADER_BYTES + len(subject) + len(header) + len(payload)
        if size > _RECORD_MAX:
            raise ValueError("a record has more than 2 GiB")
        sid = self.subject_index.add(subject)
        if self.columns.rows and seq - self.columns.base > DELTA_MAX:
            self.split_segment()
        self._reserve(size)
        flags = flags & 0x7FFF | (HAS_HEADER if header else 0)
        at = self.tail_used
        RECORD_HEADER.pack_into(self.tail, at, size, len(subject), flags, len(header), ttl_s, seq, time_ns)
        self.tail[at + RECORD_HEADER_BYTES : at + size] = subject + header + payload
        self.columns.append(
            seq, time_ns, self.block_offset + BLOCK_HEADER_BYTES + at, size, sid, ttl_s, flags
        )
        self.tail_used += size
        if self.journaled:
            self.open_frame.pending_bytes += size
        self._count_added(sid, seq, size, flags, time_ns)
        self.mark_dirty()
        return seq

    def append_many(
        self,
        messages: Iterable[tuple[bytes, bytes, bytes]],
        time_ns: int,
        ttl_s: int = 0,
        flags: int = 0,
        step_ns: int = 0,
    ) -> int:
        """Append (subject, header, payload) one after the other, each `step_ns` later; return the first sequence."""
        first = self.last_seq + 1
        for subject, header, payload in messages:
            self.append(subject, header, payload, time_ns, ttl_s, flags)
            time_ns += step_ns
        return first

    def append_copies(
        self,
        view: memoryview,
        seqs: Array,
        start: int,
        count_max: int,
        size_max: int,
        overhead: int,
        source_header: tuple[bytes, bytes, bytes] | None = None,
        time_ns: int = 0,
    ) -> tuple[int, int]:
        """Append the next records of another log that need no decision; return how many, and their size.

        The size of a record is that of its payload and `overhead`. They are those of `view` that are in `seqs` from
        `start` on. Without `source_header` they keep their sequences and times. With it, each gets a header of its three
        parts, the record's sequence after the first and its subject after the second, and times from `time_ns` on. Stops
        before a record that has headers, would leave a gap or may not fit into the open frame, before a large one, and
        after `size_max` bytes, unless that is negative.
        """
        count = total = 0
        header, open_frame = b"", self.open_frame
        records = iter_selected_records(view, seqs, start, count_max)
        for seq, record_time_ns, subject, record_header, payload in records:
            if record_header or (source_header is None and seq != self.last_seq + 1):
                break
            if source_header is not None:
                header = b"%s%d%s%s%s" % (source_header[0], seq, source_header[1], subject, source_header[2])
            size = RECORD_HEADER_BYTES + len(subject) + len(header) + len(payload)
            is_full = open_frame.closed or open_frame.pending_bytes + size > open_frame.max_bytes
            if size >= self.large_bytes or (self.journaled and is_full):
                break
            copy_time_ns = record_time_ns if source_header is None else time_ns + count
            self.append_unchecked(subject, header, payload, copy_time_ns)
            total += len(payload) + overhead
            count += 1
            if 0 <= size_max < total:
                break
        return count, total

    def _accounted_size(self, size: int, flags: int) -> int:
        return size + self.overhead + (self.header_extra if flags & HAS_HEADER else 0)

    def _count_added(self, sid: int, seq: int, size: int, flags: int, time_ns: int) -> None:
        self.subject_index.on_message_added(sid, seq)
        if self.messages == 0:
            self.first_seq = seq
        self.messages += 1
        self.bytes += self._accounted_size(size, flags)
        self.last_seq = seq
        self.last_time_ns = time_ns

    def split_segment(self) -> None:
        """Start a new segment; called when a sequence is too far from the first for the columns."""
        self.finish_block()
        self.start_segment()

    def finish_block(self, direct: bool = False) -> RecordBlock | None:
        if not self._replaying and not direct and self.tail_used > self._collected_until:
            self._parts.append((self.tail, self._collected_until, self.tail_used))
        self._collected_until = 0
        return super().finish_block(direct)

    def reference_block(self, entry: bytes) -> None:
        """Add an encoded entry to the frame after the records so far: the position of a large message."""
        self._parts.append(entry)

    def load(self, data: Any) -> int:
        """Add existing records (replay), skipping those up to the last sequence. They do not become part of a frame.

        Returns how many were added; -1 if the bytes are not records.
        """
        self._replaying = True
        try:
            found = self._load(memoryview(data))
        finally:
            self._replaying = False
            self._collected_until = self.tail_used
        if found >= 0:
            self.committed_seq = self.sealed_seq = self.last_seq
        return found

    def _load(self, view: memoryview) -> int:
        at, end, found = 0, len(view), 0
        while at < end:
            if not _holds(view, at, end):
                return -1
            size, sl, flags, _, _, seq, time = RECORD_HEADER.unpack_from(view, at)
            if seq > self.last_seq:
                sid = self.subject_index.add(
                    bytes(view[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + sl])
                )
                if self.columns.rows and seq - self.columns.base > DELTA_MAX:
                    self.split_segment()
                self._add_record(view[at : at + size], sid)
                self._count_added(sid, seq, size, flags, time)
                found += 1
            at += size
        return found

    def add_segment_counts(self, columns: SegmentIndex) -> None:
        """Count the live rows of an existing segment (recovery); segments must come in ascending order."""
        for i in range(columns.rows):
            if columns.is_live(i):
                _, size, sid, _, _, flags = columns.row(i)
                seq = columns.seq(i)
                self.subject_index.on_message_added(sid, seq)
                if self.messages == 0:
                    self.first_seq = seq
                self.messages += 1
                self.bytes += self._accounted_size(size, flags)

    def _subtract_row(self, columns: SegmentIndex, i: int) -> bool:
        self.subject_index.check_id(columns.row(i)[2])
        if not columns.tombstone(i):
            return False
        _, size, sid, _, _, flags = columns.row(i)
        self.subject_index.on_message_removed(sid, columns.seq(i))
        self.messages -= 1
        self.bytes -= self._accounted_size(size, flags)
        return True

    def subtract_rows(self, columns: SegmentIndex, lo: int, hi: int) -> int:
        """Tombstone the rows lo..hi and subtract them from the counts; return how many were live."""
        columns.check_span(lo, hi)
        return sum(self._subtract_row(columns, i) for i in range(lo, hi))

    def subtract_seqs(self, columns: SegmentIndex, seqs: Array) -> int:
        """Tombstone the rows of ascending sequences (u64) and record them for the frame; return how many were live."""
        found = 0
        for seq in seqs.tolist():
            i = columns.find_row(seq)
            if i >= 0 and self._subtract_row(columns, i):
                self.record_removals(seq, seq)
                found += 1
        return found

    def cached_last_seq(self, subject: bytes) -> int:
        """Return the last sequence of a subject; 0 if it has none, -1 if it must be searched for."""
        sid = self.subject_index.find(subject)
        if sid < 0:
            return 0
        last = int(self.subject_index.lasts[sid])
        return -1 if last & BOUND_ONLY_BIT else last

    def trim_oldest(self, subject: bytes, most: int) -> int:
        """Remove the oldest message of a subject that has more than `most`, if it is in the active segment.

        Returns its sequence, 0 if there is nothing to remove, -1 if it must be searched for.
        """
        sid = self.subject_index.find(subject)
        if sid < 0 or int(self.subject_index.counts[sid]) <= most:
            return 0
        first, columns = int(self.subject_index.firsts[sid]), self.columns
        if first & BOUND_ONLY_BIT or not columns.rows or first < columns.base:
            return -1
        row = columns.find_live_row(first)
        if row < 0 or not self._subtract_row(columns, row):
            return -1
        self.record_removals(first, first)
        if first == self.first_seq:
            while row < columns.rows and not columns.is_live(row):
                row += 1
            self.first_seq = columns.seq(row) if row < columns.rows else self.last_seq + 1
        self.mark_dirty()
        return first

    def record_removals(self, first: int, last: int) -> None:
        """Record in the frame that these sequences were removed."""
        if not self.journaled:
            return
        if self._removed_ranges and self._removed_ranges[-1][1] + 1 == first:
            self._removed_ranges[-1][1] = last
        else:
            self._removed_ranges.append([first, last])
            self.open_frame.pending_bytes += 16

    def record_trim(self, seq: int) -> None:
        """Record in the frame that everything below was removed."""
        self._trim_to = max(self._trim_to, seq)

    def record_advance(self, seq: int) -> None:
        """Record in the frame that the last sequence is at least this."""
        self._advance_to = max(self._advance_to, seq)

    def collect_changes(self) -> list[Any]:
        """Return this log's entries for the frame."""
        found: list[Any] = []
        for part in self._parts:
            if isinstance(part, bytes):
                found.append(part)
            else:
                tail, lo, hi = part
                found += [_ENTRY.pack(_RECORDS, 0, self.ident, hi - lo), memoryview(tail)[lo:hi]]
        fresh = self.tail_used - self._collected_until
        if fresh:
            view = memoryview(self.tail)[self._collected_until : self.tail_used]
            found += [_ENTRY.pack(_RECORDS, 0, self.ident, fresh), view]
        if self._removed_ranges:
            runs = np.array(self._removed_ranges, "<u8").tobytes()
            found += [_ENTRY.pack(_REMOVALS, 0, self.ident, len(runs)), runs]
        for kind, value in ((_TRIM, self._trim_to), (_ADVANCE, self._advance_to)):
            if value:
                found += [_ENTRY.pack(kind, 0, self.ident, 8), value.to_bytes(8, "little")]
        return found

    def reset_changes(self) -> None:
        """Drop this log's changes: they were collected for the frame, or the log was deleted."""
        self._parts = []
        self._collected_until = self.tail_used
        self._removed_ranges = []
        self._trim_to = self._advance_to = 0
        self.dirty = False
        self.sealed_seq = self.last_seq


def build_frame_body(logs: list[LogWriter]) -> tuple[list[Any], bytes]:
    """Return (body in pieces, watermarks): the entries of these logs for a frame; resets their changes."""
    pieces: list[Any] = []
    watermarks = bytearray()
    for log in logs:
        if log.journaled:
            pieces += log.collect_changes()
            watermarks += _WATERMARK.pack(log.ident, log.last_seq)
        log.reset_changes()
    return pieces, bytes(watermarks)


def mark_committed(logs: list[LogWriter]) -> None:
    """Mark logs as committed: the frame that `build_frame_body` made of them is durable."""
    for log in logs:
        log.committed_seq = log.sealed_seq


def decode_record(data: Any, at: int) -> tuple[int, bytes, bytes, bytes, int]:
    """Return (time_ns, subject, header, payload, ttl_s) of the record at `at`; the bytes must be verified."""
    view = memoryview(data)
    if at < 0 or at + RECORD_HEADER_BYTES > len(view):
        raise ValueError("no record there")
    size, sl, _, hl, ttl, _, time = RECORD_HEADER.unpack_from(view, at)
    if size < RECORD_HEADER_BYTES + sl + hl or at + size > len(view):
        raise ValueError("no record there")
    header = at + RECORD_HEADER_BYTES + sl
    return (
        time,
        bytes(view[at + RECORD_HEADER_BYTES : header]),
        bytes(view[header : header + hl]),
        bytes(view[header + hl : at + size]),
        ttl,
    )
