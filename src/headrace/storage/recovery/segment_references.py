"""Finds what the frames after a checkpoint refer to and remove, before anything is replayed.

Owns two answers: which segment files the journal needs, and whether a missing segment was removed on purpose.
Invariant: it only reads. Must not know logs or metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.storage import format as fmt
from headrace.storage.checkpoint_schema import CheckpointRoot
from headrace.storage.damage_report import Damage
from headrace.storage.format import FrameHeader
from headrace.storage.io.disk import Disk
from headrace.storage.journal.scan import ScannedFile

_PAIR = struct.Struct("<QQ")
_STREAM_CHANGES = frozenset({fmt.RECORDS, fmt.LARGE, fmt.REMOVALS, fmt.TRIM, fmt.ADVANCE})

Placed = tuple[FrameHeader, ScannedFile]


def sort_frames(files: Iterable[ScannedFile]) -> list[Placed]:
    """Sort the frames of all files by number."""
    frames = [(frame, scanned) for scanned in files for frame in scanned.frames]
    frames.sort(key=lambda each: each[0].number)
    return frames


def find_used_numbers(frames: Iterable[Placed]) -> dict[int, int]:
    """Return for each stream the highest segment number of large messages in these frames.

    The file may be gone already: on a full disk it is unlinked when a purge is durable. A new segment must not get its
    number, or a second recovery from the same journal would take one for the other. Raises ValueError for numbers that
    no store writes.
    """
    numbers: dict[int, int] = {}
    for frame, scanned in frames:
        start = frame.offset + fmt.FRAME_HEADER_BYTES
        for kind, ident, data in fmt.decode_entries(scanned.data[start : start + frame.length]):
            if kind == fmt.CREATE_STREAM and not ident:
                raise ValueError(f"frame {frame.number} creates a stream without an ident")
            if kind == fmt.LARGE:
                number = fmt.decode_large_entry(data)[0]
                if number >= fmt.NUMBER_MAX:
                    raise ValueError(f"frame {frame.number} names segment {number}")
                numbers[ident] = max(numbers.get(ident, 0), number)
    return numbers


class JournalSurvey:
    """The entries of some frames. `is_whole`: they follow `after` and each other without a gap."""

    def __init__(self, disk: Disk, store: int, frames: list[Placed], after: int) -> None:
        self._disk = disk
        self._store = store
        self.is_whole = True
        self.bytes = 0
        #: Segments with large messages that frames refer to: path -> ident, first and last sequence.
        self.larges: dict[str, tuple[int, int, int]] = {}
        self._unread: list[tuple[int, int]] = []  # ident and sequence of large messages that are missing
        self.created: set[int] = set()
        self._changed: set[int] = set()
        self.deleted: set[int] = set()
        self._removed: dict[int, list[tuple[int, int]]] = {}
        previous, crc = after, None
        for frame, scanned in frames:
            if frame.number <= previous:
                continue
            if frame.number != previous + 1 or (crc is not None and frame.prev_crc != crc):
                self.is_whole = False
            previous, crc = frame.number, frame.crc
            start = frame.offset + fmt.FRAME_HEADER_BYTES
            self._read(scanned.data[start : start + frame.length])
        self.last = previous
        if not all(self.is_removed(ident, seq, seq) for ident, seq in self._unread):
            self.is_whole = False

    def _read(self, body: memoryview) -> None:
        self.bytes += len(body)
        for kind, ident, data in fmt.decode_entries(body):
            if kind in _STREAM_CHANGES:
                self._changed.add(ident)
            if kind == fmt.LARGE:
                self._read_large(ident, data)
            elif kind == fmt.CREATE_STREAM:
                self.created.add(ident)
            elif kind == fmt.DELETE_STREAM:
                self.deleted.add(ident)
            elif kind == fmt.TRIM:
                self._removed.setdefault(ident, []).append((0, fmt.decode_u64(data) - 1))
            elif kind == fmt.REMOVALS:
                self._removed.setdefault(ident, []).extend(_PAIR.iter_unpack(data))

    def _read_large(self, ident: int, data: memoryview) -> None:
        number, offset, length, seq = fmt.decode_large_entry(data)
        path = fmt.segment_path(ident, number)
        _, first, _ = self.larges.get(path, (ident, seq, seq))
        self.larges[path] = (ident, first, seq)
        self.bytes += length
        block = self._disk.read(path, offset, length) if self._disk.exists(path) else b""
        seed = fmt.compute_segment_seed(self._store, ident, number)
        if not fmt.is_large_block(block, seed, offset, seq):
            self._unread.append((ident, seq))

    def is_removed(self, ident: int, first: int, last: int) -> bool:
        """Return whether one of these frames removed all these sequences."""
        if ident in self.deleted:
            return True
        return any(low <= first and last <= high for low, high in self._removed.get(ident, ()))

    def has_unknown_streams(self, root: CheckpointRoot) -> bool:
        """Return whether these frames change a stream that neither the root nor one of them knows: something is lost."""
        known = {entry.ident for entry in (*root.streams, *root.offline)}
        return not self._changed <= known | self.created | self.deleted

    def explains(self, damage: Damage) -> bool:
        """Return whether nothing is lost, because all sequences concerned were removed.

        On a full disk the file of such a segment is unlinked at once, even before all of it was written or synced;
        after a power loss it may be back in any state.
        """
        if not damage.ident or not damage.first_seq or not damage.file.startswith("streams/"):
            return False
        return self.is_removed(damage.ident, damage.first_seq, damage.last_seq)
