"""Writes checkpoints: captures sections between ticks, writes them in the background, completes them with a journal
mark.

Owns which section is in which file, and when older files may be removed. Invariant: the root is written only when every
frame that its sections contain is durable and every block that they name is synced; older files are removed only once
the newer checkpoint's mark is durable. Must not know what is in a section.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace import __version__
from headrace.code_probes import sometimes
from headrace.errors import StoreError
from headrace.storage import format_features
from headrace.storage.checkpoint.load import LoadedCheckpoint
from headrace.storage.checkpoint_schema import CheckpointRoot, SectionRef, ShardEntry, StreamEntry
from headrace.storage.format import TRAILER_BYTES, checkpoint_path, compute_section_crc, encode_trailer
from headrace.storage.io.disk import Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.flush import mark_synced, sync_ops
from headrace.storage.metadata_store import SHARDS
from headrace.storage.segments.segment import FileSegment

if TYPE_CHECKING:
    from headrace.storage.store import Store

STEP_BYTES = 1 << 20  # captured in one step: bounds how long a commit can be delayed
STEP_SECTIONS = 64
FILES_MAX = 8  # checkpoints that a root refers to; with more, the oldest one's sections are captured again
COPIES = ("a", "b")

DoneCallback = Callable[[OSError | None], None]


class Checkpointer:
    """Writes one checkpoint at a time.

    `number` is the newest checkpoint started, `durable_number` the newest whose mark is durable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.number = 0
        self.durable_number = 0
        self.running = False
        self.pending_mark = 0  # a checkpoint whose files are synced and whose mark is not written yet
        self.stream_entries: dict[int, StreamEntry] = {}
        self.shard_entries: dict[int, ShardEntry] = {}
        self.offline_streams: list[StreamEntry] = []
        self.retained_files: list[str] = []
        self.features: frozenset[str] = frozenset()  # named in the root
        self._shard_frames = [-1] * SHARDS
        self._existing: list[int] = []  # checkpoints whose files exist
        #: Checkpoint -> the frame up to which the journal is not needed.
        self._start_frames: dict[int, int] = {}
        self._waiters: list[tuple[int, DoneCallback]] = []  # called when that one, or a newer one, is marked
        self._next_waiters: list[DoneCallback] = []  # for the checkpoint after the current one
        self._restart_requested = False
        self._reset()

    def _reset(self) -> None:
        self._to_capture: deque[tuple[FileLog | None, int]] = deque()
        self._sections: list[bytes] = []
        self._offset = 0
        self._start_frame = 0
        self._journaled = 0  # bytes journaled between the start of the previous checkpoint and of this one
        self._captured_frame = 0
        self._delete_frame = 0  # the frame that deletes a stream which this checkpoint no longer names
        self._captured_logs: list[FileLog] = []
        self._flush_target = 0
        self._syncing = False
        self._new_stream_entries: dict[int, StreamEntry] = {}
        self._new_shard_entries: dict[int, ShardEntry] = {}

    # Capturing

    def start(self, done: DoneCallback | None = None, everything: bool = False) -> None:
        """Start a checkpoint; if one is running, start another one after it."""
        if self.running:
            sometimes("a checkpoint is asked for while one is under way")
            self._restart_requested = True
            if done is not None:
                self._next_waiters.append(done)
            return
        self.running = True
        self._reset()
        store = self._store
        self.number += 1
        waiting, self._next_waiters = self._next_waiters + ([done] if done is not None else []), []
        self._waiters += [(self.number, each) for each in waiting]
        self._start_frame = store.journal.last_frame
        self._journaled, store.journal.bytes_since_checkpoint = store.journal.bytes_since_checkpoint, 0
        self._captured_frame = store.frame_number - 1
        self._flush_target = store.flusher.added_count
        if store.has_deletes:
            self._delete_frame = store.frame_number
        stale = self._find_stale_files()
        for log in store.iter_file_logs():
            entry = self.stream_entries.get(log.ident)
            if (
                everything
                or entry is None
                or log.changed_frame > log.saved_frame
                or entry.ref.checkpoint in stale
            ):
                self._to_capture.append((log, -1))
            else:
                self._new_stream_entries[log.ident] = StreamEntry(
                    log.ident, log.name, self._start_frame, entry.ref
                )
        for number, shard in enumerate(store.metadata.shards):
            if not shard.entries and shard.changed_frame < store.frame_number:
                continue  # empty, and not changed by the open frame
            existing = self.shard_entries.get(number)
            changed = shard.changed_frame > self._shard_frames[number]
            if everything or changed or (existing is not None and existing.ref.checkpoint in stale):
                self._to_capture.append((None, number))
            elif existing is not None:
                self._new_shard_entries[number] = ShardEntry(number, self._start_frame, existing.ref)

    def require(self, feature: str, done: DoneCallback) -> None:
        """Name a format feature in the root from now on: versions that lack it refuse the store.

        Write nothing that needs the feature before `done` is called without an error: until then the newest root on
        disk may not name it. A feature is never removed again.
        """
        if feature not in format_features.KNOWN:
            raise StoreError(f"{feature!r} is not in the list of format features")
        self.features |= {feature}
        self._store.checkpoint(done)

    def _get_delete_frame(self) -> int:
        """Return the frame that must be durable before the root is written, because it deletes a stream.

        A root that does not name the stream would delete it too early. A root that names it would rely on blocks that
        are no longer written.
        """
        captured = max((log.deleted_in_frame for log in self._captured_logs if log.is_deleted), default=0)
        if max(self._delete_frame, captured) > self._store.committed_frame:
            sometimes("a checkpoint waits for the end of a stream")
        return max(self._delete_frame, captured)

    def _find_stale_files(self) -> set[int]:
        named = sorted({entry.ref.checkpoint for entry in self._list_entries()})
        return set(named[: max(len(named) - FILES_MAX, 0)])

    def _list_entries(self) -> list[StreamEntry | ShardEntry]:
        return [*self.stream_entries.values(), *self.shard_entries.values(), *self.offline_streams]

    def advance(self) -> None:
        """Continue as far as possible now. Called after every commit submitted, commit completed and flush."""
        if not self.running or self._syncing or self._store.poisoned is not None:
            return
        if self._to_capture:
            self._capture_sections()
        if self._to_capture:
            return
        store = self._store
        if (
            store.committed_frame < max(self._captured_frame, self._get_delete_frame())
            or store.flusher.finished_count < self._flush_target
        ):
            return
        self._syncing = True
        unsynced, store.flusher.unsynced_segments = store.flusher.unsynced_segments, {}
        store.disk.submit(
            "behind", sync_ops(unsynced), lambda error: self._on_segments_synced(unsynced, error)
        )

    def _capture_sections(self) -> None:
        """Capture sections of logs and shards that the open frame has not changed."""
        store = self._store
        budget = self._offset + STEP_BYTES
        for _ in range(min(len(self._to_capture), STEP_SECTIONS)):
            if self._offset > budget:
                break
            log, number = self._to_capture.popleft()
            changed = log.changed_frame if log is not None else store.metadata.shards[number].changed_frame
            if changed == store.frame_number:
                sometimes("a section waits for its frame")
                self._to_capture.append((log, number))
            elif log is None:
                self._capture_shard(number)
            elif log.is_deleted:
                self._delete_frame = max(self._delete_frame, log.deleted_in_frame)
            else:
                self._capture_stream(log)
        store.flusher.submit_next()  # segments sealed early, and columns of logs whose subjects got new ids
        if not self._to_capture:
            self._captured_frame = store.frame_number - 1
            self._flush_target = store.flusher.added_count
        elif any(not self._is_changing(each) for each in self._to_capture):
            store.disk.submit("behind", [], lambda error: self.advance())

    def _is_changing(self, each: tuple[FileLog | None, int]) -> bool:
        log, number = each
        shards = self._store.metadata.shards
        return (
            log.changed_frame if log is not None else shards[number].changed_frame
        ) == self._store.frame_number

    def _capture_stream(self, log: FileLog) -> None:
        if log.is_sparse:
            sometimes("a segment is sealed early")
            log.seal_early()
        if log.has_many_dead_subjects and not self._store.compactor.is_compacting(log):
            log.drop_dead_subjects()
        ref = self._append_section(log.encode_state())
        self._new_stream_entries[log.ident] = StreamEntry(
            log.ident, log.name, self._store.journal.last_frame, ref
        )
        log.saved_frame = self._store.frame_number - 1
        self._captured_logs.append(log)

    def _capture_shard(self, number: int) -> None:
        ref = self._append_section(msgspec.msgpack.encode(self._store.metadata.capture_shard(number)))
        self._new_shard_entries[number] = ShardEntry(number, self._store.journal.last_frame, ref)
        self._shard_frames[number] = self._store.frame_number - 1

    def _append_section(self, data: bytes) -> SectionRef:
        ref = SectionRef(
            self.number, self._offset, len(data), compute_section_crc(self._store.store_id, data)
        )
        padding = -len(data) % 8
        self._sections += [data, bytes(padding)] if padding else [data]
        self._offset += len(data) + padding
        return ref

    # Writing

    def _make_root(self) -> CheckpointRoot:
        store = self._store
        return CheckpointRoot(
            number=self.number,
            frame=self._start_frame,
            next_ident=store.next_ident,
            streams=list(self._new_stream_entries.values()),
            shards=list(self._new_shard_entries.values()),
            damage=list(store.report().damage),
            offline=self.offline_streams,
            retained_files=self.retained_files,
            writer=__version__,
        )

    def _make_write_ops(self) -> list[Op]:
        root = format_features.encode_envelope(msgspec.msgpack.encode(self._make_root()), self.features)
        parts = [*self._sections, root, encode_trailer(self._store.store_id, self.number, self._offset, root)]
        ops: list[Op] = []
        for copy in COPIES:
            path = checkpoint_path(self.number, copy)
            ops += [("create", path, 0), ("write", path, 0, parts), ("sync", path)]
        return [*ops, ("syncdir", "checkpoints")]

    def _on_segments_synced(
        self, unsynced: dict[str, tuple[FileLog, FileSegment]], error: OSError | None
    ) -> None:
        if error is not None:
            self._store.fail(error)
            return
        mark_synced(unsynced)
        self._store.disk.submit("behind", self._make_write_ops(), self._on_written)

    def _on_written(self, error: OSError | None) -> None:
        if error is not None:
            if error.errno == errno.ENOSPC:
                needed = 2 * (self._offset + len(msgspec.msgpack.encode(self._make_root())) + TRAILER_BYTES)
                self._store.on_out_of_space(error)
                self._abort(error)
                self._store.journal.give_up_spare(needed, self._store.on_files_removed)
            else:
                self._store.fail(error)
            return
        self._install()
        self.running = False
        self._store.write_mark()

    def _install(self) -> None:
        self.stream_entries, self.shard_entries = self._new_stream_entries, self._new_shard_entries
        self._existing.append(self.number)
        self._start_frames[self.number] = self._start_frame
        self.pending_mark = self.number
        self._sections, self._captured_logs = [], []

    def on_no_space(self, error: OSError) -> None:
        """Abort the checkpoint: blocks that it waits for cannot be written."""
        if self.running and not self._syncing:
            self._abort(error)

    def _abort(self, error: OSError) -> None:
        """Abort for lack of space: everything captured must be captured again, and incomplete files are removed."""
        sometimes("a checkpoint is given up")
        store = self._store
        for log in store.iter_file_logs():
            log.saved_frame = -1
        self._shard_frames = [-1] * SHARDS
        ops = self._make_unlink_ops()
        self.running = False
        store.missed_space(self._journaled)
        self._reset()
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
        self.running = False
        self._reset()

    def run_blocking(self) -> None:
        """Write a whole checkpoint and block until it is synced; for recovery and closing.

        The open frame must be empty.
        """
        store = self._store
        store.disk.drain()
        # This checkpoint replaces one that waits for space, whose captured state counts as saved but is in no file.
        interrupted, self.running = self.running, False
        self.pending_mark = 0
        self.start(everything=interrupted or self.durable_number == 0)
        while self._to_capture:
            self._capture_next()
        store.flusher.flush_now()
        unsynced, store.flusher.unsynced_segments = store.flusher.unsynced_segments, {}
        store.disk.run(sync_ops(unsynced))
        mark_synced(unsynced)
        store.disk.run(self._make_write_ops())
        self._install()
        self.running = False

    def _capture_next(self) -> None:
        log, number = self._to_capture.popleft()
        if log is None:
            self._capture_shard(number)
        elif not log.is_deleted:
            self._capture_stream(log)

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
    def next_number(self) -> int:
        """The first checkpoint that will not name files dropped now."""
        return self.number + 1
