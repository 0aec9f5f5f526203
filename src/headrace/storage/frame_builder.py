"""Builds frames: collects the changes of all logs and the metadata into one.

Owns the entries of created and deleted streams, and the watermarks of the previous frame. Invariant: everything that goes
into a frame is removed from the open one. Must not know when a frame is durable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.format import (
    CHECKPOINT,
    COMMIT,
    CREATE_STREAM,
    DELETE_STREAM,
    SHUTDOWN,
    WATERMARKS,
    decode_watermarks,
    encode_entry,
    encode_u64,
)
from headrace.storage.io.disk import Op
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log_context import LargeWrite, LogContext
from headrace.storage.maintenance.flush import large_message_ops
from headrace.storage.maintenance.gc import FileGarbageCollector
from headrace.storage.metadata_store import MetadataStore
from headrace.storage.native_records import LogWriter, build_frame_body


class SealedFrame(NamedTuple):
    """A frame that is being written, and what its commit makes durable."""

    number: int
    logs: list[LogWriter]
    large_writes: list[LargeWrite]
    mark: int  # the checkpoint that it marks, 0 if none
    size: int  # bytes appended to it, large messages included


class FrameBuilder:
    """Seals one frame after the other. `last_kind` is the kind of the last one in the journal."""

    def __init__(
        self,
        context: LogContext,
        metadata: MetadataStore,
        journal: Journal,
        file_gc: FileGarbageCollector,
        checkpointer: Checkpointer,
    ) -> None:
        self._context = context
        self._metadata = metadata
        self._journal = journal
        self._file_gc = file_gc
        self._checkpointer = checkpointer
        self._prev_watermarks = b""
        self._changed_logs: set[LogWriter] = set()  # by sealed frames, until they are drained
        self.last_kind = SHUTDOWN
        self.create_entries: list[bytes] = []
        self.delete_entries: list[bytes] = []

    def add_create(self, ident: int, name: str, first_seq: int) -> None:
        """Add the creation of a stream to the open frame."""
        data = encode_u64(first_seq) + name.encode()
        self.create_entries.append(encode_entry(CREATE_STREAM, ident, data))

    def add_delete(self, log: FileLog) -> None:
        """Add the deletion of a stream to the open frame."""
        self.delete_entries.append(encode_entry(DELETE_STREAM, log.ident, b""))
        self._changed_logs.discard(log)

    def find_highest_sequence(self) -> int:
        """Return the highest sequence of the streams that the newest frame has changed."""
        return max((last for _, last in decode_watermarks(self._prev_watermarks)), default=0)

    def drain_changed_logs(self) -> list[LogWriter]:
        """Return the logs that changed since the last call; those of the open frame are returned again next time."""
        changed = [*self._changed_logs, *self._context.open_frame.dirty_logs]
        self._changed_logs.clear()
        return changed

    def seal(self, kind: int, *, is_full: bool) -> tuple[SealedFrame, list[Op]]:
        """Close the open frame and begin the next one; return the frame and the operations that write it.

        On a full disk the frame also states which files are no longer needed.
        """
        context, open_frame = self._context, self._context.open_frame
        if is_full:
            for log in open_frame.dirty_logs:
                if isinstance(log, FileLog):
                    log.drop_emptied_segment()
        logs, open_frame.dirty_logs = open_frame.dirty_logs, []
        self._changed_logs.update(logs)
        mark, self._checkpointer.pending_mark = self._checkpointer.pending_mark, 0
        ops = self._make_ops(kind, logs, mark, is_full=is_full)
        size = open_frame.pending_bytes + context.large_pending_bytes
        frame = SealedFrame(open_frame.number, logs, context.large_writes, mark, size)
        open_frame.number += 1
        open_frame.pending_bytes = 0
        context.large_writes, context.large_pending_bytes, context.large_reserved_bytes = [], 0, 0
        return frame, ops

    def _make_ops(self, kind: int, logs: list[LogWriter], mark: int, *, is_full: bool) -> list[Op]:
        records, watermarks = build_frame_body(logs)
        stated = self._file_gc.state() if is_full else []
        body: list[Any] = [
            *self.create_entries,
            *records,
            *stated,
            *self._metadata.frame_entries,
            *self.delete_entries,
        ]
        self.create_entries, self.delete_entries, self._metadata.frame_entries = [], [], []
        if mark:
            body.append(encode_entry(CHECKPOINT, 0, encode_u64(mark)))
        body = list(filter(None, body))
        if not body and kind == COMMIT:
            return []  # nothing that has to be on disk
        if self._prev_watermarks:
            body.insert(0, encode_entry(WATERMARKS, 0, self._prev_watermarks))
        self._prev_watermarks = watermarks
        self.last_kind = kind
        large_writes = self._context.large_writes
        large_ops = large_message_ops(large_writes, self._context.disk) if large_writes else []
        return large_ops + self._journal.make_frame_ops(kind, body, watermarks)
