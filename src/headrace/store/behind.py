"""Writes full blocks, columns and subjects to their files, behind the journal.

Owns the queue of lane "behind" towards segments. Invariant: what is queued is written in order, and a
block leaves memory only when its file has it. A full disk stops the queue until `resume` has succeeded;
nothing is lost, for the journal has it all. Must not know frames or checkpoints.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace.probes import probe
from headrace.store.columnfile import Identity, encode_columns, encode_subjects
from headrace.store.disk import Disk, Op
from headrace.store.filelog import FileLog
from headrace.store.format import (
    BLOCK_BYTES,
    aligned,
    block_head,
    segment_header,
    subjects_path,
)
from headrace.store.options import StoreOptions
from headrace.store.records import Block
from headrace.store.segments import FileSegment, State


class _Item(NamedTuple):
    log: FileLog
    segment: FileSegment
    block: Block | None  # None: the segment's columns


def make_folder(log: FileLog, disk: Disk) -> list[Op]:
    """Operations that make a stream's folder, if it has none yet."""
    if log.folder not in (State.NEW, State.CLAIMED):
        return []
    log.folder = State.MAKING
    return [] if disk.exists(log.folder_path) else [("mkdir", log.folder_path)]


def make_file(log: FileLog, segment: FileSegment, disk: Disk) -> list[Op]:
    """Operations that make a segment's file, if it has none yet."""
    if segment.state not in (State.NEW, State.CLAIMED):
        return []
    segment.state = State.MAKING
    header = segment_header(log.shelf.store, log.ident, segment.number)
    ops: list[Op] = [] if disk.exists(segment.path) else [("create", segment.path, 0)]
    return [*ops, ("write", segment.path, 0, header)]


def block_parts(segment: FileSegment, block: Block) -> list[bytes | memoryview]:
    """A block's bytes as they lie in the file."""
    view = block.view
    return [block_head(segment.seed, block.offset, block.first_seq, block.records, view), view]


def large_ops(larges: list[tuple[FileLog, FileSegment, Block]], disk: Disk) -> list[Op]:
    """Operations that make large messages durable, with their files and names, before the frame that refers to them."""
    ops: list[Op] = []
    touched: dict[str, tuple[FileLog, FileSegment]] = {}
    for log, segment, block in larges:
        ops += make_folder(log, disk) + make_file(log, segment, disk)
        ops.append(("write", segment.path, block.offset, block_parts(segment, block)))
        touched[segment.path] = (log, segment)
    for path, (log, segment) in touched.items():
        ops.append(("sync", path))
        if not log.folder_synced:
            ops.append(("syncdir", "streams"))
        if not segment.folder_synced:
            ops.append(("syncdir", log.folder_path))
    return ops


class Behind:
    """The queue. One submission is under way at a time, so that everything else on the lane gets its turn."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        progress: Callable[[], None],
        no_space: Callable[[OSError], None],
        fail: Callable[[OSError], None],
    ) -> None:
        self._disk = disk
        self._options = options
        self._progress = progress
        self._no_space = no_space
        self._fail = fail
        self._queue: deque[_Item] = deque()
        self._busy = False
        #: Generation, saved, end of the file: once the columns under way are written.
        self._subjects = (0, 0, 0)
        self.stuck = False
        self.pending_bytes = 0
        self.added = 0
        self.finished = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.unsynced: dict[str, tuple[FileLog, FileSegment]] = {}

    def add_block(self, log: FileLog, segment: FileSegment, block: Block) -> None:
        self._queue.append(_Item(log, segment, block))
        self.added += 1
        self.pending_bytes += block.used

    def add_columns(self, log: FileLog, segment: FileSegment) -> None:
        self._queue.append(_Item(log, segment, None))
        self.added += 1

    def when_finished(self, done: Callable[[], None]) -> None:
        """Calls `done` when everything added so far is written."""
        self._waiting.append((self.added, done))
        self._tell()

    def _tell(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.finished:
            self._waiting.pop(0)[1]()

    def pump(self) -> None:
        """Submits the next part of the queue, if nothing is under way."""
        if not self.stuck:
            self._submit()

    def _submit(self) -> bool:
        """Whether something is under way now."""
        batch, ops = self._next() if not self._busy else ([], [])
        if batch:
            self._busy = True
            self._disk.submit("behind", ops, lambda error: self._done(batch, error))
        return self._busy

    def flush_now(self) -> None:
        """Everything queued, blocking; for recovery."""
        while True:
            batch, ops = self._next()
            if not batch:
                return
            self._disk.run(ops)
            self._finish(batch)

    def resume(self) -> None:
        """There may be space again: what is next is tried, and the queue is stuck until that is written."""
        if self.stuck:
            self.stuck = self._submit()

    def hold(self) -> None:
        """Nothing is written before there is space for it: see `resume`."""
        self.stuck = bool(self._queue)

    def drop_released(self) -> None:
        """Blocks of segments whose files are gone are not written; they keep their turn, which is counted."""
        for at, item in enumerate(self._queue):
            if item.block is not None and item.segment.released:
                self.pending_bytes -= item.block.used
                self._queue[at] = item._replace(block=None)

    def _next(self) -> tuple[list[_Item], list[Op]]:
        batch: list[_Item] = []
        ops: list[Op] = []
        size = 0
        while self._queue and size < self._options.behind_bytes:
            item = self._queue[0]
            if (
                item.log.gone
                or item.segment.released
                or (item.block is None and not self._wants_columns(item))
            ):
                if batch:
                    probe("something useless waits for its turn")
                    break  # `finished` counts in order: what is before it is not written yet
                self._skip(self._queue.popleft())
                continue
            if _made_elsewhere(item, batch):
                probe("a block waits for a large message")
                break  # by the commit lane, for a large message: its file is not there yet
            if item.block is None:
                if not batch:
                    return self._columns(self._queue.popleft())
                break
            before = batch[-1].block if batch else None
            batch.append(self._queue.popleft())
            made = make_folder(item.log, self._disk) + make_file(item.log, item.segment, self._disk)
            ops += made
            _append_write(ops, item.segment, item.block, None if made else before)
            size += item.block.used
        return batch, ops

    def _skip(self, item: _Item) -> None:
        self.finished += 1
        if item.block is not None:
            self.pending_bytes -= item.block.used

    def _columns(self, item: _Item) -> tuple[list[_Item], list[Op]]:
        log, segment = item.log, item.segment
        ops: list[Op] = []
        total = len(log.table)
        self._subjects = (log.generation, log.subjects_saved, log.subjects_end)
        if total > log.subjects_saved:
            path = subjects_path(log.ident, log.generation)
            if log.subjects_end == 0 and not self._disk.exists(path):
                ops.append(("create", path, 0))
            chunk = encode_subjects(log.table, log.subjects_saved, total)
            ops.append(("write", path, log.subjects_end, chunk))
            self._subjects = (log.generation, total, log.subjects_end + len(chunk))
        who = Identity(log.shelf.store, log.ident, segment.number, segment.end, log.generation)
        path = log.columns_path(segment)
        ops.append(("create", path, 0))
        ops.append(("write", path, 0, encode_columns(who, segment.columns, segment.blocks, total)))
        return [item], ops

    def _wants_columns(self, item: _Item) -> bool:
        """Not if the segment is gone; and a bad file that is there already stays as it is, and is not used."""
        return item.segment in item.log.sealed and not self._disk.exists(item.log.columns_path(item.segment))

    def _done(self, batch: list[_Item], error: OSError | None) -> None:
        self._busy = False
        if error is None:
            self.stuck = False
            self._finish(batch)
            self.pump()
        elif error.errno == errno.ENOSPC:
            self._put_back(batch)
            self._no_space(error)
        else:
            self._busy = True  # for good: nothing is tried again
            self._fail(error)
            return
        self._tell()
        self._progress()

    def _finish(self, batch: list[_Item]) -> None:
        for item in batch:
            self.finished += 1
            log, segment, block = item
            if block is None:
                generation, saved, end = self._subjects
                if generation != log.generation:
                    continue  # subjects were forgotten meanwhile
                log.subjects_saved, log.subjects_end = saved, end
                if not log.gone and segment in log.sealed:
                    log.columns_written(segment)
                continue
            self.pending_bytes -= block.used
            log.folder = segment.state = State.READY
            segment.written(block)
            if not log.gone and not segment.released:
                self.unsynced[segment.path] = (log, segment)

    def _put_back(self, batch: list[_Item]) -> None:
        """No space: blocks wait for it; columns, being a cache, are given up."""
        if batch[0].block is None:
            self.finished += 1
            self.pump()
            return
        probe("no room behind the journal")
        self.stuck = True
        for item in batch:
            if item.segment.state is State.MAKING:
                item.segment.state = State.NEW
            if item.log.folder is State.MAKING:
                item.log.folder = State.NEW
        self._queue.extendleft(reversed(batch))


def _made_elsewhere(item: _Item, batch: list[_Item]) -> bool:
    """Whether the commit lane makes, or will make, the file or the folder that a block belongs to."""
    if State.CLAIMED in (item.segment.state, item.log.folder):
        return True
    if item.segment.state is State.MAKING and not any(item.segment is each.segment for each in batch):
        return True
    return item.log.folder is State.MAKING and not any(item.log is each.log for each in batch)


def _append_write(ops: list[Op], segment: FileSegment, block: Block, before: Block | None) -> None:
    """Adds a block to the operations, as part of the last write where it follows on that, which ends with `before`."""
    parts = block_parts(segment, block)
    last = ops[-1] if ops else None
    if before is not None and last is not None and last[0] == "write" and last[1] == segment.path:
        end = before.offset + BLOCK_BYTES + before.used
        if aligned(end) == block.offset:
            last[3].append(bytes(block.offset - end))
            last[3].extend(parts)
            return
    ops.append(("write", segment.path, block.offset, parts))


def sync_ops(unsynced: dict[str, tuple[FileLog, FileSegment]]) -> list[Op]:
    """Operations that make all written blocks durable, with the names of their files."""
    ops: list[Op] = [("sync", path) for path in unsynced]
    folders = {log.folder_path: log for log, _ in unsynced.values() if not log.folder_synced}
    if folders:
        ops.append(("syncdir", "streams"))
    named = {log.folder_path: None for log, segment in unsynced.values() if not segment.folder_synced}
    return ops + [("syncdir", folder) for folder in named]


def mark_synced(unsynced: dict[str, tuple[FileLog, FileSegment]]) -> None:
    """`sync_ops` of these has been done."""
    for log, segment in unsynced.values():
        log.folder_synced = segment.folder_synced = True
