"""A log that lives in memory only: the same interface, nothing on disk, gone with the process.

Owns its blocks. Invariant: dead records do not hold memory for long: a segment of which less than half
lives is packed again, together with a small neighbour. Must not know disks.
"""

from __future__ import annotations

from headrace.store.log import Log
from headrace.store.options import StoreOptions
from headrace.store.records import Block, Gate, Packer
from headrace.store.segments import Segment, within_reach

SEGMENT_BYTES_MAX = 4 << 20  # packed again in one go, so small


class MemoryLog(Log):
    """Changes join the tick like those of files, but need no write: their frame may be empty."""

    def __init__(self, gate: Gate, ident: int, name: str, options: StoreOptions, first_seq: int) -> None:
        self.next_segment = 0
        self._block_bytes = options.block_bytes
        super().__init__(
            gate,
            ident,
            name,
            block_bytes=options.block_bytes,
            segment_bytes=min(options.segment_bytes, SEGMENT_BYTES_MAX),
            segment_rows=options.segment_rows,
            large_bytes=1 << 62,
            subjects_min=options.subjects_min,
            journaled=False,
            first_seq=first_seq,
        )

    def fresh_segment(self) -> Segment:
        self.next_segment += 1
        return Segment(self.next_segment, self.columns)

    def _remove_all(self, seq: int) -> None:
        super()._remove_all(seq)
        self._tidy()

    def _removed(self, segment: Segment) -> None:
        super()._removed(segment)
        self._tidy()

    def _tidy(self) -> None:
        """After a removal, never when a segment is dropped because it is full: then a message is being appended."""
        if self.crowded:
            self.forget_subjects()

    def thinned(self, segment: Segment) -> None:
        if segment.columns.alive_bytes * 2 >= segment.end:
            return
        at = self.sealed.index(segment)
        run = [segment]
        before = self.sealed[at - 1] if at else segment
        small = before.columns.alive_bytes * 2 < self.segment_bytes
        if before is not segment and small and within_reach(before, segment):
            run.insert(0, before)
        self.exchange(run, [self._packed(run)])

    def _packed(self, run: list[Segment]) -> Segment:
        """One segment with the live rows of several."""
        packer = Packer(self.table, self._block_bytes)
        for old in run:
            columns, row = old.columns, 0
            for offset in old.blocks:
                block = old.pending[offset]
                data, place = old.fetch(offset)
                packer.copy(columns, row, row + block.records, data, place)
                row += block.records
        packer.cut()
        self.next_segment += 1
        fresh = Segment(self.next_segment, packer.columns)
        for block in packer.blocks:
            fresh.add(_exact(block))
        return fresh


def _exact(block: Block) -> Block:
    """A block whose buffer is no larger than its records."""
    data = bytearray(block.view)
    return Block(block.offset, data, block.used, block.first_seq, block.records, False)
