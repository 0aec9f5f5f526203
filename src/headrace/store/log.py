"""One stream's log: how it grows and shrinks, and the way to a message.

Owns the changes. Invariant: `messages`, `bytes`, first and last sequence and the counts of subjects
agree with the live rows at any time, and every change is noted for the frame under construction. Must
not know files:
`FileLog` and `MemoryLog` say where blocks go.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.errors import Corrupt, StoreError
from headrace.store.questions import Questions
from headrace.store.records import BLOCK_BYTES, Array, Block, Gate, unpack
from headrace.store.segments import Buffer, Segment

ROWS_PER_SUBJECT = 64  # looked at for each subject that is forgotten, at most
SHORT_RUN = 64  # removals of fewer sequences are replayed one by one, in the kernel


#: Sequences end here, far away, so that no arithmetic on them overflows.
SEQ_MAX = 1 << 62
#: No sequence that a store writes is above; the kernel has the same limit.
SEQ_END = (1 << 63) - 1


class Log(Questions):
    """The interface that file and memory logs share; `Appender` has `append`, `Questions` what can be
    asked.
    """

    def __init__(
        self,
        gate: Gate,
        ident: int,
        name: str,
        *,
        block_bytes: int,
        segment_bytes: int,
        segment_rows: int,
        large_bytes: int,
        subjects_min: int,
        journaled: bool,
        first_seq: int,
    ) -> None:
        self.name = name
        self.segment_bytes = segment_bytes
        self.segment_rows = segment_rows
        self.subjects_min = subjects_min
        self.lost: list[
            tuple[int, int]
        ] = []  # sequences (inclusive) that were acknowledged and cannot be read
        super().__init__(gate, ident, block_bytes, large_bytes, journaled, first_seq)

    # What a kind of log decides

    def stored(self, segment: Segment, block: Block) -> None:
        """A block was cut."""

    def closed(self, segment: Segment) -> None:
        """A segment was sealed."""

    def dropped(self, segment: Segment) -> None:
        """Nothing of a segment lives any more; the log does not know it any longer."""

    def thinned(self, segment: Segment) -> None:
        """Some rows of a sealed segment died."""

    def damaged(self, segment: Segment, error: Corrupt) -> None:
        """A block could not be read."""

    # Growing

    def on_cut(self, block: Block) -> None:
        self.blocks.clear()
        segment = self.active
        segment.add(block)
        self.stored(segment, block)
        if self.block_at >= self.segment_bytes or self.columns.rows >= self.segment_rows:
            self.roll()

    def roll(self) -> None:
        """Seals the active segment, if it has rows, and starts another; the tail must be empty."""
        segment = self.active
        if not segment.columns.rows:
            return
        self.begin()
        self.active = self.fresh_segment()
        if segment.columns.alive:
            self.sealed.append(segment)
            self._bases.append(segment.columns.base)
            self.closed(segment)
        else:
            self.dropped(segment)

    def split(self) -> None:
        self.cut()
        self.roll()

    def advance(self, seq: int) -> None:
        """The next append gets `seq` + 1; what is skipped counts as deleted."""
        if seq <= self.last_seq:
            return
        if seq > SEQ_MAX:
            raise StoreError(f"sequence {seq} is beyond what a log can count to ({SEQ_MAX})")
        self.last_seq = seq
        if not self.messages:
            self.first_seq = seq + 1
        self.note_advance(seq)
        self.touch()

    # Removing

    def remove(self, seq: int) -> bool:
        segment = self._segment(seq)
        if segment is None:
            return False
        row = segment.columns.find(seq)
        if row < 0:
            return False
        self.discount(segment.columns, row, row + 1)
        self.note_gone(seq, seq)
        self._removed(segment)
        self.touch()
        return True

    def remove_many(self, seqs: Iterable[int] | Array) -> int:
        wanted = seqs if isinstance(seqs, np.ndarray) else np.fromiter(seqs, np.uint64)
        wanted = np.unique(wanted.astype(np.uint64, copy=False))
        wanted = wanted[np.searchsorted(wanted, np.uint64(self.first_seq)) :]
        removed = 0
        while len(wanted):
            segment, end = self._reach(int(wanted[0]))
            upto = int(np.searchsorted(wanted, np.uint64(end))) if end else len(wanted)
            if segment is not None:
                gone = self.discount_seqs(segment.columns, np.ascontiguousarray(wanted[:upto]))
                removed += gone
                if gone:
                    self._removed(segment)
            wanted = wanted[upto:]
        if removed:
            self.touch()
        return removed

    def remove_runs(self, runs: Array) -> None:
        """Replay of removals: pairs of first and last sequence."""
        lengths = runs[:, 1] - runs[:, 0]
        short = runs[lengths < SHORT_RUN]
        steps = (short[:, 1] - short[:, 0] + np.uint64(1)).astype(np.int64)
        starts = np.repeat(short[:, 0], steps)
        within = np.arange(len(starts)) - np.repeat(np.cumsum(steps) - steps, steps)
        self.remove_many(starts + within.astype(np.uint64))
        for first, last in runs[lengths >= SHORT_RUN].tolist():
            for segment in list(self._up(first)):
                columns = segment.columns
                if columns.base > last:
                    break
                self.discount(columns, columns.lower(first), columns.lower(last + 1))
                self._removed(segment)

    def remove_below(self, seq: int) -> int:
        """Everything below goes; an empty log continues at `seq` if that is further on."""
        if seq <= self.first_seq:
            return 0
        before = self.messages
        if seq > self.last_seq:
            self._remove_all(seq)
        else:
            self._remove_front(seq)
        self.note_trim(seq)
        self.touch()
        return before - self.messages

    def _remove_all(self, seq: int) -> None:
        self.table.clear()
        self.messages = self.bytes = 0
        for segment in self.sealed:
            self._filters.forget(segment.number)
            self.dropped(segment)
        self.sealed, self._bases = [], []
        if self.columns.rows:
            self.columns.kill_all()
        self.last_seq = max(self.last_seq, seq - 1)
        self.first_seq = self.last_seq + 1

    def _remove_front(self, seq: int) -> None:
        for segment in list(self._up(self.first_seq)):
            columns = segment.columns
            if columns.base >= seq:
                break
            self.discount(columns, columns.lower(self.first_seq), columns.lower(seq))
            self._removed(segment)
        if self.messages and self.first_seq < seq:
            self.first_seq = self._first_live(seq)

    def _removed(self, segment: Segment) -> None:
        """Rows of a segment died: find the new first, and let go of what is empty."""
        if not self.messages:
            self.first_seq = self.last_seq + 1
        elif self._find(self.first_seq) is None:
            self.first_seq = self._first_live(self.first_seq + 1)
        if segment is self.active:
            return
        if segment.columns.alive:
            self.thinned(segment)
        else:
            self.exchange([segment], [])
            self.dropped(segment)

    @property
    def crowded(self) -> bool:
        """Whether most of the subjects it knows are those of messages that are gone, and many enough to be worth a
        look at every row.
        """
        gone = len(self.table) - self.num_subjects
        if gone < self.subjects_min or gone <= self.num_subjects:
            return False
        rows = sum(segment.columns.rows for segment in (*self.sealed, self.active))
        return gone * ROWS_PER_SUBJECT >= rows

    def forget_subjects(self) -> None:
        """Those without a live message; the others get new ids. Not while a message is being appended."""
        self._filters.refresh()
        moved = self.table.retain()
        for segment in (*self.sealed, self.active):
            segment.columns.renumber(moved)
        self._filters.renumbered()

    def exchange(self, old: list[Segment], new: list[Segment]) -> None:
        """Sealed segments, which must be neighbours, are replaced by others of the same sequences."""
        at = self.sealed.index(old[0])
        self.sealed[at : at + len(old)] = new
        self._bases[at : at + len(old)] = [segment.columns.base for segment in new]
        for segment in old:
            self._filters.forget(segment.number)

    # One message

    def get(self, seq: int) -> tuple[int, bytes, bytes, bytes, int] | None:
        """(time_ns, subject, header, payload, ttl_s); None if absent; `Corrupt` if it is there but
        unreadable.
        """
        found = self.place(seq)
        if found is None:
            return None
        try:
            return unpack(*found)
        except ValueError:
            raise Corrupt(
                f"sequence {seq} of stream {self.name} is not where its row says; run headrace fsck"
            ) from None

    def place(self, seq: int) -> tuple[Buffer, int] | None:
        """The bytes that hold a record, and where in them it begins; None if it is absent."""
        segment = self._segment(seq)
        row = segment.columns.find(seq) if segment is not None else -1
        if segment is None or row < 0:
            self._check_lost(seq)
            return None
        offset = segment.columns.where(row)
        data, start = self._bytes(segment, offset)
        return data, offset - start

    def view(self, seq: int, max_bytes: int) -> tuple[memoryview, int]:
        """Raw records from that of `seq` on, as far as they lie together, and how many; dead ones included.

        At least one record whatever its size; empty if `seq` has no live record.
        """
        segment = self._find(seq)
        if segment is None:
            self._check_lost(seq)
            return memoryview(b""), 0
        columns = segment.columns
        row = columns.index(seq)
        offset = columns.where(row)
        data, place = self._bytes(segment, offset)
        rows = columns.rows
        in_tail = segment is self.active and offset >= self.block_at
        # Not `len(data)`: a buffer that was cut early is larger than its records.
        beyond = (
            rows if in_tail else row + int(np.searchsorted(columns.offset[row:rows], segment.after(offset)))
        )
        ends = columns.offset[row:beyond].astype(np.int64) + columns.size[row:beyond].astype(np.int64)
        count = max(int(np.searchsorted(ends, offset + max_bytes, side="right")), 1)
        return memoryview(data)[offset - place : int(ends[count - 1]) - place], count

    def block_with(self, offset: int) -> tuple[Buffer, int]:
        """(bytes, place of their first byte) of the block of the active segment that holds an offset."""
        return self._bytes(self.active, offset)

    def _bytes(self, segment: Segment, offset: int) -> tuple[Buffer, int]:
        if segment is self.active and offset >= self.block_at:
            return self.tail, self.block_at + BLOCK_BYTES
        try:
            return segment.find(offset)
        except Corrupt as error:
            self.damaged(segment, error)
            raise

    def _check_lost(self, seq: int) -> None:
        for first, last in self.lost:
            if first <= seq <= last:
                raise Corrupt(f"sequence {seq} of stream {self.name} was lost; headrace fsck says more")
