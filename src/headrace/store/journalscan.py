"""Reads the journal's files as a crash or a rotten disk may have left them.

Owns the search for frames. Invariant: it only reads, a frame counts only under its own file's identity,
and no valid frame is overlooked because something before it is damaged. Must not know what is in a
frame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from headrace.store.disk import Disk
from headrace.store.format import (
    ALIGN,
    FRAME_BYTES,
    FRAME_MAGIC,
    Frame,
    aligned,
    journal_path,
    open_frame,
    peek_frame,
)

NAME = re.compile(r"([0-9a-f]{16})\.jnl")


@dataclass(slots=True)
class Scanned:
    """One file: its own valid frames above the checkpoint, in order of place, and what follows the last."""

    file: int
    data: memoryview
    frames: list[Frame] = field(default_factory=list)
    newest: int = 0  # highest number of an own frame, also of those the checkpoint holds
    torn: tuple[int, int] | None = None  # (offset, length) of an unfinished frame
    #: Numbers, above the checkpoint, of own heads without a whole frame.
    begun: list[int] = field(default_factory=list)
    moved: list[Frame] = field(default_factory=list)  # valid, above the checkpoint, but of another file


def scan_journal(disk: Disk, store: int, after: int) -> list[Scanned]:
    """All files; frames numbered above `after`."""
    found = []
    for name in disk.list("journal"):
        match = NAME.fullmatch(name)
        if match:
            file = int(match[1], 16)
            found.append(_scan(Scanned(file, disk.map(journal_path(file))), store, after))
    return found


def _scan(scanned: Scanned, store: int, after: int) -> Scanned:
    data, at = scanned.data, 0
    candidates = _candidates(data)
    while at < len(data):
        frame = open_frame(data, at)
        if frame is not None and _own(scanned, frame, store, after):
            at += aligned(FRAME_BYTES + frame.length)
            continue
        if frame is None:
            _bad(scanned, at, store, after)
        later = candidates[np.searchsorted(candidates, at + 1) :]
        if not len(later):
            break
        at = int(later[0])
    return scanned


def _own(scanned: Scanned, frame: Frame, store: int, after: int) -> bool:
    if frame.store != store:
        return False
    if frame.file != scanned.file:
        if frame.number > after:
            scanned.moved.append(frame)
        return False
    scanned.newest = max(scanned.newest, frame.number)
    scanned.torn = None  # a valid frame later: whatever was bad before it is no tear
    if frame.number > after:
        scanned.frames.append(frame)
    return True


def _candidates(data: memoryview) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Offsets at which a frame may begin."""
    words = np.frombuffer(data, "<u4", len(data) // 4)[:: ALIGN // 4]
    return np.flatnonzero(words == FRAME_MAGIC) * ALIGN


def holds_frames(data: memoryview) -> bool:
    """Whether a file has any whole frame, of whatever identity."""
    return any(open_frame(data, at) is not None for at in _candidates(data).tolist())


def _bad(scanned: Scanned, at: int, store: int, after: int) -> None:
    """Notes what is left of a frame that says it is of this file, but is not whole."""
    head = peek_frame(scanned.data, at)
    if head is None or head.store != store or head.file != scanned.file or head.number <= after:
        return
    scanned.begun.append(head.number)
    if scanned.torn is None:
        scanned.torn = at, min(FRAME_BYTES + head.length, len(scanned.data) - at)
