"""The store: logs and facts, changed in frames that are durable as a whole or not at all.

Owns the frame under construction, the one being written, and the order in which everything else
happens: commit, write behind, checkpoint, recycling. Invariant: `committed` is a frame whose sync has
returned, and everything before it is durable too. After a failed sync nothing is committed any more.
Must not know threads or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from headrace.errors import Full, Poisoned, StoreError
from headrace.probes import probe
from headrace.store.behind import Behind, large_ops
from headrace.store.checkpoint import Checkpointer
from headrace.store.commits import Commits
from headrace.store.compaction import Compactor
from headrace.store.disk import Clock, Disk, NoRoom, Op
from headrace.store.facts import Facts
from headrace.store.filelog import FileLog
from headrace.store.format import CHECKPOINT, CREATE, DELETE, IDLE, SHUTDOWN, TICK, WATERMARKS, entry, number
from headrace.store.journal import Journal
from headrace.store.log import Log
from headrace.store.memorylog import MemoryLog
from headrace.store.options import StoreOptions
from headrace.store.records import Appender, Block, Gate, gather, settle
from headrace.store.report import Report
from headrace.store.segments import FileSegment, State
from headrace.store.shelf import Shelf
from headrace.store.space import Space
from headrace.store.trash import Trash

_DEFAULT = StoreOptions()


def _refuse_deleted(size: int) -> None:
    raise StoreError("the stream was deleted")


class Store:
    """Use `Store.open`. Everything here runs on one thread, the core's."""

    def __init__(self, disk: Disk, options: StoreOptions, ident: int, report: Report) -> None:
        self.disk = disk
        self.options = options
        self.ident = ident
        self.logs: dict[str, Log] = {}
        self.next_ident = 1
        self.committed = 0
        self.in_flight = False
        self.poisoned: StoreError | None = None
        self.full = False
        self.on_commit: Callable[[int], None] = lambda frame: None
        self.on_full: Callable[[], None] = lambda: None  # to be followed by calls of `idle`
        self.gate = Gate(self.make_room)
        self.facts = Facts(self.gate)
        self.journal = Journal(disk, ident, options, self.fail)
        self.behind = Behind(disk, options, self._progress, self.out_of_space, self.fail)
        self.space = Space(disk, options, self.behind)
        self.commits = Commits(disk, self.out_of_space)
        self.checkpoints = Checkpointer(self)
        self.trash = Trash(self)
        self.compactor = Compactor(self)
        self._report = report
        self.shelf = self._make_shelf()
        self._creates: list[bytes] = []
        self._deletes: list[bytes] = []
        self._marks = b""
        self._last_kind = SHUTDOWN
        self._flight_bytes = 0
        self._closed = False
        #: False after closing where there was no space for a checkpoint: the journal has what it lacks.
        self.has_final_checkpoint = True
        self._no_more = Gate(_refuse_deleted)
        self._no_more.closed = True

    @classmethod
    def open(cls, disk: Disk, clock: Clock, options: StoreOptions = _DEFAULT) -> Store:
        """Recovers what the disk holds; when this returns, all of it is durable. Raises `StoreError`."""
        from headrace.store.recovery import recover

        return recover(disk, clock, options)

    def _make_shelf(self) -> Shelf:
        shelf = Shelf(self.disk, self.ident, self.options, self.gate)
        shelf.queue_block = self.behind.add_block
        shelf.queue_columns = self.behind.add_columns
        shelf.discard = self.trash.add
        shelf.bury = self.trash.add_dead
        shelf.consider = self.compactor.consider
        shelf.damage = self._report.add
        shelf.check_space = self._check_space
        return shelf

    # The frame under construction

    @property
    def frame(self) -> int:
        return self.gate.frame

    @property
    def dirty(self) -> bool:
        return bool(self.gate.dirty or self.facts.entries or self._creates or self._deletes)

    @property
    def deleting(self) -> bool:
        """Whether a stream ends with the frame under construction."""
        return bool(self._deletes)

    @property
    def pending_bytes(self) -> int:
        """Bytes admitted and not yet where they belong: for back-pressure."""
        return self.gate.pending + self.shelf.large_bytes + self._flight_bytes + self.behind.pending_bytes

    def create(self, name: str, *, memory: bool = False, first_seq: int = 1) -> Log:
        """A new stream; durable with the frame."""
        self._check()
        if name in self.logs:
            raise StoreError(f"stream {name} exists")
        ident, self.next_ident = self.next_ident, self.next_ident + 1
        log: Log
        if memory:
            log = MemoryLog(self.gate, ident, name, self.options, first_seq)
        else:
            log = FileLog(self.shelf, ident, name, first_seq)
            self._creates.append(entry(CREATE, ident, number(first_seq) + name.encode()))
        log.touch()
        self.logs[name] = log
        return log

    def delete(self, log: Log) -> None:
        """A stream and all it holds goes with the frame."""
        self._check()
        del self.logs[log.name]
        if log.dirty:
            self.gate.dirty.remove(log)
            log.forget()
        if isinstance(log, FileLog):
            log.gone = True
            log.ended = self.frame
            log.gate = self._no_more
            self.shelf.larges = [large for large in self.shelf.larges if large[0] is not log]
            self.shelf.large_bytes = sum(block.used for _, _, block in self.shelf.larges)
            self._deletes.append(entry(DELETE, log.ident, b""))
            self.trash.add_folder(log.folder_path, self.frame)

    @property
    def waits(self) -> bool:
        """Whether the frame in flight has found no room on the disk, and is kept until there is some."""
        return self.commits.short is not None

    def file_logs(self) -> Iterator[FileLog]:
        return (log for log in self.logs.values() if isinstance(log, FileLog))

    def _check(self) -> None:
        if self.poisoned is not None:
            raise self.poisoned

    def make_room(self, size: int) -> None:
        """Asked when the gate is closed or the frame is about to outgrow what is reserved; raises Full
        or Poisoned.
        """
        self._check()
        if self.full:
            self._measure()  # somebody else may have made room, and nothing that is refused brings a commit
        if self.full:
            raise Full("the disk is full; free some space or remove messages")
        wanted = 2 * (self.gate.pending + size)
        if self.disk.free() < wanted + self.options.headroom_bytes:
            probe("a frame is too large for the disk")
            raise Full("the disk has no space for a frame of this size")
        probe("a frame outgrows what is reserved")
        self.gate.limit = wanted

    def _check_space(self, size: int) -> None:
        """Large messages are not reserved for: there must be room beyond the headroom."""
        if self.disk.free() < self.options.headroom_bytes + self.shelf.large_bytes + size:
            raise Full("the disk is full; free some space or remove messages")

    # Committing

    def seal(self) -> int:
        """Closes the frame and submits it; only when none is in flight and there is something in it."""
        return self._seal(TICK)

    def idle(self) -> None:
        """To be called when nothing has happened for a while, and now and then while the disk is full: a mark
        proves the last frame, and what waits for room is tried again.
        """
        if self.poisoned is not None:
            return
        quiet = not (self.in_flight or self.dirty)
        if quiet or self.full:
            self._measure()
        if self.full:
            self._maybe_checkpoint()
            self.checkpoints.step()
            self._shed(self.file_logs())
            if self.checkpoints.mark_wanted or self.trash.has_statements:
                self.want_mark()
                return
        if quiet and self._last_kind == TICK:
            self._seal(IDLE)

    def _seal(self, kind: int) -> int:
        self._check()
        if self.in_flight:
            raise StoreError("a frame is being written; seal when it is committed")
        logs, ops = self._close_frame(kind)
        tick = self.gate.frame
        self.gate.frame += 1
        self.in_flight = True
        self._flight_bytes = self.gate.pending + self.shelf.large_bytes
        self.gate.pending = 0
        larges, self.shelf.larges, self.shelf.large_bytes = self.shelf.larges, [], 0
        mark, self.checkpoints.mark_wanted = self.checkpoints.mark_wanted, 0
        self.commits.submit(ops, partial(self._done, tick, logs, larges, mark))
        self._measure()
        self.checkpoints.step()
        return tick

    def _close_frame(self, kind: int) -> tuple[list[Appender], list[Op]]:
        if self.full:
            self._shed(self.gate.dirty)
        logs, self.gate.dirty = self.gate.dirty, []
        records, marks = gather(logs)
        stated = self.trash.state() if self.full else []
        body: list[Any] = [*self._creates, *records, *stated, *self.facts.entries, *self._deletes]
        self._creates, self._deletes, self.facts.entries = [], [], []
        if self.checkpoints.mark_wanted:
            body.append(entry(CHECKPOINT, 0, number(self.checkpoints.mark_wanted)))
        body = [piece for piece in body if len(piece)]
        if not body and kind == TICK:
            probe("a frame of memory only")
            return logs, []  # only memory logs changed
        if self._marks:
            body.insert(0, entry(WATERMARKS, 0, self._marks))
        self._marks = marks
        self._last_kind = kind
        return logs, large_ops(self.shelf.larges, self.disk) + self.journal.ops(kind, body, marks)

    def _shed(self, logs: Iterable[Appender]) -> None:
        """Drops the growing segments of logs that were emptied: on a full disk their files are to go, too."""
        for log in logs:
            if isinstance(log, FileLog) and not log.messages and len(log.active.blocks):
                log.split()
                log.saved_tick = -1  # its section names a file that is about to go

    def _done(
        self,
        tick: int,
        logs: list[Appender],
        larges: list[tuple[FileLog, FileSegment, Block]],
        mark: int,
        error: OSError | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        if self.poisoned is not None:
            return
        self.in_flight = False
        self._flight_bytes = 0
        self.committed = tick
        settle(logs)
        for log, segment, block in larges:
            log.folder = segment.state = State.READY
            log.folder_synced = segment.folder_synced = True
            segment.written(block)
            self.journal.bytes += block.used
            if not log.gone:
                self.behind.unsynced[segment.path] = (log, segment)
        if mark:
            self.trash.empty(mark)
            self.checkpoints.prove(mark)
            self.space.forgive()
        self.trash.release()
        if self.full:
            self._measure()
        self.behind.pump()
        self._maybe_checkpoint()
        self.checkpoints.step()
        self.compactor.step()
        self.on_commit(tick)
        if self.checkpoints.mark_wanted and not self.in_flight and not self.dirty:
            self.want_mark()

    def fail(self, error: OSError) -> None:
        """A write or a sync failed: nothing more is acknowledged, and nothing is tried again."""
        if self.poisoned is None:
            probe("the store is poisoned")
            self.poisoned = Poisoned(f"a write failed: {error}; restart to read again what is on disk")
            self.gate.closed = True

    def noticed(self, error: OSError | None) -> None:
        """For submissions of which only failure matters."""
        if error is not None:
            self.fail(error)

    # Background work

    def checkpoint(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Starts a checkpoint; `done` is called when one begun from now on is proven, or given up for
        want of space.
        """
        self._check()
        self._measure()
        self.space.forgive()
        self.space.begin()
        self.behind.resume()
        self.checkpoints.begin(done)
        self.checkpoints.step()

    def flush(self, log: Log, done: Callable[[], None]) -> None:
        """Cuts the tail of a log and calls `done` when all its records so far are in segment files."""
        log.cut()
        self.behind.when_finished(done)
        self.behind.pump()

    def _maybe_checkpoint(self) -> None:
        if self.checkpoints.running or self.checkpoints.mark_wanted or not self._wants_checkpoint():
            return
        self.behind.resume()  # also below the headroom: without a checkpoint nothing that is removed goes
        if not self.behind.stuck:
            self.space.begin()
            self.checkpoints.begin()

    def _wants_checkpoint(self) -> bool:
        """Whether enough was journaled, or there is space to gain; and no space was missing for it just now."""
        written = self.journal.bytes
        if not self.space.allows_checkpoint:
            return False
        if written >= self.options.checkpoint_bytes or self.trash.urgent():
            return True
        return (self.full and self.journal.is_scarce) or self.space.wants_checkpoint(written)

    def want_mark(self) -> None:
        """A checkpoint is durable: its mark goes into the next frame, at once when there is nothing else.

        A frame with something in it is its owner's to close, who may have to add to it.
        """
        if not self.in_flight and not self.dirty and self.poisoned is None:
            probe("a frame for the mark alone")
            self._seal(TICK)

    def _progress(self) -> None:
        """Something was written behind, or found no room."""
        if self.full and not self.behind.stuck and self.poisoned is None:
            self._measure()
            self._maybe_checkpoint()
        self.checkpoints.step()
        self.compactor.step()

    def emptied(self, error: OSError | None) -> None:
        """Files were unlinked: there may be space again."""
        self.noticed(error)
        self._measure()

    def missed_space(self, journaled: int) -> None:
        """A checkpoint was given up for want of space: it is due again when there is more than now."""
        self.journal.bytes += journaled
        self.space.miss()

    def out_of_space(self, error: OSError) -> None:
        """A frame or background work found the disk full."""
        self._set_full(True)
        self.checkpoints.no_space(error)

    def _measure(self) -> None:
        """How much the next frame can hold for certain, and whether the disk has room for what follows it."""
        if self.poisoned is not None:
            return
        low = self.space.measure(self._flight_bytes)
        self.commits.again()  # the headroom is for frames, too
        if not low and (self.behind.stuck or self.full):
            probe("there is room again")
            self.behind.resume()
        self._set_full(low or self.behind.stuck or self.waits or self.journal.is_short)
        if not low or self.journal.needs_spare(self.space.slack):  # removals need a file to go on in
            self.journal.prepare()
        room = self.journal.room()
        # A quarter is for what an append does not count: entries and watermarks.
        self.gate.limit = room - room // 4

    def _set_full(self, full: bool) -> None:
        before, self.full = self.full, full
        self.journal.is_cramped = full
        self.gate.closed = full or self.poisoned is not None
        if full and not before:
            self.on_full()

    def ready(self) -> None:
        """Recovery is done."""
        self._measure()
        for log in self.file_logs():
            self.compactor.review(log)

    # Health and end

    def report(self) -> Report:
        """What recovery found, and what reading has found since."""
        return self._report

    def accept_loss(self) -> None:
        """A person has accepted the damage found so far; the evidence in the journal may go."""
        self._report.damage.clear()
        self.checkpoints.kept.clear()
        self.checkpoints.offline.clear()
        for log in self.file_logs():
            log.lost.clear()

    def close(self) -> None:
        """Commits what is under construction, writes a checkpoint and the shutdown mark; blocks."""
        if self._closed:
            return
        self._closed = self.compactor.stopped = True
        self._come_to_rest()
        if self.poisoned is None and self.dirty and not self.in_flight:
            self._seal(TICK)
            self._come_to_rest()
        if self.poisoned is None:
            self._finish()
        if self.poisoned is not None:
            raise self.poisoned
        self.poisoned = StoreError("the store is closed; open it again")
        self.gate.closed = True

    def _finish(self) -> None:
        try:
            self.checkpoints.run_now()
        except NoRoom:
            self.has_final_checkpoint = False
            self.checkpoints.drop_unfinished()  # the journal has it all
        except OSError as error:
            self.fail(error)
            return
        self._seal(SHUTDOWN)
        self._come_to_rest()

    def _come_to_rest(self) -> None:
        """Blocks until nothing is under way; a frame that waits for room has one more try."""
        self.disk.drain()
        if self.poisoned is None:
            self.commits.again()
            self.disk.drain()
        if self.commits.short is not None:
            self.fail(self.commits.short)
