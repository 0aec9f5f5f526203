"""Checkpoints: taken section by section between ticks, written behind, proven by a mark in the journal.

Owns which section of which file holds what, and when older files may go. Invariant: the root is written
only when every frame its sections speak of is durable and every block they name is synced; nothing
older goes before the mark of the newer is durable. Must not know what is in a section.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace import __version__
from headrace.errors import StoreError
from headrace.probes import probe
from headrace.store import features
from headrace.store.behind import mark_synced, sync_ops
from headrace.store.disk import Op
from headrace.store.facts import SHARDS
from headrace.store.filelog import FileLog
from headrace.store.format import TRAILER_BYTES, checkpoint_path, section_crc, trailer
from headrace.store.roots import Found
from headrace.store.segments import FileSegment
from headrace.store.states import Ref, Root, ShardEntry, StreamEntry

if TYPE_CHECKING:
    from headrace.store.store import Store

STEP_BYTES = 1 << 20  # of sections taken in one go: a bound for what a commit can be held up
STEP_SECTIONS = 64
FILES_MAX = 8  # checkpoints that a root refers to; beyond, the oldest's sections are taken again
COPIES = ("a", "b")

Done = Callable[[OSError | None], None]


class Checkpointer:
    """At most one checkpoint is under way; `number` is the newest begun, `proven` the newest whose mark
    is durable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.number = 0
        self.proven = 0
        self.running = False
        self.mark_wanted = 0  # a checkpoint that is durable and waits for its mark
        self.streams: dict[int, StreamEntry] = {}
        self.shards: dict[int, ShardEntry] = {}
        self.offline: list[StreamEntry] = []
        self.kept: list[str] = []
        self.features: frozenset[str] = frozenset()  # that the root names
        self._shard_ticks = [-1] * SHARDS
        self._files: list[int] = []  # whose files exist
        self._starts: dict[int, int] = {}  # checkpoint -> the frame up to which the journal is not needed
        self._done: list[tuple[int, Done]] = []  # to be told when that one, or a newer, is proven
        self._later: list[Done] = []  # ... the one after that
        self._again = False
        self._clear()

    def _clear(self) -> None:
        self._todo: deque[tuple[FileLog | None, int]] = deque()
        self._parts: list[bytes] = []
        self._at = 0
        self._start_frame = 0
        self._journaled = 0  # bytes since the checkpoint before
        self._tick = 0
        self._ends = 0  # the frame in which a stream ends that this checkpoint does not name any more
        self._taken: list[FileLog] = []
        self._ticket = 0
        self._syncing = False
        self._fresh_streams: dict[int, StreamEntry] = {}
        self._fresh_shards: dict[int, ShardEntry] = {}

    # Taking

    def begin(self, done: Done | None = None, everything: bool = False) -> None:
        """Starts a checkpoint; one that is under way is finished first and then another begun."""
        if self.running:
            probe("a checkpoint is asked for while one is under way")
            self._again = True
            if done is not None:
                self._later.append(done)
            return
        self.running = True
        self._clear()
        store = self._store
        self.number += 1
        waiting, self._later = self._later + ([done] if done is not None else []), []
        self._done += [(self.number, each) for each in waiting]
        self._start_frame = store.journal.number
        self._journaled, store.journal.bytes = store.journal.bytes, 0
        self._tick = store.frame - 1
        self._ticket = store.behind.added
        if store.deleting:
            self._ends = store.frame
        stale = self._stale_files()
        for log in store.file_logs():
            entry = self.streams.get(log.ident)
            if (
                everything
                or entry is None
                or log.changed_frame > log.saved_tick
                or entry.ref.checkpoint in stale
            ):
                self._todo.append((log, -1))
            else:
                self._fresh_streams[log.ident] = StreamEntry(
                    log.ident, log.name, self._start_frame, entry.ref
                )
        for number, shard in enumerate(store.facts.shards):
            if not shard.facts and shard.changed_frame < store.frame:
                continue  # nothing to say of it, and nothing under way
            known = self.shards.get(number)
            changed = shard.changed_frame > self._shard_ticks[number]
            if everything or changed or (known is not None and known.ref.checkpoint in stale):
                self._todo.append((None, number))
            elif known is not None:
                self._fresh_shards[number] = ShardEntry(number, self._start_frame, known.ref)

    def require(self, feature: str, done: Done) -> None:
        """Name a format feature in the root from now on: versions that lack it refuse the store.

        Write nothing that needs the feature before `done` is called without an error: until then the newest root on
        disk may not name it. A feature is never removed again.
        """
        if feature not in features.KNOWN:
            raise StoreError(f"{feature!r} is not in the list of format features")
        self.features |= {feature}
        self._store.checkpoint(done)

    def _ended(self) -> int:
        """The frame that must be durable before the root is, because a stream ends in it.

        A root that does not name the stream would end it earlier. One that names it relies on blocks that are not
        written any more.
        """
        taken = max((log.ended for log in self._taken if log.gone), default=0)
        if max(self._ends, taken) > self._store.committed:
            probe("a checkpoint waits for the end of a stream")
        return max(self._ends, taken)

    def _stale_files(self) -> set[int]:
        named = sorted({entry.ref.checkpoint for entry in self._entries()})
        return set(named[: max(len(named) - FILES_MAX, 0)])

    def _entries(self) -> list[StreamEntry | ShardEntry]:
        return [*self.streams.values(), *self.shards.values(), *self.offline]

    def step(self) -> None:
        """Goes on as far as possible now. Called after every seal, commit and write behind."""
        if not self.running or self._syncing or self._store.poisoned is not None:
            return
        if self._todo:
            self._take()
        if self._todo:
            return
        store = self._store
        if store.committed < max(self._tick, self._ended()) or store.behind.finished < self._ticket:
            return
        self._syncing = True
        unsynced, store.behind.unsynced = store.behind.unsynced, {}
        store.disk.submit("behind", sync_ops(unsynced), lambda error: self._synced(unsynced, error))

    def _take(self) -> None:
        """Takes sections of what is not being changed by the frame under construction."""
        store = self._store
        budget = self._at + STEP_BYTES
        for _ in range(min(len(self._todo), STEP_SECTIONS)):
            if self._at > budget:
                break
            log, number = self._todo.popleft()
            changed = log.changed_frame if log is not None else store.facts.shards[number].changed_frame
            if changed == store.frame:
                probe("a section waits for its frame")
                self._todo.append((log, number))
            elif log is None:
                self._take_shard(number)
            elif log.gone:
                self._ends = max(self._ends, log.ended)
            else:
                self._take_stream(log)
        store.behind.pump()  # what was sealed early, and the columns of those that forgot subjects
        if not self._todo:
            self._tick = store.frame - 1
            self._ticket = store.behind.added
        elif any(not self._hot(each) for each in self._todo):
            store.disk.submit("behind", [], lambda error: self.step())

    def _hot(self, each: tuple[FileLog | None, int]) -> bool:
        log, number = each
        shards = self._store.facts.shards
        return (log.changed_frame if log is not None else shards[number].changed_frame) == self._store.frame

    def _take_stream(self, log: FileLog) -> None:
        if log.sparse:
            probe("a segment is sealed early")
            log.shed_rows()
        if log.crowded and not self._store.compactor.works_on(log):
            log.forget_subjects()
        ref = self._section(log.capture())
        self._fresh_streams[log.ident] = StreamEntry(log.ident, log.name, self._store.journal.number, ref)
        log.saved_tick = self._store.frame - 1
        self._taken.append(log)

    def _take_shard(self, number: int) -> None:
        ref = self._section(msgspec.msgpack.encode(self._store.facts.capture(number)))
        self._fresh_shards[number] = ShardEntry(number, self._store.journal.number, ref)
        self._shard_ticks[number] = self._store.frame - 1

    def _section(self, data: bytes) -> Ref:
        ref = Ref(self.number, self._at, len(data), section_crc(self._store.ident, data))
        padding = -len(data) % 8
        self._parts += [data, bytes(padding)] if padding else [data]
        self._at += len(data) + padding
        return ref

    # Writing

    def _root(self) -> Root:
        store = self._store
        return Root(
            number=self.number,
            frame=self._start_frame,
            next_ident=store.next_ident,
            streams=list(self._fresh_streams.values()),
            shards=list(self._fresh_shards.values()),
            damage=list(store.report().damage),
            offline=self.offline,
            kept=self.kept,
            writer=__version__,
        )

    def _write_ops(self) -> list[Op]:
        root = features.enclose(msgspec.msgpack.encode(self._root()), self.features)
        parts = [*self._parts, root, trailer(self._store.ident, self.number, self._at, root)]
        ops: list[Op] = []
        for copy in COPIES:
            path = checkpoint_path(self.number, copy)
            ops += [("create", path, 0), ("write", path, 0, parts), ("sync", path)]
        return [*ops, ("syncdir", "checkpoints")]

    def _synced(self, unsynced: dict[str, tuple[FileLog, FileSegment]], error: OSError | None) -> None:
        if error is not None:
            self._store.fail(error)
            return
        mark_synced(unsynced)
        self._store.disk.submit("behind", self._write_ops(), self._written)

    def _written(self, error: OSError | None) -> None:
        if error is not None:
            if error.errno == errno.ENOSPC:
                needed = 2 * (self._at + len(msgspec.msgpack.encode(self._root())) + TRAILER_BYTES)
                self._store.out_of_space(error)
                self._give_up(error)
                self._store.journal.give_up_spare(needed, self._store.emptied)
            else:
                self._store.fail(error)
            return
        self._adopt()
        self.running = False
        self._store.want_mark()

    def _adopt(self) -> None:
        self.streams, self.shards = self._fresh_streams, self._fresh_shards
        self._files.append(self.number)
        self._starts[self.number] = self._start_frame
        self.mark_wanted = self.number
        self._parts, self._taken = [], []

    def no_space(self, error: OSError) -> None:
        """Blocks that this checkpoint waits for cannot be written."""
        if self.running and not self._syncing:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """No space for it: what was taken counts as not taken, and the half-written files go."""
        probe("a checkpoint is given up")
        store = self._store
        for log in store.file_logs():
            log.saved_tick = -1
        self._shard_ticks = [-1] * SHARDS
        ops = self._unfinished()
        self.running = False
        store.missed_space(self._journaled)
        self._clear()
        if ops:
            store.disk.submit("behind", ops, store.emptied)
        done = [each for _, each in self._done] + self._later
        self._done, self._later, self._again = [], [], False
        for each in done:
            each(error)

    def _unfinished(self) -> list[Op]:
        """Operations that remove the files of the checkpoint under way."""
        paths = [checkpoint_path(self.number, copy) for copy in COPIES]
        return [("unlink", path) for path in paths if self._store.disk.exists(path)]

    def drop_unfinished(self) -> None:
        """`run_now` found no space: remove what it has written of a checkpoint."""
        self._store.disk.run(self._unfinished())
        self.running = False
        self._clear()

    def run_now(self) -> None:
        """A whole checkpoint, blocking: for recovery and for closing. Nothing may be under construction."""
        store = self._store
        store.disk.drain()
        # One that waits for space is left for this one. What it took counts as saved, but is nowhere.
        left, self.running = self.running, False
        self.mark_wanted = 0
        self.begin(everything=left or self.proven == 0)
        while self._todo:
            self._take_all()
        store.behind.flush_now()
        unsynced, store.behind.unsynced = store.behind.unsynced, {}
        store.disk.run(sync_ops(unsynced))
        mark_synced(unsynced)
        store.disk.run(self._write_ops())
        self._adopt()
        self.running = False

    def _take_all(self) -> None:
        log, number = self._todo.popleft()
        if log is None:
            self._take_shard(number)
        elif not log.gone:
            self._take_stream(log)

    # Proof

    def prove(self, number: int) -> None:
        """The mark of a checkpoint is durable: what only older ones need may go."""
        self.proven = number
        self._store.journal.release(self._starts[number])
        self._starts = {each: start for each, start in self._starts.items() if each > number}
        named = {entry.ref.checkpoint for entry in self._entries()} | {self.number, number}
        old = [each for each in self._files if each < number and each not in named]
        self._files = [each for each in self._files if each not in old]
        store = self._store
        ops: list[Op] = []
        for each in old:
            paths = [checkpoint_path(each, copy) for copy in COPIES]
            ops += [("unlink", path) for path in paths if store.disk.exists(path)]
        if ops:
            store.disk.submit("behind", ops, store.noticed)
        done = [each for needed, each in self._done if needed <= number]
        self._done = [each for each in self._done if each[0] > number]
        for each_done in done:
            each_done(None)
        if self._again:
            self._again = False
            self.begin()

    def inherit(self, files: list[int], newest: int) -> None:
        """After recovery: checkpoint files that exist, and the newest number ever used."""
        self._files = files
        self.number = newest

    def resume(self, found: Found, newest: int, files: list[int]) -> None:
        """After recovery in place: the checkpoint it started from is the newest."""
        root = found.root
        self._files = files
        self.number = newest
        self.streams = {entry.ident: entry for entry in root.streams}
        self.shards = {entry.shard: entry for entry in root.shards}
        if found.is_proven:
            self.proven = root.number
            return
        self.mark_wanted = root.number
        self._starts[root.number] = root.frame

    @property
    def next_number(self) -> int:
        """The first checkpoint that will not name what is dropped now."""
        return self.number + 1
