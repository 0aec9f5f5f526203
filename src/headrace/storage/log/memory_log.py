"""A log in memory only: same interface as `FileLog`, nothing on disk, gone when the process ends.

Owns its blocks. Invariant: dead records do not occupy memory for long; a segment with less than half of its bytes live
is repacked, together with a small neighbour. Must not know disks.
"""

from __future__ import annotations

from headrace.storage.log.log import LogLimits, StreamLog
from headrace.storage.native_records import BlockBuilder, OpenFrame, RecordBlock
from headrace.storage.options import StoreOptions
from headrace.storage.segments.segment import Segment, fits_one_segment

SEGMENT_BYTES_MAX = 4 << 20  # small, because a segment is repacked in one step


class MemoryLog(StreamLog):
    """A log in memory; its changes are part of a frame, which is committed at once (see `MemoryFrames`)."""

    def __init__(
        self, open_frame: OpenFrame, ident: int, name: str, options: StoreOptions, first_seq: int
    ) -> None:
        self.next_segment = 0
        self._block_bytes = options.block_bytes
        limits = LogLimits(
            block_bytes=options.block_bytes,
            segment_bytes=min(options.segment_bytes, SEGMENT_BYTES_MAX),
            segment_rows=options.segment_rows,
            large_bytes=1 << 62,
            subjects_min=options.subjects_min,
        )
        super().__init__(open_frame, ident, name, limits, journaled=False, first_seq=first_seq)

    def refuse_appends(self) -> None:
        """Refuse all messages from now on: the store has failed, and nothing is acknowledged until a restart."""
        self.large_bytes = 0

    def append_large(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int, flags: int
    ) -> int:
        """Raise the error of the store; only called after `refuse_appends`, because no message is large in memory."""
        assert self.open_frame.extend is not None
        self.open_frame.extend(0)
        return super().append_large(subject, header, payload, time_ns, ttl_s, flags)

    def make_active_segment(self) -> Segment:
        self.next_segment += 1
        return Segment(self.next_segment, self.columns)

    def _remove_all(self, seq: int) -> None:
        super()._remove_all(seq)
        self._maybe_drop_dead_subjects()

    def _after_removal(self, segment: Segment) -> None:
        super()._after_removal(segment)
        self._maybe_drop_dead_subjects()

    def _maybe_drop_dead_subjects(self) -> None:
        """Drop dead subjects after a removal, but never when a full segment is dropped: then a message is being
        appended.
        """
        if self.has_many_dead_subjects:
            self.drop_dead_subjects()

    def on_rows_removed(self, segment: Segment) -> None:
        if segment.columns.alive_bytes * 2 >= segment.end:
            return
        at = self.sealed_segments.index(segment)
        run = [segment]
        previous = self.sealed_segments[at - 1] if at else segment
        small = previous.columns.alive_bytes * 2 < self.segment_bytes
        if previous is not segment and small and fits_one_segment(previous, segment):
            run.insert(0, previous)
        self.replace_segments(run, [self._repack(run)])

    def _repack(self, run: list[Segment]) -> Segment:
        """Merge the live rows of several segments into one."""
        builder = BlockBuilder(self.subject_index, self._block_bytes)
        for old in run:
            columns, row = old.columns, 0
            for offset in old.blocks:
                block = old.pending[offset]
                data, base_offset = old.read_block(offset)
                builder.copy_rows(columns, row, row + block.records, data, base_offset)
                row += block.records
        builder.finish_block()
        self.next_segment += 1
        repacked = Segment(self.next_segment, builder.columns)
        for block in builder.blocks:
            repacked.add_block(_shrink_block(block))
        return repacked


def _shrink_block(block: RecordBlock) -> RecordBlock:
    """Return the block with a buffer no larger than its records."""
    data = bytearray(block.view)
    return RecordBlock(block.offset, data, block.used, block.first_seq, block.records, False)
