"""Merges sparse segments into new ones, a few blocks at a time.

Owns the current job. Invariant: the old segments are read until the new one is written and synced, and are removed once
a checkpoint that does not name them is durable. Rows that die while they are copied are dead in the new segment too.
Must not know frames.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.storage.io.disk import Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.flush import append_block_write, create_segment_ops
from headrace.storage.maintenance.maintenance_context import MaintenanceContext
from headrace.storage.native_records import BlockBuilder
from headrace.storage.segments.segment import FileSegment, FileState, Segment, fits_one_segment

LARGER_FACTOR = 4  # a neighbour larger by this factor is copied only if it is sparse itself
#: Number of blocks that one step copies on the event loop; a block takes about a millisecond.
BLOCKS_PER_STEP = 2


class Compactor:
    """Runs one job at a time, driven by the completions of its own writes."""

    def __init__(self, store: MaintenanceContext) -> None:
        self._store = store
        self._candidates: dict[str, tuple[FileLog, FileSegment]] = {}
        self._job: _CompactionJob | None = None
        self.stopped = False

    @property
    def busy(self) -> bool:
        return self._job is not None

    def is_compacting(self, log: FileLog) -> bool:
        """Return whether rows of this log are being copied; their subject ids must not change then."""
        return self._job is not None and self._job.log is log

    def maybe_compact(self, log: FileLog, segment: FileSegment) -> None:
        """Make a sealed segment a candidate if too few of its bytes are live."""
        if segment.columns.alive_bytes < self._store.options.compact_live_ratio * segment.end:
            self._candidates[segment.path] = (log, segment)

    def rewrite(self, log: FileLog, segment: FileSegment) -> None:
        """Copy the live rows to another file, however many; blocks without live rows are not read."""
        segment.damaged = False
        self._candidates[segment.path] = (log, segment)
        self.start_next()

    def add_candidates(self, log: FileLog) -> None:
        """Find candidates after opening: sparse segments, and small ones that restarts may have left."""
        small = self._store.options.segment_bytes // 4
        before = None
        for segment in log.list_segments()[:-1]:
            self.maybe_compact(log, segment)
            if before is not None and segment.end + before.end < small:
                self._candidates[segment.path] = (log, segment)
            before = segment

    def start_next(self) -> None:
        """Start the next job, if none is running."""
        while (
            self._candidates
            and self._job is None
            and not (self.stopped or self._store.full or self._store.poisoned)
        ):
            found = self._take_candidate()
            if found is None:
                return
            log, segment = found
            self._job = _CompactionJob(
                self._store, log, self._select_run(log, segment), self._on_job_finished
            )
            self._job.copy_next()

    def _take_candidate(self) -> tuple[FileLog, FileSegment] | None:
        """Return a candidate that can be read; others wait for their blocks, or for new ids of their subjects."""
        for path, (log, segment) in list(self._candidates.items()):
            obsolete = log.is_deleted or segment not in log.sealed_segments or segment.damaged
            ready = _is_readable(segment) and not log.is_renumbering
            if obsolete or ready:
                del self._candidates[path]
            if not obsolete and ready:
                return log, segment
        return None

    def _select_run(self, log: FileLog, segment: FileSegment) -> list[FileSegment]:
        """Return a segment and the neighbours that are also sparse, or not much larger, as far as all fit into one
        segment.
        """
        at = log.sealed_segments.index(segment)
        lo = hi = at
        total = segment.columns.alive_bytes
        while (
            lo > 0
            and self._is_mergeable(log.sealed_segments[lo - 1], total)
            and fits_one_segment(log.sealed_segments[lo - 1], segment)
        ):
            lo -= 1
            total += log.sealed_segments[lo].columns.alive_bytes
        first = log.sealed_segments[lo]
        while hi + 1 < len(log.sealed_segments) and self._is_mergeable(log.sealed_segments[hi + 1], total):
            if not fits_one_segment(first, log.sealed_segments[hi + 1]):
                break
            hi += 1
            total += log.sealed_segments[hi].columns.alive_bytes
        return cast("list[FileSegment]", log.sealed_segments[lo : hi + 1])

    def _is_mergeable(self, segment: Segment, total: int) -> bool:
        """Return whether to merge a neighbour with `total` live bytes; a large one is not copied for little gain."""
        assert isinstance(segment, FileSegment)
        options = self._store.options
        alive = segment.columns.alive_bytes
        if (
            not _is_readable(segment)
            or alive + total > options.segment_bytes
            or alive >= options.segment_bytes // 2
        ):
            return False
        return alive <= LARGER_FACTOR * total or alive < options.compact_live_ratio * segment.end

    def _on_job_finished(self) -> None:
        self._job = None
        self.start_next()


def _is_readable(segment: FileSegment) -> bool:
    return segment.state is FileState.READY and not segment.pending and not segment.damaged


class _CompactionJob:
    def __init__(
        self, store: MaintenanceContext, log: FileLog, run: list[FileSegment], on_finished: Callable[[], None]
    ) -> None:
        self._store = store
        self.log = log
        self._run = run
        self._on_finished = on_finished
        self._builder = BlockBuilder(log.subject_index, store.options.block_bytes)
        self._target = log.make_segment(log.allocate_segment_number(), self._builder.columns)
        self._blocks = [
            (segment, offset, end)
            for segment in run
            for offset, end in pairwise([*segment.blocks, segment.end])
        ]
        self._next_block = 0

    def copy_next(self) -> None:
        """Copy some blocks and write those that became full."""
        if self.log.is_deleted or self._store.poisoned is not None:
            self._abort()
            return
        try:
            for place in self._blocks[self._next_block : self._next_block + BLOCKS_PER_STEP]:
                self._copy_block(*place)
        except (CorruptData, OSError, ValueError):
            # Data that cannot be read, or does not match its row, stays where it is.
            self._abort()
            return
        self._next_block += BLOCKS_PER_STEP
        last = self._next_block >= len(self._blocks)
        if last:
            self._builder.finish_block()
        ops = self._take_write_ops()
        if last and self._target.state is not FileState.NEW:
            ops.append(("sync", self._target.path))
        self._store.disk.submit("behind", ops, self._on_complete if last else self._on_written)

    def _copy_block(self, segment: FileSegment, offset: int, end: int) -> None:
        columns = segment.columns
        lo, hi = (columns.find_offset(each, 0, columns.rows) for each in (offset, end))
        if columns.next(self.log.subject_index, None, lo, hi) < 0:
            return
        data, place = segment.read_block(offset)
        self._builder.copy_rows(columns, lo, hi, data, place)

    def _take_write_ops(self) -> list[Op]:
        ops: list[Op] = []
        if self._builder.blocks:
            ops += create_segment_ops(self.log, self._target, self._store.disk)
        for block in self._builder.blocks:
            append_block_write(ops, self.log, self._target, block, None)
            self._target.add_block(block)
        self._builder.blocks.clear()
        return ops

    def _on_written(self, error: OSError | None) -> None:
        if error is None:
            self._target.pending.clear()
            self.copy_next()
        else:
            self._on_error(error)

    def _on_error(self, error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            sometimes("no space for compaction")
            self._abort()
            self._store.on_out_of_space(error)
        else:
            self._store.fail(error)

    def _abort(self) -> None:
        self.log.on_segment_replaced(self._target)
        self._on_finished()

    def _on_complete(self, error: OSError | None) -> None:
        if error is not None:
            self._on_error(error)
            return
        log, target = self.log, self._target
        target.pending.clear()
        old: list[Segment] = [segment for segment in self._run if segment in log.sealed_segments]
        if log.is_deleted or not old or not target.columns.rows:
            sometimes("compacted segments are gone meanwhile")
            self._abort()
            return
        sometimes("segments are compacted")
        self._tombstone_removed(old)
        target.state = FileState.READY
        log.replace_segments(old, [target] if target.columns.alive else [])
        log.saved_frame = -1  # the section must be captured again: the log has other files now
        for segment in old:
            log.on_segment_replaced(cast("FileSegment", segment))
        if target.columns.alive:
            self._store.flusher.unsynced_segments[target.path] = (log, target)
            self._store.flusher.add_columns(log, target)
            self._store.flusher.submit_next()
        else:
            log.on_segment_replaced(target)
        self._on_finished()

    def _tombstone_removed(self, old: list[Segment]) -> None:
        """Mark rows that died since they were copied as dead in the copy."""
        columns = self._target.columns
        copied = columns.alive
        columns.tombstone_unless_live([segment.columns for segment in old])
        if columns.alive < copied:
            sometimes("a message is removed while it is compacted")
