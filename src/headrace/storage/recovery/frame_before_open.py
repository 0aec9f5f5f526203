"""Finds the last frame of a closed store, without opening it: `RecoveryReport.frame_before_open` of the next recovery.

It only reads. Must not know what the number is compared with.
"""

from __future__ import annotations

from headrace.storage.checkpoint.load import load_newest
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.io.disk import Disk


def find_frame_before_open(disk: Disk) -> tuple[int, int] | None:
    """Return the identity of the store and the frame; None if there is no readable checkpoint."""
    loaded = load_newest(disk, RecoveryReport())
    if loaded is None:
        return None
    recorded = loaded.root.frame_before_open
    if recorded is not None:
        return loaded.store_id, recorded
    frames = (frame.number for scanned in loaded.files for frame in scanned.frames)
    return loaded.store_id, max(loaded.root.frame, *frames, 0)
