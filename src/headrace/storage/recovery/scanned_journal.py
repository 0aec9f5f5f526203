"""The journal as recovery finds it: replays its frames in order, and finds out which ones are missing.

Owns the question which frame is the last one known to be synced. Invariant: a frame that may have been acknowledged and
is not there is reported, and the files of a damaged journal are retained. Must not know what is in a frame.
"""

from __future__ import annotations

from headrace.code_probes import sometimes
from headrace.errors import UnknownFeature
from headrace.storage.checkpoint_schema import CheckpointRoot
from headrace.storage.damage_report import Damage, RecoveryReport
from headrace.storage.format import ALIGN, FRAME_HEADER_BYTES, SHUTDOWN, journal_path, unknown_kind
from headrace.storage.format_features import refusal_message
from headrace.storage.io.disk import Disk
from headrace.storage.journal.scan import ScannedFile
from headrace.storage.journal.sync_marker import read_latest
from headrace.storage.recovery.replay import Replay
from headrace.storage.recovery.segment_references import sort_frames
from headrace.storage.store import Store

FLUSH_BYTES = 32 << 20


class ScannedJournal:
    """All files of the journal, with the frames after the checkpoint; `in_place`: nothing may be written."""

    def __init__(
        self, disk: Disk, store: Store, files: list[ScannedFile], report: RecoveryReport, in_place: bool
    ) -> None:
        self._disk = disk
        self._store = store
        self.files = files
        self._report = report
        self._in_place = in_place

    def check_kinds(self, writer: str) -> None:
        """Reject frames with entries of an unknown kind; `writer` is the version that wrote the checkpoint."""
        for scanned in self.files:
            for frame in scanned.frames:
                if unknown := unknown_kind(scanned.data, frame):
                    raise UnknownFeature(refusal_message("the journal", unknown, writer))

    def replay(self, replay: Replay, after: int) -> int:
        """Apply all frames after `after` in order of their number; return the last one known to be synced."""
        report, flusher = self._report, self._store.flusher
        previous, crc = after, None
        for frame, scanned in sort_frames(self.files):
            missing = frame.number - previous - 1
            if missing < 0:
                continue
            if missing or (crc is not None and frame.prev_crc != crc):
                self.retain()
            if crc is not None and not missing and frame.prev_crc != crc:
                report.add_damage(
                    Damage(f"frame {frame.number} does not match the checksum of the frame before it", "")
                )
            start = frame.offset + FRAME_HEADER_BYTES
            replay.apply(frame.number, scanned.data[start : start + frame.length], missing)
            previous, crc = frame.number, frame.crc
            report.frames_replayed += 1
            report.clean_shutdown = frame.kind == SHUTDOWN
            if flusher.pending_bytes > FLUSH_BYTES and not self._in_place:
                flusher.flush_now()
        report.last_frame = previous
        last_synced = self._find_last_synced(previous, replay)
        replay.finish()
        self._report_misplaced(previous)
        if last_synced == previous and not self._in_place:
            self._save_torn_tails(previous)
        return last_synced

    def is_last(self, root: CheckpointRoot, last: int) -> bool:
        """Return whether nothing indicates a durable frame after `last`, or one in a file other than its own."""
        in_sections = [entry.frame for entry in root.streams] + [each.frame for each in root.shards]
        if self._find_newest_known(last, max(in_sections, default=0)) > last:
            return False
        return not any(frame.number > last for scanned in self.files for frame in scanned.misplaced_frames)

    def retain(self) -> None:
        """Keep the files of a damaged journal until the loss is accepted."""
        retained = self._store.checkpointer.retained_files
        for scanned in self.files:
            path = journal_path(scanned.file_number)
            if path not in retained:
                retained.append(path)

    def _find_last_synced(self, last: int, replay: Replay) -> int:
        """Return the newest frame known to have been synced: `last`, or a later one that is therefore lost."""
        marker = read_latest(self._disk, self._store.store_id)
        last_synced = self._find_newest_known(last, replay.newest_section_frame)
        if last_synced > last:
            self.retain()
            watermarks = marker.watermarks if marker and marker.frame_number == last_synced else None
            replay.truncate_at(last_synced, last_synced - last, watermarks)
        return last_synced

    def _find_newest_known(self, last: int, in_sections: int) -> int:
        """Return the newest frame that was synced, by the frames found, the sections and the sync marker."""
        marker = read_latest(self._disk, self._store.store_id)
        max_frames = sum(len(scanned.data) for scanned in self.files) // ALIGN
        incomplete = [
            number
            for scanned in self.files
            for number in scanned.incomplete_frames
            if number - last <= max_frames
        ]
        # A frame is written only when the one before it is durable, and a section contains durable frames only.
        return max(
            last, in_sections, marker.frame_number if marker else 0, *(each - 1 for each in incomplete)
        )

    def _report_misplaced(self, last: int) -> None:
        """Report valid frames that are in a file other than the one they were written to."""
        for scanned in self.files:
            if any(frame.number > last for frame in scanned.misplaced_frames):
                self.retain()
                path = journal_path(scanned.file_number)
                self._report.add_damage(
                    Damage(f"{path} contains frames that were written to another file", "")
                )

    def _save_torn_tails(self, last: int) -> None:
        for scanned in self.files:
            if scanned.torn_tail is None or (scanned.newest_frame and scanned.newest_frame < last):
                continue
            offset, length = scanned.torn_tail
            path = f"journal/{scanned.file_number:016x}.{offset}.torn"
            sometimes("a torn frame is found")
            self._report.torn_tails.append(path)
            if not self._disk.exists(path):
                tail = bytes(scanned.data[offset : offset + length])
                self._disk.run(
                    [("create", path, 0), ("write", path, 0, tail), ("sync", path), ("syncdir", "journal")]
                )
