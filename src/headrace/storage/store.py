"""The store: logs and metadata, changed in frames that are durable as a whole or not at all.

Owns the open frame, the frame in flight, and the order of everything else: commit, flush, checkpoint, recycling of
files. Invariant: `committed_frame` is a frame whose sync has returned, and all frames before it are durable too. After
a failed sync nothing is committed any more. Must not know threads or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from headrace.code_probes import sometimes
from headrace.errors import StoreError, StorePoisoned
from headrace.storage.checkpoint.checkpoint_trigger import CheckpointTrigger
from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.feature_requests import FeatureRequests
from headrace.storage.format import COMMIT, IDLE, SHUTDOWN
from headrace.storage.frame_builder import FrameBuilder, SealedFrame
from headrace.storage.io.disk import Disk, OutOfSpace
from headrace.storage.journal.frame_submit import FrameSubmission
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import StreamLog
from headrace.storage.log.log_context import LargeWrite, LogContext
from headrace.storage.log.memory_log import MemoryLog
from headrace.storage.maintenance.compaction import Compactor
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.maintenance.gc import FileGarbageCollector
from headrace.storage.memory_frames import MemoryFrames
from headrace.storage.metadata_store import MetadataStore
from headrace.storage.native_records import LogWriter, OpenFrame, mark_committed
from headrace.storage.options import StoreOptions
from headrace.storage.segments.segment import FileState
from headrace.storage.space_monitor import SpaceMonitor
from headrace.storage.store_observer import StoreObserver


class Store:
    """Created by `open_store`. Everything here runs on one thread, the core's."""

    def __init__(self, disk: Disk, options: StoreOptions, ident: int, report: RecoveryReport) -> None:
        self.disk = disk
        self.options = options
        self.store_id = ident
        self.logs: dict[str, StreamLog] = {}
        self.next_ident = 1
        self.committed_frame = 0
        self.in_flight = False
        self.poisoned: StoreError | None = None
        self._observer: StoreObserver | None = None
        self.open_frame = OpenFrame(self.extend_frame)
        self.memory_frames = MemoryFrames()
        self.metadata = MetadataStore(self.open_frame)
        self.journal = Journal(disk, ident, options, self.fail)
        self.flusher = SegmentFlusher(disk, options, self._on_flush_progress, self.on_out_of_space, self.fail)
        self.frame_submission = FrameSubmission(disk, self.on_out_of_space)
        self.space = SpaceMonitor(
            disk, options, self.open_frame, self.journal, self.flusher, self.frame_submission, self._on_full
        )
        self.checkpointer = Checkpointer(self)
        self.file_gc = FileGarbageCollector(self)
        self.compactor = Compactor(self)
        self.checkpoint_trigger = CheckpointTrigger(
            options, self.journal, self.flusher, self.file_gc, self.space, self.checkpointer
        )
        self._report = report
        self.log_context = self._make_log_context()
        self.frame_builder = FrameBuilder(
            self.log_context, self.metadata, self.journal, self.file_gc, self.checkpointer
        )
        self._in_flight_bytes = 0
        self.has_final_checkpoint = (
            True  # on closing, unless there is no space for one; the journal has the rest
        )

    def _make_log_context(self) -> LogContext:
        return LogContext(
            disk=self.disk,
            store_id=self.store_id,
            options=self.options,
            open_frame=self.open_frame,
            flusher=self.flusher,
            file_gc=self.file_gc,
            compactor=self.compactor,
            space=self.space,
            report=self._report,
            features=FeatureRequests(self.checkpointer.require, self.space),
        )

    def set_observer(self, observer: StoreObserver) -> None:
        """Set the observer that is called from now on."""
        self._observer = observer

    # The open frame

    @property
    def frame_number(self) -> int:
        return self.open_frame.number

    @property
    def dirty(self) -> bool:
        return bool(
            self.open_frame.dirty_logs
            or self.metadata.frame_entries
            or self.frame_builder.create_entries
            or self.frame_builder.delete_entries
        )

    def drain_changed_logs(self) -> list[LogWriter]:
        """Return the file logs that changed since the last call; those of the open frame are returned again next time."""
        return self.frame_builder.drain_changed_logs()

    @property
    def next_checkpoint(self) -> int:
        """The number of the first checkpoint that will not name files dropped now."""
        return self.checkpointer.next_number

    @property
    def has_deletes(self) -> bool:
        """Whether the open frame deletes a stream."""
        return bool(self.frame_builder.delete_entries)

    @property
    def pending_bytes(self) -> int:
        """Bytes admitted but not yet flushed to their files: for backpressure."""
        return (
            self.open_frame.pending_bytes
            + self.log_context.large_pending_bytes
            + self._in_flight_bytes
            + self.flusher.pending_bytes
        )

    def create(self, name: str, *, memory: bool = False, first_seq: int = 1) -> StreamLog:
        """Create a stream; durable with the open frame."""
        self._raise_if_failed()
        if name in self.logs:
            raise StoreError(f"stream {name} already exists")
        ident, self.next_ident = self.next_ident, self.next_ident + 1
        if memory:
            log: StreamLog = MemoryLog(self.memory_frames.open_frame, ident, name, self.options, first_seq)
        else:
            log = FileLog(self.log_context, ident, name, first_seq)
            self.frame_builder.add_create(ident, name, first_seq)
        log.mark_dirty()
        self.logs[name] = log
        return log

    def delete(self, log: StreamLog) -> None:
        """Delete a stream and all its messages with the open frame."""
        self._raise_if_failed()
        del self.logs[log.name]
        if log.dirty:
            log.open_frame.dirty_logs.remove(log)
            log.reset_changes()
        self.memory_frames.forget_log(log)
        if isinstance(log, FileLog):
            log.mark_deleted()
            self.frame_builder.add_delete(log)
            self.file_gc.add_folder(log.folder_path, self.frame_number, bool(log.large_segments))

    @property
    def full(self) -> bool:
        """Whether the disk is full: messages are refused, removals are not."""
        return self.space.full

    @property
    def waiting_for_space(self) -> bool:
        """Whether the frame in flight found no space on the disk and is waiting for some."""
        return self.frame_submission.no_space_error is not None

    def iter_file_logs(self) -> Iterator[FileLog]:
        return (log for log in self.logs.values() if isinstance(log, FileLog))

    def _raise_if_failed(self) -> None:
        if self.poisoned is not None:
            raise self.poisoned

    def extend_frame(self, size: int) -> None:
        """Called when the frame is closed or about to exceed its reserved size; raises StoreFull or StorePoisoned."""
        self._raise_if_failed()
        if self.space.full:
            self.update_space()  # space may have become free, and a refused append triggers no commit
        self.space.extend_frame(size)

    def reserve_large_space(self, size: int) -> None:
        """Reserve space for large messages until the open frame is sealed; raises StoreFull."""
        self.log_context.reserve_large_space(size)

    # Committing

    def commit(self) -> int:
        """Close the open frame and submit it; only if none is in flight and it is not empty."""
        return self._commit(COMMIT)

    def on_idle(self) -> None:
        """Call this when nothing has happened for a while, and from time to time while the disk is full: writes an idle
        frame that confirms the last commit, and retries what waits for space.
        """
        if self.poisoned is not None:
            return
        is_quiescent = not (self.in_flight or self.dirty)
        if is_quiescent or self.full:
            self.update_space()
        if self.full:
            self.checkpoint_trigger.maybe_start()
            self.checkpointer.advance()
            for log in self.iter_file_logs():
                log.drop_emptied_segment()
            if self.checkpointer.pending_mark or self.file_gc.has_statements:
                self.write_mark()
                return
        if is_quiescent and self.frame_builder.last_kind == COMMIT:
            self._commit(IDLE)

    def _commit(self, kind: int) -> int:
        self._raise_if_failed()
        if self.in_flight:
            raise StoreError("a frame is being written; seal when it is committed")
        frame, ops = self.frame_builder.seal(kind, is_full=self.space.full)
        self.in_flight = True
        self._in_flight_bytes = frame.size
        self.frame_submission.submit(ops, partial(self._on_committed, frame))
        self.update_space()
        self.checkpointer.advance()
        return frame.number

    def _on_committed(self, frame: SealedFrame, error: OSError | None) -> None:
        """Handle the end of a frame's write: the frame is durable, or the store is poisoned."""
        if error is not None:
            self.fail(error)
        if self.poisoned is not None:
            return
        self.in_flight = False
        self._in_flight_bytes = 0
        self.committed_frame = frame.number
        mark_committed(frame.logs)
        if frame.large_writes:
            self._on_large_written(frame.large_writes)
        # Maintenance runs before the observer sends acks, because the observer commits the next frame: afterwards,
        # `file_gc.release` would unlink files that only that frame declares as removed, and messages would be
        # refused by an outdated measurement of space. Also, an error in the observer must not stop maintenance.
        self._run_maintenance(frame.mark)
        if self._observer is not None:
            self._observer.on_frame_durable(frame.number)
        if self.checkpointer.pending_mark and not self.in_flight and not self.dirty:
            self.write_mark()

    def _on_large_written(self, large_writes: list[LargeWrite]) -> None:
        for log, segment, block in large_writes:
            log.folder_state = segment.state = FileState.READY
            log.folder_synced = segment.folder_synced = True
            segment.on_block_written(block)
            self.journal.bytes_since_checkpoint += block.used
            if not log.is_deleted:
                self.flusher.unsynced_segments[segment.path] = (log, segment)

    def _run_maintenance(self, mark: int) -> None:
        """Start what a durable frame allows; `mark` is the checkpoint that it marks."""
        if mark:
            self.file_gc.collect(mark)
            self.checkpointer.mark_durable(mark)
            self.checkpoint_trigger.on_marked()
        self.file_gc.release()
        if self.space.full:
            self.update_space()
        self.flusher.submit_next()
        self.checkpoint_trigger.maybe_start()
        self.checkpointer.advance()
        self.compactor.start_next()

    def fail(self, error: OSError | StorePoisoned) -> None:
        """Handle a failed write or sync, or another reason: nothing more is acknowledged, and nothing is retried."""
        if self.poisoned is None:
            sometimes("the store is poisoned")
            text = f"a write failed: {error}; restart the server to recover what is on disk"
            reason = error if isinstance(error, StorePoisoned) else StorePoisoned(text)
            self.poisoned = self.memory_frames.poisoned = reason
            self.open_frame.closed = True
            for log in self.logs.values():
                if isinstance(log, MemoryLog):
                    log.refuse_appends()

    def fail_on_error(self, error: OSError | None) -> None:
        """Completion callback for submissions of which only failure matters."""
        if error is not None:
            self.fail(error)

    # Background work

    def checkpoint(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Start a checkpoint; `done` is called when one started from now on is durable, or aborted for lack of space."""
        self._raise_if_failed()
        self.update_space()
        self.checkpoint_trigger.request(done)
        self.checkpointer.advance()

    def flush(self, log: StreamLog, done: Callable[[], None]) -> None:
        """Finish the tail block of a log and call `done` when all its records so far are in segment files."""
        log.finish_block()
        self.flusher.call_when_flushed(done)
        self.flusher.submit_next()

    def write_mark(self) -> None:
        """Commit the mark of a checkpoint at once if the open frame is empty; otherwise it goes into the next frame.

        Only the owner commits a frame that is not empty: it may have to add to it.
        """
        if not self.in_flight and not self.dirty and self.poisoned is None:
            sometimes("a frame contains only the mark of a checkpoint")
            self._commit(COMMIT)

    def _on_flush_progress(self) -> None:
        """Handle progress of the flusher: something was written, or found no space."""
        if self.full and not self.flusher.out_of_space and self.poisoned is None:
            self.update_space()
            self.checkpoint_trigger.maybe_start()
        self.checkpointer.advance()
        self.compactor.start_next()

    def on_files_removed(self, error: OSError | None) -> None:
        """Handle unlinked files: there may be space again."""
        self.fail_on_error(error)
        self.update_space()

    def on_out_of_space(self, error: OSError) -> None:
        """Handle a full disk found by a frame or by background work."""
        self.space.set_full(True)
        self.checkpointer.on_no_space(error)

    def on_checkpoint_aborted(self, journaled: int) -> None:
        """Handle a checkpoint that found no space; `journaled` bytes were journaled since the one before."""
        self.checkpoint_trigger.on_out_of_space(journaled)

    def update_space(self) -> None:
        """Measure how much space is free, and retry what waits for some."""
        if self.poisoned is None:
            self.space.update(self._in_flight_bytes)

    def _on_full(self) -> None:
        if self._observer is not None:
            self._observer.on_full()

    def on_recovered(self) -> None:
        """Finish recovery: measure space and find candidates for compaction."""
        self.update_space()
        for log in self.iter_file_logs():
            self.compactor.add_candidates(log)

    # Health and closing

    def report(self) -> RecoveryReport:
        """Return what recovery found, and what reads have found since."""
        return self._report

    def accept_loss(self) -> None:
        """Clear the damage that a person has accepted; the evidence in the journal may be removed."""
        self._report.damage.clear()
        self.checkpointer.retained_files.clear()
        self.checkpointer.offline_streams.clear()
        for log in self.iter_file_logs():
            log.lost_ranges.clear()

    def close(self) -> None:
        """Commit the open frame, write a checkpoint and the shutdown mark; blocks."""
        if self.compactor.stopped:
            return
        self.compactor.stopped = True
        self._drain()
        if self.poisoned is None and self.dirty and not self.in_flight:
            self._commit(COMMIT)
            self._drain()
        if self.poisoned is None:
            self._write_shutdown()
        if self.poisoned is not None:
            raise self.poisoned
        self.poisoned = self.memory_frames.poisoned = StoreError("the store is closed; open it again")
        self.open_frame.closed = True

    def _write_shutdown(self) -> None:
        try:
            self.checkpointer.run_blocking()
        except OutOfSpace:
            self.has_final_checkpoint = False
            self.checkpointer.drop_unfinished()  # the journal has everything
        except OSError as error:
            self.fail(error)
            return
        self._commit(SHUTDOWN)
        self._drain()

    def _drain(self) -> None:
        """Block until nothing is pending; a frame that waits for space is retried once."""
        self.disk.drain()
        if self.poisoned is None:
            self.frame_submission.retry()
            self.disk.drain()
        if self.frame_submission.no_space_error is not None:
            self.fail(self.frame_submission.no_space_error)
