"""Flushes full blocks, columns and subjects to their files in the background.

Owns the queue of segment writes (disk queue "behind"). Invariant: items are written in order, and a block leaves memory
only when it is in its file. A full disk stops the queue until `resume` succeeds; nothing is lost, because the journal
has everything. Must not know frames or checkpoints.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from headrace.code_probes import sometimes
from headrace.storage.compressed_block import compress_block
from headrace.storage.format import (
    ALIGN,
    BLOCK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    align_up,
    encode_block_header,
    encode_segment_header,
    subjects_path,
)
from headrace.storage.io.disk import Disk, Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log_context import LargeWrite
from headrace.storage.native_records import RecordBlock
from headrace.storage.options import StoreOptions
from headrace.storage.segments.column_file import ColumnFile, ColumnFileId, SubjectTable, encode_subjects
from headrace.storage.segments.segment import FileSegment, FileState


class _LastByte(bytes):
    """The last byte of a block that may be compressed."""


class _FlushItem(NamedTuple):
    log: FileLog
    segment: FileSegment
    block: RecordBlock | None  # None: the segment's columns


def create_folder_ops(log: FileLog, disk: Disk) -> list[Op]:
    """Return the operations that create a stream's folder if it does not exist."""
    if log.folder_state not in (FileState.NEW, FileState.RESERVED):
        return []
    log.folder_state = FileState.CREATING
    return [] if disk.exists(log.folder_path) else [("mkdir", log.folder_path)]


def create_segment_ops(log: FileLog, segment: FileSegment, disk: Disk) -> list[Op]:
    """Return the operations that create a segment's file if it does not exist."""
    if segment.state not in (FileState.NEW, FileState.RESERVED):
        return []
    segment.state = FileState.CREATING
    header = encode_segment_header(log.context.store_id, log.ident, segment.number)
    ops: list[Op] = [] if disk.exists(segment.path) else [("create", segment.path, 0)]
    return [*ops, ("write", segment.path, 0, header)]


def encode_block(segment: FileSegment, block: RecordBlock) -> list[bytes | memoryview]:
    """Return a block's bytes as written to the file."""
    view = block.view
    assert block.records > 0
    assert len(view) == block.used
    assert block.offset >= SEGMENT_HEADER_BYTES
    assert block.offset % ALIGN == 0
    return [encode_block_header(segment.seed, block.offset, block.first_seq, block.records, view), view]


def encode_smaller_block(segment: FileSegment, block: RecordBlock, min_saving: int) -> list[Any]:
    """Return a block's bytes as written to the file, compressed if that saves at least `min_saving` bytes.

    Takes about 0.2 ms, so it is called on the thread of the background queue; the compiled core releases the GIL.
    """
    parts = encode_block(segment, block)
    compressed = compress_block(segment.seed, block.offset, b"".join(parts), min_saving)
    if compressed is None:
        return parts
    sometimes("block compressed")
    return [compressed]


def large_message_ops(large_writes: list[LargeWrite], disk: Disk) -> list[Op]:
    """Return the operations that make large messages durable, with their files and names, before the frame that refers
    to them.

    Adjacent messages are written by one operation, and their checksums are computed on the thread that writes them.
    """
    ops: list[Op] = []
    runs: dict[str, tuple[FileLog, FileSegment, list[list[RecordBlock]]]] = {}
    for log, segment, block in large_writes:
        _, _, blocks = runs.setdefault(segment.path, (log, segment, []))
        if blocks and blocks[-1][-1].offset + _padded_length(blocks[-1][-1]) == block.offset:
            blocks[-1].append(block)
        else:
            blocks.append([block])
    for log, segment, blocks in runs.values():
        ops += create_folder_ops(log, disk) + create_segment_ops(log, segment, disk)
        ops += [("write", segment.path, run[0].offset, partial(_encode_run, segment, run)) for run in blocks]
    for path, (log, segment, _) in runs.items():
        ops.append(("sync", path))
        if not log.folder_synced:
            ops.append(("syncdir", "streams"))
        if not segment.folder_synced:
            ops.append(("syncdir", log.folder_path))
    return ops


def _padded_length(block: RecordBlock) -> int:
    return align_up(BLOCK_HEADER_BYTES + block.used)


def _encode_run(segment: FileSegment, run: list[RecordBlock]) -> list[bytes | memoryview]:
    """Return the bytes of adjacent blocks, with the zeros between them."""
    parts: list[bytes | memoryview] = []
    for block in run:
        parts += encode_block(segment, block)
        parts.append(bytes(_padded_length(block) - BLOCK_HEADER_BYTES - block.used))
    parts.pop()  # the file ends with the last block
    return parts


class SegmentFlusher:
    """The flush queue. One submission runs at a time, so that other work on the background queue gets its turn."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        on_progress: Callable[[], None],
        on_no_space: Callable[[OSError], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._options = options
        self._on_progress = on_progress
        self._on_no_space = on_no_space
        self._on_error = on_error
        self._queue: deque[_FlushItem] = deque()
        self._busy = False
        #: Generation, saved subjects and end of the subjects file, once the current columns are written.
        self._subjects_after_write = (0, 0, 0)
        self._columns_to_write: ColumnFile | None = None
        self.out_of_space = False
        self.pending_bytes = 0
        self.added_count = 0
        self.finished_count = 0
        self._waiters: list[tuple[int, Callable[[], None]]] = []
        self.unsynced_segments: dict[str, tuple[FileLog, FileSegment]] = {}

    def add_block(self, log: FileLog, segment: FileSegment, block: RecordBlock) -> None:
        self._queue.append(_FlushItem(log, segment, block))
        self.added_count += 1
        self.pending_bytes += block.used

    def add_columns(self, log: FileLog, segment: FileSegment) -> None:
        self._queue.append(_FlushItem(log, segment, None))
        self.added_count += 1

    def call_when_flushed(self, done: Callable[[], None]) -> None:
        """Call `done` when everything added so far is written."""
        self._waiters.append((self.added_count, done))
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self.finished_count:
            self._waiters.pop(0)[1]()

    def submit_next(self) -> None:
        """Submit the next part of the queue, if nothing is running."""
        if self._queue and not self.out_of_space:
            self._submit()

    def _submit(self) -> bool:
        """Submit the next batch if idle; return whether a submission is running now."""
        batch, ops = self._take_batch() if not self._busy else ([], [])
        if batch:
            self._busy = True
            self._disk.submit("behind", ops, lambda error: self._on_written(batch, error))
        return self._busy

    def flush_now(self) -> None:
        """Write everything queued, blocking; for recovery."""
        while True:
            batch, ops = self._take_batch()
            if not batch:
                return
            self._disk.run(ops)
            self._mark_finished(batch)

    def resume(self) -> None:
        """Retry after a full disk: submit the next batch; the queue stays stopped until that batch is written."""
        if self.out_of_space:
            self.out_of_space = self._submit()

    def hold(self) -> None:
        """Stop the queue until there is space; see `resume`."""
        self.out_of_space = bool(self._queue)

    def drop_released(self) -> None:
        """Drop queued blocks of segments whose files are gone; the items stay in the queue, because they are counted."""
        for at, item in enumerate(self._queue):
            if item.block is not None and item.segment.released:
                self.pending_bytes -= item.block.used
                self._queue[at] = item._replace(block=None)

    def _take_batch(self) -> tuple[list[_FlushItem], list[Op]]:
        batch: list[_FlushItem] = []
        ops: list[Op] = []
        size = 0
        while self._queue and size < self._options.flush_bytes:
            item = self._queue[0]
            if (
                item.log.is_deleted
                or item.segment.released
                or (item.block is None and not self._needs_columns(item))
            ):
                if batch:
                    sometimes("an obsolete item waits in the flush queue")
                    break  # `finished_count` counts in order, and the items before it are not written yet
                self._skip(self._queue.popleft())
                continue
            if _is_created_by_commit(item, batch):
                sometimes("a block waits for a large message")
                break  # the commit queue creates its file for a large message, and has not yet
            if item.block is None:
                if not batch:
                    return self._take_columns(self._queue.popleft())
                break
            previous = batch[-1].block if batch else None
            batch.append(self._queue.popleft())
            created = create_folder_ops(item.log, self._disk) + create_segment_ops(
                item.log, item.segment, self._disk
            )
            ops += created
            append_block_write(ops, item.log, item.segment, item.block, None if created else previous)
            size += item.block.used
        return batch, ops

    def _skip(self, item: _FlushItem) -> None:
        self.finished_count += 1
        if item.block is not None:
            self.pending_bytes -= item.block.used

    def _take_columns(self, item: _FlushItem) -> tuple[list[_FlushItem], list[Op]]:
        log, segment = item.log, item.segment
        ops: list[Op] = []
        total = len(log.subject_index)
        self._subjects_after_write = (log.generation, log.subjects_saved, log.subjects_file_end)
        if total > log.subjects_saved:
            path = subjects_path(log.ident, log.generation)
            if log.subjects_file_end == 0 and not self._disk.exists(path):
                ops.append(("create", path, 0))
            chunk = encode_subjects(log.subject_index, log.subjects_saved, total)
            ops.append(("write", path, log.subjects_file_end, chunk))
            self._subjects_after_write = (log.generation, total, log.subjects_file_end + len(chunk))
        file_id = ColumnFileId(log.context.store_id, log.ident, segment.number, segment.end, log.generation)
        path = log.get_columns_path(segment)
        ops.append(("create", path, 0))
        subjects = SubjectTable(total, log.subject_checksum.compute(total))
        self._columns_to_write = ColumnFile(file_id, segment.columns, segment.blocks, subjects)
        ops.append(("write", path, 0, self._columns_to_write.encode))
        return [item], ops

    def _needs_columns(self, item: _FlushItem) -> bool:
        """Return whether columns are still to be written: not if the segment is gone, nor over an existing file.

        An existing bad file stays as it is and is not used.
        """
        return item.segment in item.log.sealed_segments and not self._disk.exists(
            item.log.get_columns_path(item.segment)
        )

    def _on_written(self, batch: list[_FlushItem], error: OSError | None) -> None:
        self._busy = False
        if error is None:
            self.out_of_space = False
            self._mark_finished(batch)
            self.submit_next()
        elif error.errno == errno.ENOSPC:
            self._requeue(batch)
            self._on_no_space(error)
        else:
            self._busy = True  # for good: nothing is retried
            self._on_error(error)
            return
        self._notify_waiters()
        self._on_progress()

    def _mark_finished(self, batch: list[_FlushItem]) -> None:
        for item in batch:
            self.finished_count += 1
            log, segment, block = item
            if block is None:
                generation, saved, end = self._subjects_after_write
                columns, self._columns_to_write = self._columns_to_write, None
                if generation != log.generation or columns is None:
                    continue  # subjects got new ids meanwhile
                log.subjects_saved, log.subjects_file_end = saved, end
                if not log.is_deleted and segment in log.sealed_segments:
                    log.on_columns_written(segment, columns.packed)
                continue
            self.pending_bytes -= block.used
            log.folder_state = segment.state = FileState.READY
            segment.on_block_written(block)
            if not log.is_deleted and not segment.released:
                self.unsynced_segments[segment.path] = (log, segment)

    def _requeue(self, batch: list[_FlushItem]) -> None:
        """Put blocks back to wait for space; columns are only a cache and are dropped."""
        if batch[0].block is None:
            self._columns_to_write = None
            self.finished_count += 1
            self.submit_next()
            return
        sometimes("no space to flush a block")
        self.out_of_space = True
        for item in batch:
            if item.segment.state is FileState.CREATING:
                item.segment.state = FileState.NEW
            if item.log.folder_state is FileState.CREATING:
                item.log.folder_state = FileState.NEW
        self._queue.extendleft(reversed(batch))


def _is_created_by_commit(item: _FlushItem, batch: list[_FlushItem]) -> bool:
    """Return whether the commit queue creates, or will create, the file or folder of a block."""
    if FileState.RESERVED in (item.segment.state, item.log.folder_state):
        return True
    if item.segment.state is FileState.CREATING and not any(item.segment is each.segment for each in batch):
        return True
    return item.log.folder_state is FileState.CREATING and not any(item.log is each.log for each in batch)


def append_block_write(
    ops: list[Op], log: FileLog, segment: FileSegment, block: RecordBlock, previous: RecordBlock | None
) -> None:
    """Add a block to the operations, as part of the last write if it directly follows `previous`."""
    if log.may_compress(block):
        _append_compressed_write(ops, log, segment, block)
        return
    parts = encode_block(segment, block)
    last = ops[-1] if ops else None
    if previous is not None and last is not None and last[:2] == ("write", segment.path):
        end = previous.offset + BLOCK_HEADER_BYTES + previous.used
        if align_up(end) == block.offset and isinstance(last[3], list):
            last[3].append(bytes(block.offset - end))
            last[3].extend(parts)
            return
    ops.append(("write", segment.path, block.offset, parts))


def _append_compressed_write(ops: list[Op], log: FileLog, segment: FileSegment, block: RecordBlock) -> None:
    """Add a block that is compressed when it is written.

    The last byte of its records is written where it would be without compression, so that the file has the same size;
    but not if a block follows, because then that one does.
    """
    if ops and ops[-1][:2] == ("write", segment.path) and isinstance(ops[-1][3], _LastByte):
        ops.pop()
    encode = partial(encode_smaller_block, segment, block, log.context.options.compress_min_saving)
    last = block.offset + BLOCK_HEADER_BYTES + block.used - 1
    ops += [
        ("write", segment.path, block.offset, encode),
        ("write", segment.path, last, _LastByte(block.view[-1:])),
    ]


def sync_ops(unsynced: dict[str, tuple[FileLog, FileSegment]]) -> list[Op]:
    """Return the operations that make all written blocks durable, with the names of their files."""
    ops: list[Op] = [("sync", path) for path in unsynced]
    folders = {log.folder_path: log for log, _ in unsynced.values() if not log.folder_synced}
    if folders:
        ops.append(("syncdir", "streams"))
    unsynced_folders = {
        log.folder_path: None for log, segment in unsynced.values() if not segment.folder_synced
    }
    return ops + [("syncdir", folder) for folder in unsynced_folders]


def mark_synced(unsynced: dict[str, tuple[FileLog, FileSegment]]) -> None:
    """Record that the `sync_ops` of these segments are done."""
    for log, segment in unsynced.values():
        log.folder_synced = segment.folder_synced = True
