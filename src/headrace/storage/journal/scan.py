"""Scans journal files that a crash or a faulty disk may have damaged.

Owns the search for frames. Invariant: it only reads, a frame counts only if it carries the identity of the file it is
in, and no valid frame is missed because something before it is damaged. Must not know what is in a frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from headrace.storage.format import (
    ALIGN,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    align_up,
    journal_path,
    parse_frame,
    parse_frame_header,
)
from headrace.storage.io.disk import Disk

FILE_NAME = re.compile(r"([0-9a-f]{16})\.jnl")


@dataclass(slots=True)
class ScannedFile:
    """One journal file: its own valid frames after the checkpoint, by offset, and what follows the last one."""

    file_number: int
    data: memoryview
    frames: list[FrameHeader] = field(default_factory=list)
    newest_frame: int = 0  # highest number of an own frame, including those the checkpoint contains
    torn_tail: tuple[int, int] | None = None  # offset and length of an unfinished frame
    #: Numbers, after the checkpoint, of own headers without a complete frame.
    incomplete_frames: list[int] = field(default_factory=list)
    #: Valid, after the checkpoint, but written to another file.
    misplaced_frames: list[FrameHeader] = field(default_factory=list)


def scan_journal(disk: Disk, store_id: int, after: int) -> list[ScannedFile]:
    """Scan all files for frames numbered above `after`."""
    found = []
    for name in disk.list("journal"):
        match = FILE_NAME.fullmatch(name)
        if match:
            file_number = int(match[1], 16)
            found.append(
                _scan_file(ScannedFile(file_number, disk.map(journal_path(file_number))), store_id, after)
            )
    return found


def _scan_file(scanned: ScannedFile, store_id: int, after: int) -> ScannedFile:
    data, offset = scanned.data, 0
    candidates = _find_candidates(data)
    while offset < len(data):
        frame = parse_frame(data, offset)
        if frame is not None and _record_own_frame(scanned, frame, store_id, after):
            offset += align_up(FRAME_HEADER_BYTES + frame.length)
            continue
        if frame is None:
            _record_bad_frame(scanned, offset, store_id, after)
        later = candidates[np.searchsorted(candidates, offset + 1) :]
        if not len(later):
            break
        offset = int(later[0])
    return scanned


def _record_own_frame(scanned: ScannedFile, frame: FrameHeader, store_id: int, after: int) -> bool:
    if frame.store_id != store_id:
        return False
    if frame.file_number != scanned.file_number:
        if frame.number > after:
            scanned.misplaced_frames.append(frame)
        return False
    scanned.newest_frame = max(scanned.newest_frame, frame.number)
    scanned.torn_tail = None  # a valid frame follows, so the damage before it is not a torn tail
    if frame.number > after:
        scanned.frames.append(frame)
    return True


def _find_candidates(data: memoryview) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the offsets at which a frame may begin."""
    words = np.frombuffer(data, "<u4", len(data) // 4)[:: ALIGN // 4]
    return np.flatnonzero(words == FRAME_MAGIC) * ALIGN


def has_frames(data: memoryview) -> bool:
    """Return whether a file has any complete frame, of any identity."""
    return any(parse_frame(data, offset) is not None for offset in _find_candidates(data).tolist())


def _record_bad_frame(scanned: ScannedFile, offset: int, store_id: int, after: int) -> None:
    """Record an incomplete frame whose header says that it belongs to this file."""
    header = parse_frame_header(scanned.data, offset)
    if (
        header is None
        or header.store_id != store_id
        or header.file_number != scanned.file_number
        or header.number <= after
    ):
        return
    scanned.incomplete_frames.append(header.number)
    if scanned.torn_tail is None:
        scanned.torn_tail = offset, min(FRAME_HEADER_BYTES + header.length, len(scanned.data) - offset)
