"""Finds the newest usable checkpoint and reads its sections from the copy that is intact.

Owns the choice between copies and between checkpoints. Invariant: it only reads, and returns only bytes whose checksum
is correct. Must not know what the bytes are used for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.storage import format_features
from headrace.storage.checkpoint_schema import CheckpointRoot, SectionRef
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import (
    CHECKPOINT,
    FRAME_HEADER_BYTES,
    TRAILER_BYTES,
    checkpoint_path,
    compute_section_crc,
    decode_entries,
    decode_u64,
    parse_trailer,
    unknown_kind,
)
from headrace.storage.io.disk import Disk, Op, OutOfSpace
from headrace.storage.journal import sync_marker
from headrace.storage.journal.scan import ScannedFile, has_frames, scan_journal

FILE_NAME = re.compile(r"([0-9a-f]{16})\.([ab])")
COPIES = ("a", "b")


@dataclass(slots=True)
class LoadedCheckpoint:
    """The checkpoint to start from; `bad_sections` are those without an intact copy.

    `is_proven`: it is durable: its mark, or that of a newer checkpoint, is in the journal.
    """

    store_id: int
    root: CheckpointRoot
    features: frozenset[str]
    sections: dict[SectionRef, bytes]
    bad_sections: list[SectionRef]
    is_proven: bool = False
    base: LoadedCheckpoint | None = None  # the newest durable checkpoint, possibly this one
    files: list[ScannedFile] = field(default_factory=list)  # the journal, with the frames after the root's

    @property
    def is_empty(self) -> bool:
        root = self.root
        return not (root.streams or root.shards or root.offline or root.damage or root.retained_files)


def list_checkpoints(disk: Disk) -> list[int]:
    """List the checkpoints that have at least one file, newest first."""
    found = [FILE_NAME.fullmatch(name) for name in disk.list("checkpoints")]
    return sorted({int(match[1], 16) for match in found if match}, reverse=True)


def load_newest(disk: Disk, report: RecoveryReport) -> LoadedCheckpoint | None:
    """Return the checkpoint with the fewest bad sections, the newest of those; None if no root is intact.

    Checkpoints older than the newest durable one are not considered: their journal, and files that only they name, may
    be gone. A newer one without a mark may contain a frame that only the page cache had when it was replayed, so it is
    preferred; but until it is durable, everything that the durable one, its `base`, needs must stay.
    """
    usable: list[LoadedCheckpoint] = []
    for number in list_checkpoints(disk):
        notes = RecoveryReport()
        loaded = load_root(disk, number, notes)
        if loaded is None:
            sometimes("an older checkpoint is used")
            notes.repaired.append(f"checkpoint {number} is incomplete or damaged: an older one is used")
        if all(found.bad_sections for found in usable):
            report.repaired += notes.repaired
        if loaded is None:
            continue
        loaded.files = scan_journal(disk, loaded.store_id, loaded.root.frame)
        loaded.is_proven = _has_mark(loaded)
        usable.append(loaded)
        if loaded.is_proven:
            break
    chosen = min(usable, key=lambda found: len(found.bad_sections), default=None)
    if chosen is not None and usable[-1].is_proven:
        chosen.base = usable[-1]
    return chosen


def _has_mark(found: LoadedCheckpoint) -> bool:
    """Return whether the journal has the mark of this checkpoint or of a newer one."""
    for scanned in found.files:
        for frame in scanned.frames:
            if unknown_kind(scanned.data, frame):
                continue  # `ScannedJournal.check_kinds` rejects it before anything is written
            start = frame.offset + FRAME_HEADER_BYTES
            for kind, _, data in decode_entries(scanned.data[start : start + frame.length]):
                if kind == CHECKPOINT and decode_u64(data) >= found.root.number:
                    return True
    return False


def load_root(disk: Disk, number: int, report: RecoveryReport) -> LoadedCheckpoint | None:
    """Load checkpoint `number` with all its sections, each from an intact copy."""
    for copy in COPIES:
        path = checkpoint_path(number, copy)
        loaded = _read_root(disk, path, number)
        if loaded is None:
            sometimes("a copy of a checkpoint is bad")
            report.repaired.append(f"{path} is damaged or missing: the other copy is used")
            continue
        store_id, root, names = loaded
        found = LoadedCheckpoint(store_id, root, names, {}, [])
        for ref in [entry.ref for entry in root.streams] + [entry.ref for entry in root.shards]:
            data = _read_section(disk, store_id, ref, report)
            if data is None:
                found.bad_sections.append(ref)
            else:
                found.sections[ref] = data
        return found
    return None


def _read_root(disk: Disk, path: str, number: int) -> tuple[int, CheckpointRoot, frozenset[str]] | None:
    """Return store id, root and features from a file; raise UnknownFeature if this version lacks one of them.

    Falling back to an older checkpoint is not an option then: a version that knows the feature would see it as damage.
    """
    if not disk.exists(path):
        return None
    size = disk.size(path)
    if size < TRAILER_BYTES:
        return None
    trailer = parse_trailer(disk.read(path, size - TRAILER_BYTES, TRAILER_BYTES))
    if trailer is None or trailer[1] != number:
        return None
    store_id, _, offset, length, crc = trailer
    data = disk.read(path, offset, length)
    if len(data) != length or compute_section_crc(store_id, data) != crc:
        return None
    names, body = format_features.decode_envelope(data, "the store")
    root = msgspec.msgpack.decode(body, type=CheckpointRoot)
    if root.number != number:
        raise CorruptData(f"{path} has the root of checkpoint {root.number} although its checksum is correct")
    return store_id, root, names


def _read_section(disk: Disk, store_id: int, ref: SectionRef, report: RecoveryReport) -> bytes | None:
    for copy in COPIES:
        path = checkpoint_path(ref.checkpoint, copy)
        data = _read_part(disk, store_id, path, ref)
        if data is not None:
            return data
        sometimes("a section is read from its other copy")
        report.repaired.append(
            f"{path}: the section at {ref.offset} is damaged or missing: the other copy is used"
        )
    return None


def _read_part(disk: Disk, store_id: int, path: str, ref: SectionRef) -> bytes | None:
    """Read a section from one copy of its checkpoint; None if its checksum is wrong."""
    if not disk.exists(path):
        return None
    data = disk.read(path, ref.offset, ref.length)
    return data if len(data) == ref.length and compute_section_crc(store_id, data) == ref.crc else None


def repair_copies(disk: Disk, found: LoadedCheckpoint) -> None:
    """Write the intact copy of a checkpoint over the bad one, for each checkpoint that `found` reads from.

    For a recovery in place, which writes no checkpoint: without this, damage to the second copy would be a loss.
    """
    refs = [entry.ref for entry in found.root.streams] + [entry.ref for entry in found.root.shards]
    for number in {found.root.number, *(ref.checkpoint for ref in refs)}:
        used = [ref for ref in refs if ref.checkpoint == number]
        paths = [checkpoint_path(number, copy) for copy in COPIES]
        good = [path for path in paths if is_good_copy(disk, found, path, number, used)]
        for bad in paths if len(good) == 1 else ():
            if bad != good[0]:
                sometimes("a bad copy of a checkpoint is written again")
                _copy(disk, good[0], bad)


def is_good_copy(disk: Disk, found: LoadedCheckpoint, path: str, number: int, refs: list[SectionRef]) -> bool:
    """Return whether this copy of a checkpoint has everything that `found` reads from it."""
    if not disk.exists(path) or (number == found.root.number and _read_root(disk, path, number) is None):
        return False
    return all(_read_part(disk, found.store_id, path, ref) is not None for ref in refs)


def _copy(disk: Disk, source: str, target: str) -> None:
    data = disk.read(source, 0, disk.size(source))
    if disk.exists(target) and disk.size(target) != len(data):
        disk.run([("unlink", target)])
    is_new = not disk.exists(target)
    ops: list[Op] = [("create", target, 0)] if is_new else []
    try:
        disk.run([*ops, ("write", target, 0, data), ("sync", target), ("syncdir", "checkpoints")])
    except OutOfSpace:
        if is_new and disk.exists(target):
            disk.run([("unlink", target)])


def is_new_store(disk: Disk) -> bool:
    """Return whether nothing was ever committed here: only then may a folder without a checkpoint become a store."""
    journal = any(has_frames(disk.map(f"journal/{name}")) for name in disk.list("journal"))
    return not journal and not disk.list("streams") and sync_marker.read_latest(disk) is None
