"""Writes checkpoints: captures sections between ticks, writes them in the background, completes them with a journal
mark.

Owns which section is in which file, and when older files may be removed. Invariant: the root is written only when every
frame that its sections contain is durable and every block that they name is synced; older files are removed only once
the newer checkpoint's mark is durable. Must not know what is in a section. See ADR 10.
"""

from __future__ import annotations

import errno

import msgspec

from headrace import __version__
from headrace.code_probes import sometimes
from headrace.errors import StoreError
from headrace.storage import format_features
from headrace.storage.checkpoint.checkpoint_context import CheckpointContext, DoneCallback
from headrace.storage.checkpoint.load import LoadedCheckpoint
from headrace.storage.checkpoint.running_checkpoint import RunningCheckpoint
from headrace.storage.checkpoint.section_capture import SectionCapturer
from headrace.storage.checkpoint_schema import CheckpointRoot, ShardEntry, StreamEntry
from headrace.storage.format import TRAILER_BYTES, checkpoint_path, encode_trailer
from headrace.storage.io.disk import Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.flush import mark_synced, sync_ops
from headrace.storage.metadata_store import SHARDS
from headrace.storage.segments.segment import FileSegment

FILES_MAX = 8  # checkpoints that a root refers to; with more, the oldest one's sections are captured again
COPIES = ("a", "b")


class Checkpointer:
    """Writes one checkpoint at a time.

    `number` is the newest checkpoint started, `durable_number` the newest whose mark is durable.
    """

    def __init__(self, store: CheckpointContext) -> None:
        self._store = store
        self.number = 0
        self.durable_number = 0
        self.running: RunningCheckpoint | None = None
        self.pending_mark = 0  # a checkpoint whose files are synced and whose mark is not written yet
        self.stream_entries: dict[int, StreamEntry] = {}
        self.shard_entries: dict[int, ShardEntry] = {}
        self.offline_streams: list[StreamEntry] = []
        self.retained_files: list[str] = []
        self.features: frozenset[str] = frozenset()  # named in the root
        self.frame_before_open: int | None = None  # for the root; None once it is confirmed
        self.is_open_recorded = False  # whether a root on the disk may have a number there
        self._capturer = SectionCapturer(store)
        self._existing: list[int] = []  # checkpoints whose files exist
        #: Checkpoint -> the frame up to which the journal is not needed.
        self._start_frames: dict[int, int] = {}
        self._waiters: list[tuple[int, DoneCallback]] = []  # called when that one, or a newer one, is durable
        self._next_waiters: list[DoneCallback] = []  # for the checkpoint after the current one
        self._restart_requested = False

    # Capturing

    def start(self, done: DoneCallback | None = None, everything: bool = False) -> None:
        """Start a checkpoint; if one is running, start another one after it."""
        if self.running is not None:
            sometimes("a checkpoint is requested while one is running")
            self._restart_requested = True
            if done is not None:
                self._next_waiters.append(done)
            return
        store = self._store
        self.number += 1
        waiting, self._next_waiters = self._next_waiters + ([done] if done is not None else []), []
        self._waiters += [(self.number, each) for each in waiting]
        journaled, store.journal.bytes_since_checkpoint = store.journal.bytes_since_checkpoint, 0
        running = self.running = RunningCheckpoint(self.number, store.journal.last_frame, journaled)
        running.captured_frame = store.frame_number - 1
        running.flush_target = store.flusher.added_count
        if store.has_deletes:
            running.delete_frame = store.frame_number
        stale = self._find_stale_files()
        self._plan_streams(running, stale, everything)
        self._plan_shards(running, stale, everything)

    def _plan_streams(self, running: RunningCheckpoint, stale: set[int], everything: bool) -> None:
        """Decide which streams are captured, and which keep the section that they have."""
        for log in self._store.iter_file_logs():
            entry = self.stream_entries.get(log.ident)
            if (
                everything
                or entry is None
                or log.changed_frame > log.saved_frame
                or entry.ref.checkpoint in stale
            ):
                running.to_capture.append((log, -1))
            else:
                running.stream_entries[log.ident] = StreamEntry(
                    log.ident, log.name, running.start_frame, entry.ref
                )

    def _plan_shards(self, running: RunningCheckpoint, stale: set[int], everything: bool) -> None:
        """Decide which shards of the metadata are captured, and which keep the section that they have."""
        for number, shard in enumerate(self._store.metadata.shards):
            if not shard.entries and shard.changed_frame < self._store.frame_number:
                continue  # empty, and not changed by the open frame
            existing = self.shard_entries.get(number)
            changed = shard.changed_frame > self._capturer.shard_frames[number]
            if everything or changed or (existing is not None and existing.ref.checkpoint in stale):
                running.to_capture.append((None, number))
            elif existing is not None:
                running.shard_entries[number] = ShardEntry(number, running.start_frame, existing.ref)

    def require(self, feature: str, done: DoneCallback) -> None:
        """Name a format feature in the root from now on: versions that lack it refuse the store.

        Write nothing that needs the feature before `done` is called without an error: until then the newest root on
        disk may not name it. A feature is never removed again.
        """
        if feature not in format_features.KNOWN:
            raise StoreError(f"{feature!r} is not in the list of format features")
        self.features |= {feature}
        self._store.checkpoint(done)

    def confirm_open(self, done: DoneCallback) -> None:
        """Count all frames from now on: this store is the right one. `done` is called when the newest root says so."""
        self.frame_before_open = None
        if self.is_open_recorded:
            self._store.checkpoint(done)
        else:
            done(None)

    def _find_stale_files(self) -> set[int]:
        named = sorted({entry.ref.checkpoint for entry in self._list_entries()})
        return set(named[: max(len(named) - FILES_MAX, 0)])

    def _list_entries(self) -> list[StreamEntry | ShardEntry]:
        return [*self.stream_entries.values(), *self.shard_entries.values(), *self.offline_streams]

    def advance(self) -> None:
        """Continue as far as possible now. Called after every commit submitted, commit completed and flush."""
        running = self.running
        if running is None or running.is_syncing or self._store.poisoned is not None:
            return
        if running.to_capture and not running.is_step_submitted:
            self._capture_sections(running)
        if running.to_capture or not self._is_ready(running):
            return
        running.is_syncing = True
        store = self._store
        unsynced, store.flusher.unsynced_segments = store.flusher.unsynced_segments, {}
        store.disk.submit(
            "behind", sync_ops(unsynced), lambda error: self._on_segments_synced(running, unsynced, error)
        )

    def _is_ready(self, running: RunningCheckpoint) -> bool:
        """Return whether everything that the sections contain is durable, and the blocks they name are written."""
        store = self._store
        delete_frame = running.get_delete_frame()
        if delete_frame > store.committed_frame:
            sometimes("a checkpoint waits for the deletion of a stream")
        return (
            store.committed_frame >= max(running.captured_frame, delete_frame)
            and store.flusher.finished_count >= running.flush_target
        )

    def _capture_sections(self, running: RunningCheckpoint) -> None:
        """Capture some sections; go on in the next turn if more can be captured now."""
        store = self._store
        more = self._capturer.capture_some(running)
        store.flusher.submit_next()  # segments sealed early, and columns of logs whose subjects got new ids
        if not running.to_capture:
            running.captured_frame = store.frame_number - 1
            running.flush_target = store.flusher.added_count
        elif more:
            running.is_step_submitted = True
            store.disk.submit("behind", [], lambda error: self._on_next_step(running))

    def _on_next_step(self, running: RunningCheckpoint) -> None:
        running.is_step_submitted = False
        self.advance()

    # Writing

    def _make_root(self, running: RunningCheckpoint) -> CheckpointRoot:
        store = self._store
        return CheckpointRoot(
            number=running.number,
            frame=running.start_frame,
            next_ident=store.next_ident,
            streams=list(running.stream_entries.values()),
            shards=list(running.shard_entries.values()),
            damage=list(store.report().damage),
            offline=self.offline_streams,
            retained_files=self.retained_files,
            writer=__version__,
            frame_before_open=self.frame_before_open,
        )

    def _make_write_ops(self, running: RunningCheckpoint) -> list[Op]:
        assert sum(map(len, running.sections)) == running.size, "the root must be where the trailer says"
        encoded = msgspec.msgpack.encode(self._make_root(running))
        self.is_open_recorded |= self.frame_before_open is not None
        root = format_features.encode_envelope(encoded, self.features)
        trailer = encode_trailer(self._store.store_id, running.number, running.size, root)
        parts = [*running.sections, root, trailer]
        ops: list[Op] = []
        for copy in COPIES:
            path = checkpoint_path(running.number, copy)
            ops += [("create", path, 0), ("write", path, 0, parts), ("sync", path)]
        return [*ops, ("syncdir", "checkpoints")]

    def _on_segments_synced(
        self,
        running: RunningCheckpoint,
        unsynced: dict[str, tuple[FileLog, FileSegment]],
        error: OSError | None,
    ) -> None:
        if error is not None:
            self._store.fail(error)
            return
        mark_synced(unsynced)
        ops = self._make_write_ops(running)
        self._store.disk.submit("behind", ops, lambda error: self._on_written(running, error))

    def _on_written(self, running: RunningCheckpoint, error: OSError | None) -> None:
        if error is not None:
            if error.errno == errno.ENOSPC:
                root_size = len(msgspec.msgpack.encode(self._make_root(running)))
                self._store.on_out_of_space(error)
                self._abort(running, error)
                needed = 2 * (running.size + root_size + TRAILER_BYTES)
                self._store.journal.give_up_spare(needed, self._store.on_files_removed)
            else:
                self._store.fail(error)
            return
        self._install(running)
        self._store.write_mark()

    def _install(self, running: RunningCheckpoint) -> None:
        self.stream_entries, self.shard_entries = running.stream_entries, running.shard_entries
        self._existing.append(running.number)
        self._start_frames[running.number] = running.start_frame
        self.pending_mark = running.number
        self.running = None

    def on_no_space(self, error: OSError) -> None:
        """Abort the checkpoint: blocks that it waits for cannot be written."""
        if self.running is not None and not self.running.is_syncing:
            self._abort(self.running, error)

    def _abort(self, running: RunningCheckpoint, error: OSError) -> None:
        """Abort for lack of space: everything captured must be captured again, and incomplete files are removed."""
        sometimes("a checkpoint is aborted for lack of space")
        store = self._store
        for log in store.iter_file_logs():
            log.saved_frame = -1
        self._capturer.shard_frames = [-1] * SHARDS
        running.close()
        ops = self._make_unlink_ops()
        self.running = None
        store.on_checkpoint_aborted(running.journaled)
        if ops:
            store.disk.submit("behind", ops, store.on_files_removed)
        done = [each for _, each in self._waiters] + self._next_waiters
        self._waiters, self._next_waiters, self._restart_requested = [], [], False
        for each in done:
            each(error)

    def _make_unlink_ops(self) -> list[Op]:
        """Return the operations that remove the files of the running checkpoint."""
        paths = [checkpoint_path(self.number, copy) for copy in COPIES]
        return [("unlink", path) for path in paths if self._store.disk.exists(path)]

    def drop_unfinished(self) -> None:
        """Remove what `run_blocking` wrote before it ran out of space."""
        self._store.disk.run(self._make_unlink_ops())
        self.running = None

    def run_blocking(self) -> None:
        """Write a whole checkpoint and block until it is synced; for recovery and closing.

        The open frame must be empty.
        """
        store = self._store
        store.disk.drain()
        # This checkpoint replaces one that waits for space, whose captured state counts as saved but is in no file.
        interrupted, self.running = self.running, None
        if interrupted is not None:
            interrupted.close()
        self.pending_mark = 0
        self.start(everything=interrupted is not None or self.durable_number == 0)
        running = self.running
        assert running is not None
        while running.to_capture:
            self._capturer.capture_whole(running, running.to_capture.popleft())
        store.flusher.flush_now()
        unsynced, store.flusher.unsynced_segments = store.flusher.unsynced_segments, {}
        store.disk.run(sync_ops(unsynced))
        mark_synced(unsynced)
        store.disk.run(self._make_write_ops(running))
        self._install(running)

    # Marks

    def mark_durable(self, number: int) -> None:
        """Handle the durable mark of a checkpoint: release what only older checkpoints need."""
        self.durable_number = number
        self._store.journal.release_through(self._start_frames[number])
        self._start_frames = {each: start for each, start in self._start_frames.items() if each > number}
        named = {entry.ref.checkpoint for entry in self._list_entries()} | {self.number, number}
        old = [each for each in self._existing if each < number and each not in named]
        self._existing = [each for each in self._existing if each not in old]
        store = self._store
        ops: list[Op] = []
        for each in old:
            paths = [checkpoint_path(each, copy) for copy in COPIES]
            ops += [("unlink", path) for path in paths if store.disk.exists(path)]
        if ops:
            store.disk.submit("behind", ops, store.fail_on_error)
        done = [each for needed, each in self._waiters if needed <= number]
        self._waiters = [each for each in self._waiters if each[0] > number]
        for callback in done:
            callback(None)
        if self._restart_requested:
            self._restart_requested = False
            self.start()

    def restore_state(self, files: list[int], newest: int) -> None:
        """After recovery: set the checkpoint files that exist and the highest number ever used."""
        self._existing = files
        self.number = newest

    def resume(self, found: LoadedCheckpoint, newest: int, files: list[int]) -> None:
        """After recovery in place: make the checkpoint that it started from the newest one."""
        root = found.root
        self._existing = files
        self.number = newest
        self.stream_entries = {entry.ident: entry for entry in root.streams}
        self.shard_entries = {entry.shard: entry for entry in root.shards}
        if found.is_proven:
            self.durable_number = root.number
            return
        self.pending_mark = root.number
        self._start_frames[root.number] = root.frame

    @property
    def is_settled(self) -> bool:
        """Return whether no newer checkpoint can become durable before the disk's background queue has done what it is
        given now.
        """
        is_syncing = self.running is not None and self.running.is_syncing
        return not is_syncing and all(number <= self.durable_number for number in self._start_frames)

    def list_files(self, through: int) -> list[str]:
        """Return the files of this checkpoint and of older ones that it may refer to."""
        paths = [checkpoint_path(each, copy) for each in self._existing if each <= through for copy in COPIES]
        return [path for path in paths if self._store.disk.exists(path)]

    @property
    def next_number(self) -> int:
        """The first checkpoint that will not name files dropped now."""
        return self.number + 1
