"""A log on disk: chooses the segment for each block, and writes large messages straight to their segment.

Owns the numbering of a stream's segments and what is known about its folder. Invariant: a segment number is used once.
Must not know when files are written: it passes blocks to its `LogContext`.
"""

from __future__ import annotations

from typing import cast

import msgspec

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.storage.checkpoint_schema import SegmentState, StreamCheckpoint
from headrace.storage.compressed_block import COMPRESSED_MAX, FEATURE
from headrace.storage.damage_report import Damage
from headrace.storage.format import (
    BLOCK_HEADER_BYTES,
    columns_path,
    encode_large_entry,
    stream_folder,
    subjects_path,
)
from headrace.storage.log.log import LogLimits, StreamLog
from headrace.storage.log.log_context import LogContext
from headrace.storage.native_records import RECORD_HEADER_BYTES, RecordBlock, SegmentIndex
from headrace.storage.segments.column_file import SubjectChecksum
from headrace.storage.segments.segment import SEQ_SPAN_MAX, FileSegment, FileState, Segment

SPARSE_FACTOR = 4  # rows per live row from which a growing segment counts as sparse


class FileLog(StreamLog):
    """A log on disk; see `StreamLog`.

    `saved_frame` is the frame whose state this log's newest checkpoint section contains.
    """

    def __init__(
        self, context: LogContext, ident: int, name: str, first_seq: int = 1, next_segment: int = 0
    ) -> None:
        options = context.options
        self.context = context
        self.next_segment = next_segment
        self.generation = 0
        self.loaded_generation = 0  # the generation when the store was opened
        self.next_generation = 1  # number of generations so far; a number is never reused
        self.subjects_saved = 0
        self.subjects_file_end = 0
        self.folder_state = FileState.NEW
        self.folder_synced = False
        self.is_compressed = False  # new blocks are compressed, once the store's root names the feature
        self.saved_frame = -1
        #: Numbers of segments that frames since the start refer to: their large messages are not in the journal.
        self.large_segments: set[int] = set()
        self.is_deleted = False
        self.deleted_in_frame = 0  # the frame in which it was deleted
        limits = LogLimits(
            block_bytes=options.block_bytes,
            segment_bytes=options.segment_bytes,
            segment_rows=options.segment_rows,
            large_bytes=options.large_bytes,
            subjects_min=options.subjects_min,
        )
        super().__init__(context.open_frame, ident, name, limits, journaled=True, first_seq=first_seq)
        self.subject_checksum = SubjectChecksum(self.subject_index.dump)

    def mark_deleted(self) -> None:
        """Record that the open frame deletes this log; nothing can be appended any more."""
        self.is_deleted = True
        self.deleted_in_frame = self.open_frame.number
        self.open_frame = self.context.closed_frame
        self.context.drop_large_writes(self)

    def make_segment(self, number: int, columns: SegmentIndex) -> FileSegment:
        """Make a segment of this log."""
        context = self.context
        return FileSegment(context.disk, context.block_cache, context.store_id, self.ident, number, columns)

    def allocate_segment_number(self) -> int:
        """Return a segment number that was never used."""
        self.next_segment += 1
        return self.next_segment - 1

    def make_active_segment(self) -> Segment:
        return self.make_segment(self.allocate_segment_number(), self.columns)

    def list_segments(self) -> list[FileSegment]:
        """List all segments by sequence, the active one last."""
        return cast("list[FileSegment]", [*self.sealed_segments, self.active_segment])

    # Large messages

    def append_large(
        self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int, flags: int
    ) -> int:
        """Write a message straight to the segment, once, and sync it before the frame that refers to it."""
        size = RECORD_HEADER_BYTES + len(subject) + len(header) + len(payload)
        self.context.take_large_space(size)
        if self.columns.rows and self.last_seq + 1 - self.columns.base > SEQ_SPAN_MAX:
            self.split_segment()  # before choosing the segment that the frame refers to
        self.finish_block()
        segment = cast("FileSegment", self.active_segment)
        direct = not self._may_compress_bytes(BLOCK_HEADER_BYTES + size) and (
            segment.state in (FileState.READY, FileState.RESERVED)
            or (segment.state is FileState.NEW and self.folder_state is not FileState.CREATING)
        )
        if direct and segment.state is FileState.NEW:
            # From now on the background queue must not create the file: that would be too late for this frame.
            segment.state = FileState.RESERVED
            self.folder_state = (
                FileState.RESERVED if self.folder_state is FileState.NEW else self.folder_state
            )
        seq = self.append_unchecked(subject, header, payload, time_ns, ttl_s, flags)
        block = self.finish_block(direct)
        if direct:
            assert block is not None
            sometimes("a large message is written straight to its segment")
            self.open_frame.pending_bytes -= size
            self.reference_block(
                encode_large_entry(
                    self.ident, segment.number, block.offset, BLOCK_HEADER_BYTES + block.used, seq
                )
            )
            self.large_segments.add(segment.number)
            self.context.large_writes.append((self, segment, block))
            self.context.large_pending_bytes += size
        return seq

    # Compression

    def set_compression(self, enabled: bool) -> None:
        if self.is_compressed != enabled:
            self.is_compressed = enabled
            self.saved_frame = -1  # its section says whether replayed records are compressed
        self._request_compression()

    def _request_compression(self) -> None:
        if self.is_compressed:
            self.context.features.request(FEATURE)

    def may_compress(self, block: RecordBlock) -> bool:
        """Return whether a block is to be compressed when it is written in the background."""
        return not block.direct and self._may_compress_bytes(BLOCK_HEADER_BYTES + block.used)

    def _may_compress_bytes(self, size: int) -> bool:
        return self.is_compressed and self.context.features.is_ready(FEATURE) and size <= COMPRESSED_MAX

    # Blocks and segments

    def on_block_added(self, segment: Segment, block: RecordBlock) -> None:
        if not block.direct:
            self.context.flusher.add_block(self, cast("FileSegment", segment), block)

    def on_segment_sealed(self, segment: Segment) -> None:
        self._request_compression()  # again, if there was no space for it before
        self.context.flusher.add_columns(self, cast("FileSegment", segment))

    def on_segment_dropped(self, segment: Segment) -> None:
        assert isinstance(segment, FileSegment)
        self.saved_frame = -1  # a section may name it as the growing one, without a live row
        self.context.file_gc.add_dead(self, segment)
        self.context.file_gc.add(self.get_columns_path(segment))

    def on_segment_replaced(self, segment: FileSegment) -> None:
        """Handle a segment that was replaced: the next checkpoint records that it is gone, no frame does."""
        self.context.file_gc.add(segment.path, segment.number in self.large_segments)
        self.context.file_gc.add(self.get_columns_path(segment))

    def on_rows_removed(self, segment: Segment) -> None:
        self.context.compactor.maybe_compact(self, cast("FileSegment", segment))

    def on_corrupt(self, segment: Segment, error: CorruptData) -> None:
        assert isinstance(segment, FileSegment)
        columns = segment.columns
        description = str(error)
        self.context.report.add_damage(
            Damage(description, self.name, columns.base, segment.last_seq, segment.path, True)
        )

    def on_columns_written(self, segment: FileSegment, packed: list[bytes]) -> None:
        """Record that the columns of a sealed segment are in a file, for the next opening and for readers with a pin.

        From now on they are packed in memory, too. The file is never used to decide about removals.
        """
        segment.columns.adopt_packed(packed)
        segment.columns_saved = True

    def get_columns_path(self, segment: FileSegment) -> str:
        """Return where the columns of a segment are, or will be."""
        return columns_path(self.ident, segment.number, self.generation)

    # Rows

    @property
    def is_sparse(self) -> bool:
        """Whether the growing segment has many rows and most are dead: they occupy memory until it is sealed."""
        columns = self.columns
        return (
            columns.rows >= self.context.options.sparse_rows and columns.alive * SPARSE_FACTOR <= columns.rows
        )

    def seal_early(self) -> None:
        """Seal the growing segment before it is full. Must not be called while a message is being appended."""
        segment = self.active_segment
        self.split_segment()
        if segment.columns.alive:
            self.on_rows_removed(segment)

    def drop_emptied_segment(self) -> None:
        """Drop the growing segment if the log was emptied: on a full disk its file is to be removed too."""
        if not self.messages and len(self.active_segment.blocks):
            self.split_segment()
            self.saved_frame = -1  # its section names a file that is about to be removed

    # Subjects

    def start_generation(self) -> None:
        """Start a new generation: subjects get new ids, and saved subjects and columns become invalid."""
        self.generation = self.next_generation
        self.next_generation += 1
        self.subjects_saved = self.subjects_file_end = 0
        self.subject_checksum = SubjectChecksum(self.subject_index.dump)

    def on_subjects_renumbered(self) -> None:
        sealed = self.list_segments()[:-1]
        self.context.file_gc.add(subjects_path(self.ident, self.generation))
        for segment in sealed:
            self.context.file_gc.add(self.get_columns_path(segment))
        self.start_generation()
        for segment in sealed:
            # Columns scanned around damage must not be saved as those of an intact segment.
            is_undamaged = segment.columns_saved or not segment.damaged
            segment.columns_saved = False
            if is_undamaged:
                self.on_segment_sealed(segment)

    # Checkpoints

    def encode_state(self) -> bytes:
        """Encode the current state of this log as a checkpoint section."""
        assert 0 < self.ident < 1 << 32
        assert self.first_seq <= self.last_seq + 1
        tail = bytes(memoryview(self.tail)[: self.tail_used])
        state = StreamCheckpoint(
            name=self.name,
            ident=self.ident,
            last_seq=self.last_seq,
            last_time_ns=self.last_time_ns,
            next_segment=self.next_segment,
            generation=self.generation,
            segments=[
                self._make_segment_state(segment) for segment in self.list_segments() if len(segment.blocks)
            ],
            tail=tail,
            tail_live=self.columns.live_bits(self.tail_row, self.columns.rows),
            is_compressed=self.is_compressed,
        )
        return msgspec.msgpack.encode(state)

    def _make_segment_state(self, segment: FileSegment) -> SegmentState:
        columns = segment.columns
        if segment is not self.active_segment:
            return SegmentState(
                segment.number, columns.base, segment.last_seq, columns.rows, segment.end, segment.live_bits()
            )
        rows = self.tail_row
        last = columns.seq(rows - 1)
        return SegmentState(segment.number, columns.base, last, rows, segment.end, columns.live_bits(0, rows))

    @property
    def folder_path(self) -> str:
        return stream_folder(self.ident)
