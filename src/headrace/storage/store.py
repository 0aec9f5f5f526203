"""The store: logs and metadata, changed in frames that are durable as a whole or not at all.

Owns the open frame, the frame in flight, and the order of everything else: commit, flush, checkpoint, recycling of
files. Invariant: `committed_frame` is a frame whose sync has returned, and all frames before it are durable too. After
a failed sync nothing is committed any more. Must not know threads or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from headrace.clock import Clock
from headrace.code_probes import sometimes
from headrace.errors import StoreError, StoreFull, StorePoisoned
from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.checkpoint_space import Space
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import (
    CHECKPOINT,
    COMMIT,
    CREATE_STREAM,
    DELETE_STREAM,
    IDLE,
    SHUTDOWN,
    WATERMARKS,
    encode_entry,
    encode_u64,
)
from headrace.storage.io.disk import Disk, Op, OutOfSpace
from headrace.storage.journal.frame_submit import FrameSubmission
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import StreamLog
from headrace.storage.log.log_context import LogContext
from headrace.storage.log.memory_log import MemoryLog
from headrace.storage.maintenance.compaction import Compactor
from headrace.storage.maintenance.flush import SegmentFlusher, large_message_ops
from headrace.storage.maintenance.gc import FileGarbageCollector
from headrace.storage.metadata_store import MetadataStore
from headrace.storage.native_records import (
    LogWriter,
    OpenFrame,
    RecordBlock,
    build_frame_body,
    mark_committed,
)
from headrace.storage.options import StoreOptions
from headrace.storage.segments.segment import FileSegment, FileState

_DEFAULT_OPTIONS = StoreOptions()


def _raise_deleted(size: int) -> None:
    raise StoreError("the stream was deleted")


class Store:
    """Created by `Store.open`. Everything here runs on one thread, the core's."""

    def __init__(self, disk: Disk, options: StoreOptions, ident: int, report: RecoveryReport) -> None:
        self.disk = disk
        self.options = options
        self.store_id = ident
        self.logs: dict[str, StreamLog] = {}
        self.next_ident = 1
        self.committed_frame = 0
        self.in_flight = False
        self.poisoned: StoreError | None = None
        self.full = False
        self.on_commit: Callable[[int], None] = lambda frame: None
        self.on_full: Callable[[], None] = lambda: None  # to be followed by calls of `on_idle`
        self.open_frame = OpenFrame(self.extend_frame)
        self.metadata = MetadataStore(self.open_frame)
        self.journal = Journal(disk, ident, options, self.fail)
        self.flusher = SegmentFlusher(disk, options, self._on_flush_progress, self.on_out_of_space, self.fail)
        self.space = Space(disk, options, self.flusher)
        self.frame_submission = FrameSubmission(disk, self.on_out_of_space)
        self.checkpointer = Checkpointer(self)
        self.file_gc = FileGarbageCollector(self)
        self.compactor = Compactor(self)
        self._report = report
        self.log_context = self._make_log_context()
        self._create_entries: list[bytes] = []
        self._delete_entries: list[bytes] = []
        self._prev_watermarks = b""
        self._last_frame_kind = SHUTDOWN
        self._in_flight_bytes = 0
        self._closed = False
        #: False if there was no space for a checkpoint on closing: the journal has what the last one lacks.
        self.has_final_checkpoint = True
        self._closed_frame = OpenFrame(_raise_deleted)
        self._closed_frame.closed = True

    @classmethod
    def open(cls, disk: Disk, clock: Clock, options: StoreOptions = _DEFAULT_OPTIONS) -> Store:
        """Recover the store on the disk; when this returns, all of it is durable. Raises `StoreError`."""
        from headrace.storage.recovery.recovery import recover

        return recover(disk, clock, options)

    def _make_log_context(self) -> LogContext:
        return LogContext(
            disk=self.disk,
            store_id=self.store_id,
            options=self.options,
            open_frame=self.open_frame,
            flusher=self.flusher,
            file_gc=self.file_gc,
            compactor=self.compactor,
            space=self,
            report=self._report,
        )

    # The open frame

    @property
    def frame_number(self) -> int:
        return self.open_frame.number

    @property
    def dirty(self) -> bool:
        return bool(
            self.open_frame.dirty_logs
            or self.metadata.frame_entries
            or self._create_entries
            or self._delete_entries
        )

    @property
    def has_deletes(self) -> bool:
        """Whether the open frame deletes a stream."""
        return bool(self._delete_entries)

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
            raise StoreError(f"stream {name} exists")
        ident, self.next_ident = self.next_ident, self.next_ident + 1
        log: StreamLog
        if memory:
            log = MemoryLog(self.open_frame, ident, name, self.options, first_seq)
        else:
            log = FileLog(self.log_context, ident, name, first_seq)
            self._create_entries.append(
                encode_entry(CREATE_STREAM, ident, encode_u64(first_seq) + name.encode())
            )
        log.mark_dirty()
        self.logs[name] = log
        return log

    def delete(self, log: StreamLog) -> None:
        """Delete a stream and all its messages with the open frame."""
        self._raise_if_failed()
        del self.logs[log.name]
        if log.dirty:
            self.open_frame.dirty_logs.remove(log)
            log.reset_changes()
        if isinstance(log, FileLog):
            log.is_deleted = True
            log.deleted_in_frame = self.frame_number
            log.open_frame = self._closed_frame
            self.log_context.large_writes = [
                large for large in self.log_context.large_writes if large[0] is not log
            ]
            self.log_context.large_pending_bytes = sum(
                block.used for _, _, block in self.log_context.large_writes
            )
            self._delete_entries.append(encode_entry(DELETE_STREAM, log.ident, b""))
            self.file_gc.add_folder(log.folder_path, self.frame_number)

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
        if self.full:
            self._update_space()  # space may have become free, and a refused append triggers no commit
        if self.full:
            raise StoreFull("the disk is full; free some space or remove messages")
        needed = 2 * (self.open_frame.pending_bytes + size)
        if self.disk.free() < needed + self.options.headroom_bytes:
            sometimes("a frame is too large for the disk")
            raise StoreFull("the disk has no space for a frame of this size")
        sometimes("a frame outgrows what is reserved")
        self.open_frame.max_bytes = needed

    def check_large_space(self, size: int) -> None:
        """Check that a large message fits beyond the headroom: no space is reserved for large messages."""
        if self.disk.free() < self.options.headroom_bytes + self.log_context.large_pending_bytes + size:
            raise StoreFull("the disk is full; free some space or remove messages")

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
            self._update_space()
        if self.full:
            self._maybe_checkpoint()
            self.checkpointer.advance()
            self._drop_emptied_segments(self.iter_file_logs())
            if self.checkpointer.pending_mark or self.file_gc.has_statements:
                self.write_mark()
                return
        if is_quiescent and self._last_frame_kind == COMMIT:
            self._commit(IDLE)

    def _commit(self, kind: int) -> int:
        self._raise_if_failed()
        if self.in_flight:
            raise StoreError("a frame is being written; seal when it is committed")
        logs, ops = self._build_frame(kind)
        frame_number = self.open_frame.number
        self.open_frame.number += 1
        self.in_flight = True
        self._in_flight_bytes = self.open_frame.pending_bytes + self.log_context.large_pending_bytes
        self.open_frame.pending_bytes = 0
        large_writes, self.log_context.large_writes, self.log_context.large_pending_bytes = (
            self.log_context.large_writes,
            [],
            0,
        )
        mark, self.checkpointer.pending_mark = self.checkpointer.pending_mark, 0
        self.frame_submission.submit(ops, partial(self._on_committed, frame_number, logs, large_writes, mark))
        self._update_space()
        self.checkpointer.advance()
        return frame_number

    def _build_frame(self, kind: int) -> tuple[list[LogWriter], list[Op]]:
        if self.full:
            self._drop_emptied_segments(self.open_frame.dirty_logs)
        logs, self.open_frame.dirty_logs = self.open_frame.dirty_logs, []
        records, watermarks = build_frame_body(logs)
        stated = self.file_gc.state() if self.full else []
        body: list[Any] = [
            *self._create_entries,
            *records,
            *stated,
            *self.metadata.frame_entries,
            *self._delete_entries,
        ]
        self._create_entries, self._delete_entries, self.metadata.frame_entries = [], [], []
        if self.checkpointer.pending_mark:
            body.append(encode_entry(CHECKPOINT, 0, encode_u64(self.checkpointer.pending_mark)))
        body = [piece for piece in body if len(piece)]
        if not body and kind == COMMIT:
            sometimes("a frame of memory only")
            return logs, []  # only memory logs changed
        if self._prev_watermarks:
            body.insert(0, encode_entry(WATERMARKS, 0, self._prev_watermarks))
        self._prev_watermarks = watermarks
        self._last_frame_kind = kind
        return logs, large_message_ops(
            self.log_context.large_writes, self.disk
        ) + self.journal.make_frame_ops(kind, body, watermarks)

    def _drop_emptied_segments(self, logs: Iterable[LogWriter]) -> None:
        """Drop the growing segments of logs that were emptied: on a full disk their files are to be removed too."""
        for log in logs:
            if isinstance(log, FileLog) and not log.messages and len(log.active_segment.blocks):
                log.split_segment()
                log.saved_frame = -1  # its section names a file that is about to be removed

    def _on_committed(
        self,
        frame_number: int,
        logs: list[LogWriter],
        large_writes: list[tuple[FileLog, FileSegment, RecordBlock]],
        mark: int,
        error: OSError | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        if self.poisoned is not None:
            return
        self.in_flight = False
        self._in_flight_bytes = 0
        self.committed_frame = frame_number
        mark_committed(logs)
        for log, segment, block in large_writes:
            log.folder_state = segment.state = FileState.READY
            log.folder_synced = segment.folder_synced = True
            segment.on_block_written(block)
            self.journal.bytes_since_checkpoint += block.used
            if not log.is_deleted:
                self.flusher.unsynced_segments[segment.path] = (log, segment)
        if mark:
            self.file_gc.collect(mark)
            self.checkpointer.mark_durable(mark)
            self.space.forgive()
        self.file_gc.release()
        if self.full:
            self._update_space()
        self.flusher.submit_next()
        self._maybe_checkpoint()
        self.checkpointer.advance()
        self.compactor.start_next()
        self.on_commit(frame_number)
        if self.checkpointer.pending_mark and not self.in_flight and not self.dirty:
            self.write_mark()

    def fail(self, error: OSError) -> None:
        """Handle a failed write or sync: nothing more is acknowledged, and nothing is retried."""
        if self.poisoned is None:
            sometimes("the store is poisoned")
            self.poisoned = StorePoisoned(f"a write failed: {error}; restart to read again what is on disk")
            self.open_frame.closed = True

    def fail_on_error(self, error: OSError | None) -> None:
        """Completion callback for submissions of which only failure matters."""
        if error is not None:
            self.fail(error)

    # Background work

    def checkpoint(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Start a checkpoint; `done` is called when one started from now on is marked, or aborted for lack of space."""
        self._raise_if_failed()
        self._update_space()
        self.space.forgive()
        self.space.begin()
        self.flusher.resume()
        self.checkpointer.start(done)
        self.checkpointer.advance()

    def flush(self, log: StreamLog, done: Callable[[], None]) -> None:
        """Finish the tail block of a log and call `done` when all its records so far are in segment files."""
        log.finish_block()
        self.flusher.call_when_flushed(done)
        self.flusher.submit_next()

    def _maybe_checkpoint(self) -> None:
        if self.checkpointer.running or self.checkpointer.pending_mark or not self._wants_checkpoint():
            return
        self.flusher.resume()  # even below the headroom: without a checkpoint no removed file is unlinked
        if not self.flusher.out_of_space:
            self.space.begin()
            self.checkpointer.start()

    def _wants_checkpoint(self) -> bool:
        """Return whether enough was journaled or space can be gained, and the last attempt did not lack space."""
        written = self.journal.bytes_since_checkpoint
        if not self.space.allows_checkpoint:
            return False
        if written >= self.options.checkpoint_bytes or self.file_gc.should_checkpoint():
            return True
        return (self.full and self.journal.is_scarce) or self.space.wants_checkpoint(written)

    def write_mark(self) -> None:
        """Commit the mark of a checkpoint at once if the open frame is empty; otherwise it goes into the next frame.

        A frame that is not empty is committed by its owner, who may have to add to it.
        """
        if not self.in_flight and not self.dirty and self.poisoned is None:
            sometimes("a frame for the mark alone")
            self._commit(COMMIT)

    def _on_flush_progress(self) -> None:
        """Handle progress of the flusher: something was written, or found no space."""
        if self.full and not self.flusher.out_of_space and self.poisoned is None:
            self._update_space()
            self._maybe_checkpoint()
        self.checkpointer.advance()
        self.compactor.start_next()

    def on_files_removed(self, error: OSError | None) -> None:
        """Handle unlinked files: there may be space again."""
        self.fail_on_error(error)
        self._update_space()

    def missed_space(self, journaled: int) -> None:
        """Record that a checkpoint was aborted for lack of space: it is due again when there is more."""
        self.journal.bytes_since_checkpoint += journaled
        self.space.miss()

    def on_out_of_space(self, error: OSError) -> None:
        """Handle a full disk found by a frame or by background work."""
        self._set_full(True)
        self.checkpointer.on_no_space(error)

    def _update_space(self) -> None:
        """Update how much the next frame can certainly hold, and whether the disk has space for what follows it."""
        if self.poisoned is not None:
            return
        is_low = self.space.measure(self._in_flight_bytes)
        self.frame_submission.retry()  # frames may use the headroom
        if not is_low and (self.flusher.out_of_space or self.full):
            sometimes("there is room again")
            self.flusher.resume()
        self._set_full(is_low or self.flusher.out_of_space or self.waiting_for_space or self.journal.is_short)
        if not is_low or self.journal.needs_spare(
            self.space.slack
        ):  # removals need a journal file to continue in
            self.journal.replenish_spares()
        available = self.journal.get_guaranteed_bytes()
        # A quarter is reserved for what appends do not count: entries and watermarks.
        self.open_frame.max_bytes = available - available // 4

    def _set_full(self, full: bool) -> None:
        before, self.full = self.full, full
        self.journal.is_cramped = full
        self.open_frame.closed = full or self.poisoned is not None
        if full and not before:
            self.on_full()

    def on_recovered(self) -> None:
        """Finish recovery: measure space and find candidates for compaction."""
        self._update_space()
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
        if self._closed:
            return
        self._closed = self.compactor.stopped = True
        self._drain()
        if self.poisoned is None and self.dirty and not self.in_flight:
            self._commit(COMMIT)
            self._drain()
        if self.poisoned is None:
            self._write_shutdown()
        if self.poisoned is not None:
            raise self.poisoned
        self.poisoned = StoreError("the store is closed; open it again")
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
