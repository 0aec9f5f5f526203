"""Pins: consistent snapshots of one stream for readers in other processes, kept for the duration of a lease.

Owns `pins/`: each pin is a folder of hard links and a manifest, which is written last and removed first. Invariant: the
content of a pin never changes, even when the store removes or renames its own files. Pins survive a crash; they do no
harm, and the owner removes them when their lease has expired. Recovery never touches them. Must not know Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import __version__
from headrace.errors import CorruptData, StoreError, UnknownFeature
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.damage_report import Damage
from headrace.storage.format import columns_path, subjects_path
from headrace.storage.format_features import SEGMENTS
from headrace.storage.io.disk import Disk, Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import StreamLog
from headrace.storage.segments.segment import FileSegment
from headrace.storage.snapshot import manifest as manifests
from headrace.storage.snapshot.log_view import LogView, PinnedSegment, make_log_view
from headrace.storage.snapshot.manifest import Manifest
from headrace.storage.store import Store

FOLDER = "pins"
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """A pin that exists. It may be announced once `frame` is durable: it shows the log after that frame."""

    id: str
    frame: int
    manifest: Manifest


def create_pin(store: Store, log: StreamLog, lease_s: float, now_ns: int) -> SnapshotPin:
    """Pin everything that the log has admitted, for `lease_s` seconds from `now_ns` on."""
    disk = store.disk
    name = _make_name(disk, store.frame_number)
    ops, manifest = _plan_ops(store, log, name, now_ns, now_ns + int(lease_s * NS))
    try:
        if not disk.exists(FOLDER):
            disk.run([("mkdir", FOLDER)])
        disk.run(ops)
    except OSError as error:
        _remove(disk, name)
        raise StoreError(f"stream {log.name} cannot be pinned: {error}") from error
    return SnapshotPin(name, log.changed_frame, manifest)


def release_pin(store: Store, pin: SnapshotPin | str) -> None:
    """Release a pin; one that is gone already is no error."""
    _remove(store.disk, pin if isinstance(pin, str) else pin.id)


def sweep_expired(store: Store, now_ns: int) -> list[str]:
    """Remove expired and unfinished pins; return their names."""
    removed = []
    for name in store.disk.list(FOLDER):
        if _is_stale(store.disk, name, now_ns):
            _remove(store.disk, name)
            removed.append(name)
    return removed


def _plan_ops(
    store: Store, log: StreamLog, name: str, now_ns: int, expires_ns: int
) -> tuple[list[Op], Manifest]:
    """Return the disk operations for a pin, and its manifest."""
    folder = f"{FOLDER}/{name}"
    view = make_log_view(log)
    present, lost = _find_present(store.disk, log, view)
    generation = log.generation if isinstance(log, FileLog) else -1
    saved = [state.number for segment, state in present if _has_columns(segment, state)]
    columns_paths = {number: columns_path(log.ident, number, generation) for number in saved}
    columns = [number for number, path in columns_paths.items() if store.disk.exists(path)]
    generation = generation if columns else -1
    links = [("link", segment.path, f"{folder}/{state.number:08x}.seg") for segment, state in present]
    links += [("link", columns_paths[number], f"{folder}/{number:08x}.col") for number in columns]
    if generation >= 0:
        links.append(("link", subjects_path(log.ident, generation), f"{folder}/subjects.{generation}"))
    manifest = Manifest(
        pin=name,
        store=store.store_id,
        stream=log.name,
        ident=log.ident,
        committed_seq=log.last_seq,
        messages=log.messages,
        as_of_ns=now_ns,
        expires_ns=expires_ns,
        segments=[state for _, state in present],
        columns=columns,
        generation=generation,
        loose=view.tail_records,
        lost=lost,
        writer=__version__,
    )
    path = f"{folder}/{manifests.FILE_NAME}"
    data = manifest.encode(name for name in store.checkpointer.features if name.startswith(SEGMENTS))
    return [("mkdir", folder), *links, ("create", path, 0), ("write", path, 0, data)], manifest


def _find_present(disk: Disk, log: StreamLog, view: LogView) -> tuple[list[PinnedSegment], list[Damage]]:
    """Return the segments whose files exist, and what is known to be lost."""
    lost = [Damage("messages were lost", log.name, first, last) for first, last in log.lost_ranges]
    present = []
    for segment, state in view.segments:
        if disk.exists(segment.path):
            present.append((segment, state))
        else:
            lost.append(
                Damage("a segment is missing", log.name, state.first_seq, state.last_seq, segment.path)
            )
    return present, lost


def _has_columns(segment: FileSegment, state: SegmentState) -> bool:
    return segment.columns_saved and state.rows == segment.columns.rows


def _make_name(disk: Disk, frame: int) -> str:
    """Make a name from the frame number; after a crash an old pin may already have that name."""
    number = 0
    while disk.exists(f"{FOLDER}/{frame:016x}-{number}"):
        number += 1
    return f"{frame:016x}-{number}"


def _is_stale(disk: Disk, name: str, now: int) -> bool:
    try:
        return manifests.read(disk, name).expires_ns <= now
    except (FileNotFoundError, CorruptData):
        return True  # unfinished, half removed, or unusable
    except UnknownFeature:
        return False  # left to the version that created it
    except OSError:
        return False  # the lease is unknown: the next sweep checks again


def _remove(disk: Disk, name: str) -> None:
    """Remove what is left of a pin: the manifest first, so that no reader opens it."""
    folder = f"{FOLDER}/{name}"
    files = disk.list(folder)
    first = [manifests.FILE_NAME] if manifests.FILE_NAME in files else []
    order = first + [file for file in files if file != manifests.FILE_NAME]
    if disk.exists(folder):
        disk.run([*(("unlink", f"{folder}/{file}") for file in order), ("rmdir", folder)])
