"""Finds the newest checkpoint that can be used, and reads its sections from whichever copy is good.

Owns the choice between copies and between checkpoints. Invariant: it only reads, and gives only bytes whose
checksum holds. Must not know what is done with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from headrace.probes import probe
from headrace.store import features, synced
from headrace.store.disk import Disk
from headrace.store.format import (
    CHECKPOINT,
    FRAME_BYTES,
    TRAILER_BYTES,
    checkpoint_path,
    entries,
    open_trailer,
    read_number,
    section_crc,
)
from headrace.store.journalscan import holds_frames, scan_journal
from headrace.store.report import Report
from headrace.store.states import Ref, Root

NAME = re.compile(r"([0-9a-f]{16})\.([ab])")
COPIES = ("a", "b")


@dataclass(slots=True)
class Found:
    """The checkpoint to start from; `bad` has the refs of sections without a good copy."""

    store: int
    root: Root
    features: frozenset[str]
    sections: dict[Ref, bytes]
    bad: list[Ref]


def numbers(disk: Disk) -> list[int]:
    """Checkpoints of which there is a file, newest first."""
    found = [NAME.fullmatch(name) for name in disk.list("checkpoints")]
    return sorted({int(match[1], 16) for match in found if match}, reverse=True)


def find_root(disk: Disk, report: Report) -> Found | None:
    """The checkpoint with the fewest bad sections, the newest of those; None if no root is good.

    None older than the newest proven one: its journal was let go, and so were files that only it names.
    """
    usable: list[Found] = []
    for number in numbers(disk):
        loaded = _load(disk, number, report)
        if loaded is None:
            probe("an older checkpoint is used")
            report.repaired.append(f"checkpoint {number} is not whole: an older one is used")
            continue
        usable.append(loaded)
        if not loaded.bad or _is_proven(disk, loaded):
            break
    return min(usable, key=lambda found: len(found.bad), default=None)


def _is_proven(disk: Disk, found: Found) -> bool:
    """Whether the journal has the mark of this checkpoint, or of a newer one."""
    for scanned in scan_journal(disk, found.store, found.root.frame):
        for frame in scanned.frames:
            start = frame.offset + FRAME_BYTES
            for kind, _, data in entries(scanned.data[start : start + frame.length]):
                if kind == CHECKPOINT and read_number(data) >= found.root.number:
                    return True
    return False


def _load(disk: Disk, number: int, report: Report) -> Found | None:
    for copy in COPIES:
        path = checkpoint_path(number, copy)
        loaded = _read_root(disk, path, number)
        if loaded is None:
            probe("a copy of a checkpoint is bad")
            report.repaired.append(f"{path} is bad or missing")
            continue
        store, root, names = loaded
        found = Found(store, root, names, {}, [])
        for ref in [entry.ref for entry in root.streams] + [entry.ref for entry in root.shards]:
            data = _read_section(disk, store, ref, report)
            if data is None:
                found.bad.append(ref)
            else:
                found.sections[ref] = data
        return found
    return None


def _read_root(disk: Disk, path: str, number: int) -> tuple[int, Root, frozenset[str]] | None:
    """The root in a file, its store and its features; UnknownFeature where this version lacks one of them.

    No older checkpoint is a way out then: it would be damage to a version that knows the feature.
    """
    if not disk.exists(path):
        return None
    size = disk.size(path)
    if size < TRAILER_BYTES:
        return None
    trailer = open_trailer(disk.read(path, size - TRAILER_BYTES, TRAILER_BYTES))
    if trailer is None or trailer[1] != number:
        return None
    store, _, offset, length, crc = trailer
    data = disk.read(path, offset, length)
    if len(data) != length or section_crc(store, data) != crc:
        return None
    names, body = features.disclose(data, "the store")
    return store, msgspec.msgpack.decode(body, type=Root), names


def _read_section(disk: Disk, store: int, ref: Ref, report: Report) -> bytes | None:
    for copy in COPIES:
        path = checkpoint_path(ref.checkpoint, copy)
        if disk.exists(path):
            data = disk.read(path, ref.offset, ref.length)
            if len(data) == ref.length and section_crc(store, data) == ref.crc:
                return data
        probe("a section is read from its other copy")
        report.repaired.append(f"{path}: the section at {ref.offset} is bad or missing")
    return None


def is_new(disk: Disk) -> bool:
    """Whether nothing was ever committed here: only then may a folder without a checkpoint become a store."""
    journal = any(holds_frames(disk.map(f"journal/{name}")) for name in disk.list("journal"))
    return not journal and not disk.list("streams") and synced.heard(disk) is None
