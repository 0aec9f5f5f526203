"""Finds the files, and how many bytes of each, that a recovery of a store up to one frame reads.

Owns the question what belongs in a backup: a checkpoint with those that it refers to, the segments that they name up to
their committed ends, and the frames after it. Caches are left out: recovery makes them again. Invariant: it only reads,
and raises an error if something is missing or damaged, so that no backup of it is made. Must not know targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import msgspec

from headrace.backup.pinned_stores import SourceStore
from headrace.errors import BackupError
from headrace.storage.checkpoint.load import (
    COPIES,
    LoadedCheckpoint,
    is_good_copy,
    load_newest,
    load_root,
)
from headrace.storage.checkpoint_schema import StreamCheckpoint
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import (
    FRAME_HEADER_BYTES,
    LARGE,
    align_up,
    checkpoint_path,
    decode_entries,
    decode_large_entry,
    journal_path,
    segment_path,
)
from headrace.storage.io.disk import Disk
from headrace.storage.journal.scan import ScannedFile, scan_journal
from headrace.storage.journal.sync_marker import read_latest
from headrace.storage.recovery.segment_references import JournalSurvey, sort_frames

_REMEDY = "stop the server and run `headrace fsck`"


@dataclass(frozen=True, slots=True)
class NeededFile:
    """A file, read from its beginning; `source` is the path to read it from.

    The first `stable` bytes never change: a durable checkpoint names them.
    """

    path: str
    length: int
    stable: int
    source: str


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """What a recovery of `store` up to `frame` reads."""

    store: SourceStore
    store_id: int
    checkpoint: int
    frame: int
    files: list[NeededFile]
    streams: int


def find_needed_files(store: SourceStore) -> NeededFiles:
    """Return the files of a store that belong in a backup."""
    disk = cast("Disk", store.files)
    found = _load_checkpoint(disk, store)
    root = found.root
    last = store.frame if store.checkpoint else _find_last(disk, found)
    frames = _cut_journal(found.files, last)
    survey = JournalSurvey(disk, found.store_id, sort_frames(frames), root.frame)
    if not survey.is_whole or survey.last != last:
        raise BackupError(f"the journal of account {store.account} is damaged: {_REMEDY}")
    segments = _find_segments(store, found, survey)
    _add_large_messages(store, frames, survey, segments)
    files = [NeededFile(path, length, stable, path) for path, (length, stable) in segments.items()]
    files += _list_checkpoints(store, found)
    for scanned in frames:
        path, newest = journal_path(scanned.file_number), scanned.frames[-1]
        files.append(NeededFile(path, align_up(newest.offset + FRAME_HEADER_BYTES + newest.length), 0, path))
    streams = ({entry.ident for entry in root.streams} | survey.created) - survey.deleted
    return NeededFiles(store, found.store_id, root.number, survey.last, files, len(streams))


def _load_checkpoint(disk: Disk, store: SourceStore) -> LoadedCheckpoint:
    report = RecoveryReport()
    if store.checkpoint:
        found = load_root(disk, store.checkpoint, report)
        if found is not None:
            found.files = scan_journal(disk, found.store_id, found.root.frame)
    else:
        found = load_newest(disk, report)
    if found is None or found.bad_sections or found.root.offline:
        raise BackupError(f"the checkpoint of account {store.account} is damaged: {_REMEDY}")
    return found


def _find_last(disk: Disk, found: LoadedCheckpoint) -> int:
    """Return the last frame of a stopped server: none that was synced may be missing."""
    numbers = [frame.number for scanned in found.files for frame in scanned.frames]
    marker = read_latest(disk, found.store_id)
    return max([found.root.frame, *numbers, marker.frame_number if marker is not None else 0])


def _cut_journal(files: list[ScannedFile], last: int) -> list[ScannedFile]:
    """Return the files with frames up to `last`, without later ones."""
    for scanned in files:
        scanned.frames = [frame for frame in scanned.frames if frame.number <= last]
    return [scanned for scanned in files if scanned.frames]


def _find_segments(
    store: SourceStore, found: LoadedCheckpoint, survey: JournalSurvey
) -> dict[str, tuple[int, int]]:
    """Return the segments that the checkpoint names: path -> length, stable length."""
    segments: dict[str, tuple[int, int]] = {}
    for entry in found.root.streams:
        state = msgspec.msgpack.decode(found.sections[entry.ref], type=StreamCheckpoint)
        for each in state.segments:
            path = segment_path(entry.ident, each.number)
            if store.files.exists(path) and store.files.size(path) >= each.end:
                segments[path] = (each.end, each.end)
            elif not survey.is_removed(entry.ident, each.first_seq, each.last_seq):
                raise BackupError(f"{path} of stream {entry.name} is missing or too short: {_REMEDY}")
    return segments


def _add_large_messages(
    store: SourceStore,
    files: list[ScannedFile],
    survey: JournalSurvey,
    segments: dict[str, tuple[int, int]],
) -> None:
    """Extend the segments by the large messages that frames refer to; the survey has verified them."""
    for frame, scanned in sort_frames(files):
        start = frame.offset + FRAME_HEADER_BYTES
        for kind, ident, data in decode_entries(scanned.data[start : start + frame.length]):
            if kind != LARGE:
                continue
            number, offset, length, seq = decode_large_entry(data)
            path = segment_path(ident, number)
            if not store.files.exists(path) and survey.is_removed(ident, seq, seq):
                continue
            before, stable = segments.get(path, (0, 0))
            segments[path] = (max(before, offset + length), stable)


def _list_checkpoints(store: SourceStore, found: LoadedCheckpoint) -> list[NeededFile]:
    """Return one intact copy of each checkpoint that is read, under the name of the first copy."""
    root = found.root
    refs = [entry.ref for entry in root.streams] + [entry.ref for entry in root.shards]
    disk, files = cast("Disk", store.files), []
    for number in sorted({root.number, *(ref.checkpoint for ref in refs)}):
        used = [ref for ref in refs if ref.checkpoint == number]
        paths = [checkpoint_path(number, copy) for copy in COPIES]
        path = next((path for path in paths if is_good_copy(disk, found, path, number, used)), None)
        if path is None:
            raise BackupError(
                f"both copies of checkpoint {number} of account {store.account} are damaged: {_REMEDY}"
            )
        size = store.files.size(path)
        files.append(NeededFile(checkpoint_path(number, COPIES[0]), size, size, path))
    return files
