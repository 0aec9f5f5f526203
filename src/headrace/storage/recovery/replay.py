"""Applies the frames after a checkpoint to logs and metadata.

Owns the meaning of entries, and what a missing frame means for each stream. Invariant: a frame is applied to a log only
if the log's section does not contain it already, and applying it twice changes nothing. Must not know where frames come
from. See ADR 12.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.storage import format as fmt
from headrace.storage.damage_report import Damage
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import SEQ_END
from headrace.storage.metadata_store import SHARDS
from headrace.storage.recovery.load_stream import find_next_generation, find_next_segment_number
from headrace.storage.segments.segment import FileState
from headrace.storage.store import Store

SEQ_SKIP = 1 << 20  # sequences to skip if lost frames may have used an unknown number


class Replay:
    """Applies frames; they must come in order of their number."""

    def __init__(
        self,
        store: Store,
        logs: dict[int, FileLog],
        stream_frames: dict[int, int],
        shard_frames: dict[int, int],
        is_removed: Callable[[int, int, int], bool],
        used_numbers: dict[int, int],
    ) -> None:
        self.store = store
        self.logs = logs
        self.unknown_streams: dict[int, None] = {}
        self.offline_streams: set[int] = set()
        self.touched: set[int] = set()
        self._is_removed = is_removed
        self._used_numbers = used_numbers
        self._stream_frames = stream_frames
        self._shard_frames = shard_frames
        self._frame_number = 0
        self._maybe_gapped: dict[int, FileLog] = {}
        self._handlers: dict[int, Callable[[int, memoryview], None]] = {
            fmt.CREATE_STREAM: self._apply_create,
            fmt.RECORDS: self._apply_records,
            fmt.LARGE: self._apply_large,
            fmt.REMOVALS: self._apply_removals,
            fmt.TRIM: self._apply_trim,
            fmt.ADVANCE: self._apply_advance,
            fmt.PUT: self._apply_put,
            fmt.MERGE: self._apply_merge,
            fmt.DELETE_KEY: self._apply_delete_key,
            fmt.DELETE_STREAM: self._apply_delete,
        }

    def apply(self, number: int, body: memoryview, missing: int) -> None:
        """Apply one frame; `missing` is the number of lost frames before it."""
        self._frame_number = number
        entries = fmt.decode_entries(body)
        if missing:
            self._flag_gap(missing, entries, is_exact=missing == 1)
        for kind, ident, data in entries:
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(ident, data)

    @property
    def newest_section_frame(self) -> int:
        """The newest frame that a section of the checkpoint contains."""
        return max([*self._stream_frames.values(), *self._shard_frames.values()], default=0)

    def truncate_at(self, last_known: int, missing: int, watermarks: bytes | None) -> None:
        """Handle the loss of the last `missing` frames up to `last_known`.

        `watermarks` are those of the last one, if known.
        """
        self._frame_number = last_known + 1
        reported = [] if watermarks is None else [(fmt.WATERMARKS, 0, memoryview(watermarks))]
        self._flag_gap(missing, reported, is_exact=missing == 1 and watermarks is not None)

    def finish(self) -> None:
        """After the last frame: skip sequences that lost frames may have used."""
        for log in self._maybe_gapped.values():
            log.advance(log.last_seq + SEQ_SKIP)
        for ident in self.unknown_streams:
            self._report_loss("the creation of a stream is lost", str(ident))

    def _report_loss(
        self, description: str, stream: str = "", first: int = 0, last: int = 0, ident: int = 0
    ) -> None:
        self.store.report().add_damage(Damage(description, stream, first, last, ident=ident))

    # Lost frames

    def _flag_gap(self, missing: int, entries: list[tuple[int, int, memoryview]], is_exact: bool) -> None:
        """Record lost frames; `is_exact`: the watermarks in these entries are all that the one lost frame changed."""
        description = f"{missing} frame(s) before {self._frame_number} lost"
        self._report_loss(description)
        reported: set[int] = set()
        for kind, _, data in entries:
            if kind == fmt.WATERMARKS:
                for ident, last in fmt.decode_watermarks(data):
                    reported.add(ident)
                    self._log_to_change(ident)  # an unknown stream was created in the lost frame
                    self._record_gap(ident, last, description)
        if not is_exact:
            lost = self._frame_number - 1
            self._maybe_gapped.update(
                (ident, log)
                for ident, log in self.logs.items()
                if ident not in reported and self._stream_frames.get(ident, 0) < lost
            )

    def _record_gap(self, ident: int, last: int, description: str) -> None:
        log = self.logs.get(ident)
        if log is not None and last > log.last_seq:
            self._report_loss(description, log.name, log.last_seq + 1, last, ident)
            log.lost_ranges.append((log.last_seq + 1, last))
            log.advance(last)

    # Entries

    def _log_to_change(self, ident: int) -> FileLog | None:
        log = self.logs.get(ident)
        if log is None:
            if ident not in self.offline_streams:
                self.unknown_streams[ident] = None
                self.store.next_ident = max(self.store.next_ident, ident + 1)
            return None
        if self._frame_number <= self._stream_frames.get(ident, 0):
            sometimes("a section already contains a replayed frame")
            return None
        self.touched.add(ident)
        return log

    def _apply_create(self, ident: int, data: memoryview) -> None:
        store = self.store
        store.next_ident = max(store.next_ident, ident + 1)
        if ident in self.logs or ident in self.offline_streams:
            return
        name = bytes(data[8:]).decode()
        first = fmt.decode_u64(data)
        next_segment = max(find_next_segment_number(store.disk, ident), self._used_numbers.get(ident, -1) + 1)
        log = FileLog(store.log_context, ident, name, first, next_segment)
        log.next_generation = find_next_generation(store.disk, ident)
        log.start_generation()
        log.folder_state = FileState.READY if store.disk.exists(log.folder_path) else FileState.NEW
        self.logs[ident] = log

    def _apply_records(self, ident: int, data: memoryview) -> None:
        log = self._log_to_change(ident)
        if log is None:
            return
        if ident in self._maybe_gapped:
            del self._maybe_gapped[ident]
            first = int.from_bytes(data[16:24], "little")
            self._record_gap(ident, first - 1, f"frame(s) before {self._frame_number} lost")
        self._load(log, data)

    def _load(self, log: FileLog, data: memoryview) -> None:
        if log.load(data) < 0:
            raise CorruptData(f"frame {self._frame_number}: invalid records for stream {log.name}")

    def _apply_large(self, ident: int, data: memoryview) -> None:
        log = self._log_to_change(ident)
        if log is None:
            return
        number, offset, length, seq = fmt.decode_large_entry(data)
        if seq <= log.last_seq:
            return
        segment = log.make_segment(number, log.columns)
        disk = self.store.disk
        block = disk.read(segment.path, offset, length) if disk.exists(segment.path) else b""
        if not fmt.is_large_block(block, segment.seed, offset, seq):
            if self._is_removed(ident, seq, seq):
                sometimes("a missing large message was removed later")
                log.advance(seq)
                return
            self._record_gap(ident, seq, f"the large message at {offset} of {segment.path} is damaged")
        else:
            sometimes("a large message is replayed")
            self._load(log, memoryview(block)[fmt.BLOCK_HEADER_BYTES :])

    def _apply_removals(self, ident: int, data: memoryview) -> None:
        log = self._log_to_change(ident)
        if log is not None:
            runs = np.frombuffer(data, "<u8").reshape(-1, 2)
            if (runs[:, 0] > runs[:, 1]).any() or (runs > np.uint64(SEQ_END)).any():
                raise CorruptData(f"frame {self._frame_number}: invalid removals from stream {log.name}")
            log.replay_removals(runs)

    def _apply_trim(self, ident: int, data: memoryview) -> None:
        log = self._log_to_change(ident)
        if log is not None:
            seq = fmt.decode_u64(data)
            if seq > SEQ_END:
                raise CorruptData(
                    f"frame {self._frame_number}: stream {log.name} is trimmed to {seq}, which is no valid sequence"
                )
            log.remove_below(seq)

    def _apply_advance(self, ident: int, data: memoryview) -> None:
        log = self._log_to_change(ident)
        if log is not None:
            log.advance(fmt.decode_u64(data))

    def _apply_delete(self, ident: int, data: memoryview) -> None:
        self.unknown_streams.pop(ident, None)
        log = self.logs.pop(ident, None)
        self._maybe_gapped.pop(ident, None)
        if log is not None:
            log.is_deleted = True
            sometimes("a deletion is replayed")
            self.store.file_gc.add_folder(log.folder_path, self.store.frame_number)
            # Blocks of a deleted stream are no longer synced, so an older section may name blocks that are missing.
            report = self.store.report()
            report.damage = [
                each for each in report.damage if not each.file.startswith(f"{log.folder_path}/")
            ]

    def _is_newer_than_shard(self, key: bytes) -> bool:
        return self._frame_number > self._shard_frames.get(crc32(key) % SHARDS, 0)

    def _apply_put(self, ident: int, data: memoryview) -> None:
        key, value = fmt.decode_keyed(data)
        if self._is_newer_than_shard(key):
            self.store.metadata.apply_put(key, value)

    def _apply_merge(self, ident: int, data: memoryview) -> None:
        key, delta = fmt.decode_keyed(data)
        if self._is_newer_than_shard(key):
            self.store.metadata.apply_merge(key, delta)

    def _apply_delete_key(self, ident: int, data: memoryview) -> None:
        key = bytes(data)
        if self._is_newer_than_shard(key):
            self.store.metadata.apply_delete(key)
