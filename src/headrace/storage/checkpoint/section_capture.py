"""Captures the sections of a checkpoint, a few at a time, and large ones in slices.

Owns which frame the saved section of a shard contains. Invariant: a section contains no part of the open frame; a shard
is captured at one moment, although its encoding may take many slices. Must not know files.
"""

from __future__ import annotations

from headrace.code_probes import sometimes
from headrace.storage.checkpoint.checkpoint_context import CheckpointContext
from headrace.storage.checkpoint.running_checkpoint import RunningCheckpoint, SectionSource
from headrace.storage.checkpoint_schema import ShardEntry
from headrace.storage.log.file_log import FileLog
from headrace.storage.metadata_store import SHARDS

STEP_BYTES = 1 << 20  # captured in one step: bounds how long a commit can be delayed
STEP_SECTIONS = 64
_FINISHED = object()


class SectionCapturer:
    """Captures sections of logs and shards that the open frame has not changed."""

    def __init__(self, store: CheckpointContext) -> None:
        self._store = store
        self.shard_frames = [-1] * SHARDS

    def capture_some(self, running: RunningCheckpoint) -> bool:
        """Capture sections, or a slice of one; return whether more can be captured although no frame ends."""
        budget = running.size + STEP_BYTES
        for _ in range(min(len(running.to_capture), STEP_SECTIONS)):
            if running.size > budget:
                break
            source = running.to_capture.popleft()
            if self._is_changing(running, source):
                sometimes("a section waits for its frame")
                running.to_capture.append(source)
            elif not self._capture(running, source):
                running.to_capture.appendleft(source)
                break
        return any(not self._is_changing(running, each) for each in running.to_capture)

    def capture_whole(self, running: RunningCheckpoint, source: SectionSource) -> None:
        """Capture a section, all slices of it."""
        while not self._capture(running, source):
            pass

    def _is_changing(self, running: RunningCheckpoint, source: SectionSource) -> bool:
        log, number = source
        if log is None and number == running.shard_number:
            return False  # its state is copied
        changed = (log if log is not None else self._store.metadata.shards[number]).changed_frame
        return changed == self._store.frame_number

    def _capture(self, running: RunningCheckpoint, source: SectionSource) -> bool:
        """Capture a section, or a slice of it; return whether it is complete."""
        log, number = source
        if log is None:
            return self._capture_shard(running, number)
        if log.is_deleted:
            running.delete_frame = max(running.delete_frame, log.deleted_in_frame)
            return True
        return self._capture_stream(running, log)

    def _capture_stream(self, running: RunningCheckpoint, log: FileLog) -> bool:
        if log.is_sparse:
            sometimes("a segment is sealed early")
            log.seal_early()
        if log not in running.renumberings and self._can_renumber(log):
            running.renumberings[log] = log.iter_drop_dead_subjects()
        if next(running.renumberings.get(log, iter(())), _FINISHED) is not _FINISHED:
            sometimes("subjects are renumbered in slices")
            return False
        ref = running.add_section(self._store.store_id, log.encode_state())
        running.add_stream(log, self._store.journal.last_frame, ref)
        log.saved_frame = self._store.frame_number - 1
        return True

    def _can_renumber(self, log: FileLog) -> bool:
        return log.has_many_dead_subjects and not self._store.compactor.is_compacting(log)

    def _capture_shard(self, running: RunningCheckpoint, number: int) -> bool:
        capture = running.shard_capture
        if capture is None:
            capture = running.shard_capture = self._store.metadata.capture_shard(number)
            running.shard_number = number
            running.shard_frame = self._store.journal.last_frame
            self.shard_frames[number] = self._store.frame_number - 1
        if not capture.encode_more():
            sometimes("a shard is encoded in slices")
            return False
        running.shard_capture, running.shard_number = None, -1
        ref = running.add_section(self._store.store_id, capture.encode())
        running.shard_entries[number] = ShardEntry(number, running.shard_frame, ref)
        return True
