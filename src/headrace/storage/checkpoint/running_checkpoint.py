"""The state of one checkpoint in progress: what it still captures, what it has captured, and what it waits for.

Owns the sections until they are written. Begins empty and is dropped as a whole, complete or aborted. Must not know what
is in a section.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from headrace.storage.checkpoint_schema import SectionRef, ShardEntry, StreamEntry
from headrace.storage.format import compute_section_crc
from headrace.storage.log.file_log import FileLog
from headrace.storage.metadata_store import ShardCapture

#: A section to capture: a log, or None and the number of a shard.
SectionSource = tuple[FileLog | None, int]


class RunningCheckpoint:
    """Checkpoint `number`, which makes frames up to `start_frame` unnecessary."""

    def __init__(self, number: int, start_frame: int, journaled: int) -> None:
        self.number = number
        self.start_frame = start_frame
        self.journaled = (
            journaled  # bytes journaled between the start of the previous checkpoint and of this one
        )
        self.to_capture: deque[SectionSource] = deque()
        self.sections: list[bytes] = []
        self.size = 0  # of all sections, padding included
        self.stream_entries: dict[int, StreamEntry] = {}
        self.shard_entries: dict[int, ShardEntry] = {}
        self.captured_frame = 0  # the newest frame that a section contains
        self.flush_target = (
            0  # `SegmentFlusher.finished_count` when all blocks that sections name are written
        )
        self.delete_frame = 0  # the frame that deletes a stream which this checkpoint no longer names
        self.is_syncing = False  # everything is captured, and files are being written
        self.is_step_submitted = False  # whether the next step comes with the next turn
        #: Logs whose subjects get new ids before their sections are captured, with the slices of that.
        self.renumberings: dict[FileLog, Generator[None, None, None]] = {}
        #: The shard that is being encoded: its state, its number (-1: none), and the frame that the state contains.
        self.shard_capture: ShardCapture | None = None
        self.shard_number = -1
        self.shard_frame = 0
        self._captured_logs: list[FileLog] = []

    def close(self) -> None:
        """Stop what is unfinished: the checkpoint is abandoned."""
        for steps in self.renumberings.values():
            steps.close()
        self.renumberings.clear()

    def add_section(self, store_id: int, data: bytes) -> SectionRef:
        """Add a section; return where it will be."""
        assert data
        assert self.size % 8 == 0
        ref = SectionRef(self.number, self.size, len(data), compute_section_crc(store_id, data))
        padding = -len(data) % 8
        self.sections += [data, bytes(padding)] if padding else [data]
        self.size += len(data) + padding
        return ref

    def add_stream(self, log: FileLog, frame: int, ref: SectionRef) -> None:
        """Add the entry of a stream whose section was captured."""
        self.stream_entries[log.ident] = StreamEntry(log.ident, log.name, frame, ref)
        self._captured_logs.append(log)

    def get_delete_frame(self) -> int:
        """Return the frame that must be durable before the root is written, because it deletes a stream.

        A root that does not name the stream would delete it too early. A root that names it would rely on blocks that
        are no longer written.
        """
        captured = max((log.deleted_in_frame for log in self._captured_logs if log.is_deleted), default=0)
        return max(self.delete_frame, captured)
