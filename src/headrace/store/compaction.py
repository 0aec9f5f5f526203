"""Merges sparse segments into new ones, a few blocks at a time.

Owns the job under way. Invariant: the old segments serve until the new one is written and synced; they
go when a checkpoint that does not name them is proven. What dies meanwhile is dead in the new one too.
Must not know frames.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from headrace.errors import Corrupt
from headrace.probes import probe
from headrace.store.behind import block_parts, make_file
from headrace.store.disk import Op
from headrace.store.filelog import FileLog
from headrace.store.records import Packer
from headrace.store.segments import FileSegment, Segment, State, within_reach

if TYPE_CHECKING:
    from headrace.store.store import Store

MUCH_LARGER = 4  # times; such a neighbour is copied only if it is sparse itself
STEP_BLOCKS = 8  # read on the core's thread in one go


class Compactor:
    """One job at a time, driven by the completions of its own writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted: dict[str, tuple[FileLog, FileSegment]] = {}
        self._job: _Job | None = None
        self.stopped = False

    @property
    def busy(self) -> bool:
        return self._job is not None

    def works_on(self, log: FileLog) -> bool:
        """Whether rows of this log are being copied, with the ids that its subjects have."""
        return self._job is not None and self._job.log is log

    def consider(self, log: FileLog, segment: FileSegment) -> None:
        """Rows of a sealed segment died."""
        if segment.columns.alive_bytes < self._store.options.compact_live * segment.end:
            self._wanted[segment.path] = (log, segment)

    def rewrite(self, log: FileLog, segment: FileSegment) -> None:
        """Its live rows are to be in another file, whatever their share; blocks without live rows are not read."""
        segment.damaged = False
        self._wanted[segment.path] = (log, segment)
        self.step()

    def review(self, log: FileLog) -> None:
        """After opening: what was sparse is still so, and every restart may have left a small segment."""
        small = self._store.options.segment_bytes // 4
        before = None
        for segment in log.files()[:-1]:
            self.consider(log, segment)
            if before is not None and segment.end + before.end < small:
                self._wanted[segment.path] = (log, segment)
            before = segment

    def step(self) -> None:
        """Starts the next job, if none is under way."""
        while self._job is None and not (self.stopped or self._store.full or self._store.poisoned):
            found = self._next()
            if found is None:
                return
            log, segment = found
            self._job = _Job(self._store, log, self._run(log, segment), self._finished)
            self._job.advance()

    def _next(self) -> tuple[FileLog, FileSegment] | None:
        """What is wanted and can be read; the blocks of others have yet to reach their files."""
        for path, (log, segment) in list(self._wanted.items()):
            useless = log.gone or segment not in log.sealed or segment.damaged
            if useless or _ready(segment):
                del self._wanted[path]
            if not useless and _ready(segment):
                return log, segment
        return None

    def _run(self, log: FileLog, segment: FileSegment) -> list[FileSegment]:
        """A segment and the neighbours that are sparse too, or not much larger, as far as all fit into one."""
        at = log.sealed.index(segment)
        lo = hi = at
        total = segment.columns.alive_bytes
        while lo > 0 and self._suits(log.sealed[lo - 1], total) and within_reach(log.sealed[lo - 1], segment):
            lo -= 1
            total += log.sealed[lo].columns.alive_bytes
        first = log.sealed[lo]
        while hi + 1 < len(log.sealed) and self._suits(log.sealed[hi + 1], total):
            if not within_reach(first, log.sealed[hi + 1]):
                break
            hi += 1
            total += log.sealed[hi].columns.alive_bytes
        return cast("list[FileSegment]", log.sealed[lo : hi + 1])

    def _suits(self, segment: Segment, total: int) -> bool:
        """Whether a neighbour is to be merged with what has `total` bytes alive; a large one is not copied for little."""
        assert isinstance(segment, FileSegment)
        options = self._store.options
        alive = segment.columns.alive_bytes
        if (
            not _ready(segment)
            or alive + total > options.segment_bytes
            or alive >= options.segment_bytes // 2
        ):
            return False
        return alive <= MUCH_LARGER * total or alive < options.compact_live * segment.end

    def _finished(self) -> None:
        self._job = None
        self.step()


def _ready(segment: FileSegment) -> bool:
    return segment.state is State.READY and not segment.pending and not segment.damaged


class _Job:
    def __init__(
        self, store: Store, log: FileLog, run: list[FileSegment], finished: Callable[[], None]
    ) -> None:
        self._store = store
        self.log = log
        self._run = run
        self._finished = finished
        self._packer = Packer(log.table, store.options.block_bytes)
        self._target = log.segment(log.take_number(), self._packer.columns)
        self._places = [
            (segment, offset, end)
            for segment in run
            for offset, end in pairwise([*segment.blocks, segment.end])
        ]
        self._at = 0

    def advance(self) -> None:
        """Copies some blocks and writes what became full."""
        if self.log.gone or self._store.poisoned is not None:
            self._give_up()
            return
        try:
            for place in self._places[self._at : self._at + STEP_BLOCKS]:
                self._copy(*place)
        except (Corrupt, OSError, ValueError):
            # What cannot be read, or is not what its row says, stays where it is.
            self._give_up()
            return
        self._at += STEP_BLOCKS
        last = self._at >= len(self._places)
        if last:
            self._packer.cut()
        ops = self._ops()
        if last and self._target.state is not State.NEW:
            ops.append(("sync", self._target.path))
        self._store.disk.submit("behind", ops, self._install if last else self._written)

    def _copy(self, segment: FileSegment, offset: int, end: int) -> None:
        columns = segment.columns
        rows = np.searchsorted(columns.offset[: columns.rows], [offset, end])
        lo, hi = int(rows[0]), int(rows[1])
        if columns.next(self.log.table, None, lo, hi) < 0:
            return
        data, place = segment.fetch(offset)
        self._packer.copy(columns, lo, hi, data, place)

    def _ops(self) -> list[Op]:
        ops: list[Op] = []
        if self._packer.blocks:
            ops += make_file(self.log, self._target, self._store.disk)
        for block in self._packer.blocks:
            ops.append(("write", self._target.path, block.offset, block_parts(self._target, block)))
            self._target.add(block)
        self._packer.blocks.clear()
        return ops

    def _written(self, error: OSError | None) -> None:
        if error is None:
            self._target.pending.clear()
            self.advance()
        else:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        if error.errno == errno.ENOSPC:
            probe("no room to merge")
            self._give_up()
            self._store.out_of_space(error)
        else:
            self._store.fail(error)

    def _give_up(self) -> None:
        self.log.replaced(self._target)
        self._finished()

    def _install(self, error: OSError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        log, target = self.log, self._target
        target.pending.clear()
        old: list[Segment] = [segment for segment in self._run if segment in log.sealed]
        if log.gone or not old or not target.columns.rows:
            probe("a merge comes too late")
            self._give_up()
            return
        probe("segments are merged")
        self._bury(old)
        target.state = State.READY
        log.exchange(old, [target] if target.columns.alive else [])
        log.saved_tick = -1  # the section must be taken again: it names other files now
        for segment in old:
            log.replaced(cast("FileSegment", segment))
        if target.columns.alive:
            self._store.behind.unsynced[target.path] = (log, target)
            self._store.behind.add_columns(log, target)
            self._store.behind.pump()
        else:
            log.replaced(target)
        self._finished()

    def _bury(self, old: list[Segment]) -> None:
        """What died since it was copied is dead in the copy."""
        table, columns = self.log.table, self._target.columns
        parts = [segment.columns.seqs(table, None, 0, segment.columns.rows) for segment in old]
        alive = np.concatenate(parts)
        copied = columns.seqs(table, None, 0, columns.rows)
        for row in np.flatnonzero(~np.isin(copied, alive, assume_unique=True)).tolist():
            probe("a message dies while it is merged")
            columns.kill(row)
