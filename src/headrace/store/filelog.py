"""A log on disk: which segment a block goes to, and how a large message gets there first.

Owns the numbering of a stream's segments and what is known of its folder. Invariant: a segment number is used
once. Must not know when things are written: it hands blocks to its shelf.
"""

from __future__ import annotations

from typing import cast

import msgspec

from headrace.errors import Corrupt
from headrace.probes import probe
from headrace.store.format import BLOCK_BYTES, columns_path, large_entry, stream_folder, subjects_path
from headrace.store.log import Log
from headrace.store.records import Block, Columns
from headrace.store.report import Damage
from headrace.store.segments import REACH, FileSegment, Segment, State
from headrace.store.shelf import Shelf
from headrace.store.states import SegmentState, StreamState

SPARSE = 4  # rows for one that lives, from which on a growing segment is sparse


class FileLog(Log):
    """See `Log`; `saved_tick` is the tick whose state the newest checkpoint section of this log holds."""

    def __init__(
        self, shelf: Shelf, ident: int, name: str, first_seq: int = 1, next_segment: int = 0
    ) -> None:
        options = shelf.options
        self.shelf = shelf
        self.next_segment = next_segment
        self.generation = 0
        self.found_generation = 0  # when the store was opened
        self.generations = 1  # how many were ever begun; a number is not used again
        self.subjects_saved = 0
        self.subjects_end = 0
        self.folder = State.NEW
        self.folder_synced = False
        self.saved_tick = -1
        self.gone = False
        self.ended = 0  # the frame in which it was deleted
        super().__init__(
            shelf.gate,
            ident,
            name,
            block_bytes=options.block_bytes,
            segment_bytes=options.segment_bytes,
            segment_rows=options.segment_rows,
            large_bytes=options.large_bytes,
            subjects_min=options.subjects_min,
            journaled=True,
            first_seq=first_seq,
        )

    def segment(self, number: int, columns: Columns) -> FileSegment:
        """A segment of this log."""
        shelf = self.shelf
        return FileSegment(shelf.disk, shelf.cache, shelf.store, self.ident, number, columns)

    def take_number(self) -> int:
        """A segment number that was never used."""
        self.next_segment += 1
        return self.next_segment - 1

    def fresh_segment(self) -> Segment:
        return self.segment(self.take_number(), self.columns)

    def files(self) -> list[FileSegment]:
        """All segments in order of sequence, the active one last."""
        return cast("list[FileSegment]", [*self.sealed, self.active])

    # Large messages

    def append_large(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int, flags: int
    ) -> int:
        """Straight to the segment, once, and synced before the frame that refers to it."""
        size = 32 + len(subject) + len(header) + len(payload)
        self.shelf.check_space(size)
        if self.columns.rows and self.last_seq + 1 - self.columns.base > REACH:
            self.split()  # before the segment is chosen that the frame refers to
        self.cut()
        segment = cast("FileSegment", self.active)
        direct = segment.state in (State.READY, State.CLAIMED) or (
            segment.state is State.NEW and self.folder is not State.MAKING
        )
        if direct and segment.state is State.NEW:
            # From here on it is not for lane "behind" to make: that would come too late for this frame.
            segment.state = State.CLAIMED
            self.folder = State.CLAIMED if self.folder is State.NEW else self.folder
        seq = self.put(subject, header, payload, time_ns, ttl_s, flags)
        block = self.cut(direct)
        if direct:
            assert block is not None
            probe("a large message goes straight to its segment")
            self.gate.pending -= size
            self.refer(large_entry(self.ident, segment.number, block.offset, BLOCK_BYTES + block.used, seq))
            self.shelf.larges.append((self, segment, block))
            self.shelf.large_bytes += size
        return seq

    # What happens to blocks and segments

    def stored(self, segment: Segment, block: Block) -> None:
        if not block.direct:
            self.shelf.queue_block(self, cast("FileSegment", segment), block)

    def closed(self, segment: Segment) -> None:
        self.shelf.queue_columns(self, cast("FileSegment", segment))

    def dropped(self, segment: Segment) -> None:
        assert isinstance(segment, FileSegment)
        self.saved_tick = -1  # a section may name it as the growing one, without a live row
        self.shelf.bury(self, segment)
        self.shelf.discard(self.columns_path(segment))

    def replaced(self, segment: FileSegment) -> None:
        """Another segment has its live rows, or none ever will; only a checkpoint can say so."""
        self.shelf.discard(segment.path)
        self.shelf.discard(self.columns_path(segment))

    def thinned(self, segment: Segment) -> None:
        self.shelf.consider(self, cast("FileSegment", segment))

    def damaged(self, segment: Segment, error: Corrupt) -> None:
        assert isinstance(segment, FileSegment)
        columns = segment.columns
        what = str(error)
        self.shelf.damage(Damage(what, self.name, columns.base, segment.last, segment.path, True))

    def columns_written(self, segment: FileSegment) -> None:
        """The columns of a sealed segment are in a file now, for the next opening and for readers with a pin.

        Those in memory go on serving. What a file says later, rotten or cut short, decides about no removal.
        """
        segment.columns.seal()
        segment.saved = True

    def columns_path(self, segment: FileSegment) -> str:
        """Where the columns of a segment are, or will be."""
        return columns_path(self.ident, segment.number, self.generation)

    # Rows

    @property
    def sparse(self) -> bool:
        """Whether the growing segment has many rows and most of them are dead: they take memory until it is sealed."""
        columns = self.columns
        return columns.rows >= self.shelf.options.sparse_rows and columns.alive * SPARSE <= columns.rows

    def shed_rows(self) -> None:
        """Seals the growing segment before it is full. Not while a message is being appended."""
        segment = self.active
        self.split()
        if segment.columns.alive:
            self.thinned(segment)

    # Subjects

    def begin_generation(self) -> None:
        """From here on subjects have other ids: what was saved of them and of columns says nothing any more."""
        self.generation = self.generations
        self.generations += 1
        self.subjects_saved = self.subjects_end = 0

    def forget_subjects(self) -> None:
        super().forget_subjects()
        sealed = self.files()[:-1]
        self.shelf.discard(subjects_path(self.ident, self.generation))
        for segment in sealed:
            self.shelf.discard(self.columns_path(segment))
        self.begin_generation()
        for segment in sealed:
            # Columns that were scanned around damage would pass for those of a whole segment.
            whole = segment.saved or not segment.damaged
            segment.saved = False
            if whole:
                self.closed(segment)

    # Checkpoints

    def capture(self) -> bytes:
        """This log as of now, as a section of a checkpoint."""
        tail = bytes(memoryview(self.tail)[: self.tail_used])
        state = StreamState(
            name=self.name,
            ident=self.ident,
            last_seq=self.last_seq,
            last_time_ns=self.last_time_ns,
            next_segment=self.next_segment,
            generation=self.generation,
            segments=[self._segment_state(segment) for segment in self.files() if len(segment.blocks)],
            tail=tail,
            tail_live=self.columns.live_bits(self.tail_row, self.columns.rows),
        )
        return msgspec.msgpack.encode(state)

    def _segment_state(self, segment: FileSegment) -> SegmentState:
        columns = segment.columns
        if segment is not self.active:
            return SegmentState(
                segment.number, columns.base, segment.last, columns.rows, segment.end, segment.live_bits()
            )
        rows = self.tail_row
        last = columns.seq(rows - 1)
        return SegmentState(segment.number, columns.base, last, rows, segment.end, columns.live_bits(0, rows))

    @property
    def folder_path(self) -> str:
        return stream_folder(self.ident)
