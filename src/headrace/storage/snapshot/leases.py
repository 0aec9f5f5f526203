"""Pins: consistent snapshots of one stream for readers in other processes, kept for the duration of a lease.

Owns `pins/`: each pin is a folder of hard links and a manifest, which is written last and removed first. Invariant: the
content of a pin never changes, even when the store removes or renames its own files. Pins survive a crash; they do no
harm, and the owner removes them when their lease has expired. Recovery never touches them. Must not know Arrow.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import msgspec

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
from headrace.storage.snapshot.log_view import make_log_view
from headrace.storage.snapshot.manifest import Manifest
from headrace.storage.store import Store

FOLDER = "pins"
NS = 1_000_000_000
#: Number of segments that are linked in one step: each takes about 0.1 ms, at most 0.3 ms.
SEGMENTS_PER_STEP = 32
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """A pin that exists. It may be announced once `frame` is durable: it shows the log after that frame."""

    id: str
    frame: int
    manifest: Manifest


PinSteps = Generator[None, None, SnapshotPin]


class _SegmentRemoved(Exception):
    """The store has removed a segment that the pin was about to keep."""


def create_pin(store: Store, log: StreamLog, lease_s: float, now_ns: int) -> SnapshotPin:
    """Pin everything that the log has admitted, for `lease_s` seconds from `now_ns` on."""
    return _run(iter_create_pin(store, log, lease_s, now_ns))


def iter_create_pin(store: Store, log: StreamLog, lease_s: float, now_ns: int) -> PinSteps:
    """Like `create_pin`, in steps, for an owner that has other work to do meanwhile.

    The store may remove segments between two steps. Then the pin is made again, the last time in one step.
    """
    disk = store.disk
    for attempt in range(ATTEMPTS):
        name = _make_name(disk, store.frame_number, now_ns)
        steps = _iter_make(store, log, name, now_ns, now_ns + int(lease_s * NS))
        try:
            if attempt == ATTEMPTS - 1:
                return _run(steps)
            return (yield from steps)
        except _SegmentRemoved:
            _remove(disk, name)
        except OSError as error:
            _remove(disk, name)
            raise StoreError(f"stream {log.name} cannot be pinned: {error}") from error
    raise AssertionError("nothing changes in one step")


def _run(steps: PinSteps) -> SnapshotPin:
    """Run all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            pin: SnapshotPin = finished.value
            return pin


def release_pin(store: Store, pin: SnapshotPin | str) -> None:
    """Release a pin; one that is gone already is no error."""
    _remove(store.disk, pin if isinstance(pin, str) else pin.id)


def submit_release(store: Store, name: str) -> None:
    """Like `release_pin`, but only the manifest is gone on return; the disk removes the rest in the background."""
    disk = store.disk
    ops = _removal_ops(disk, name)
    if ops and ops[0][1].endswith(manifests.FILE_NAME):
        disk.run(ops[:1])
        del ops[0]
    if ops:
        disk.submit("behind", ops, lambda error: None)  # the next sweep removes what is left after an error


def sweep_expired(store: Store, now_ns: int) -> list[str]:
    """Remove expired and unfinished pins; return their names."""
    removed = []
    for name in store.disk.list(FOLDER):
        if _is_stale(store.disk, name, now_ns):
            _remove(store.disk, name)
            removed.append(name)
    return removed


def _iter_make(store: Store, log: StreamLog, name: str, now_ns: int, expires_ns: int) -> PinSteps:
    """Make a pin of the log as it is at the first step."""
    disk = store.disk
    if not disk.exists(FOLDER):
        disk.run([("mkdir", FOLDER)])
    disk.run([("mkdir", f"{FOLDER}/{name}")])
    files = PinnedFiles(store, log, f"{FOLDER}/{name}")
    view = make_log_view(log)
    manifest = Manifest(
        pin=name,
        store=store.store_id,
        stream=log.name,
        ident=log.ident,
        committed_seq=log.last_seq,
        messages=log.messages,
        as_of_ns=now_ns,
        expires_ns=expires_ns,
        segments=files.segments,
        columns=files.columns,
        generation=files.generation,
        loose=view.tail_records,
        lost=files.lost,
        writer=__version__,
    )
    frame = log.changed_frame
    for start in range(0, len(view.segments), SEGMENTS_PER_STEP):
        for segment, state in view.segments[start : start + SEGMENTS_PER_STEP]:
            files.add(segment, state)
        yield
    if not files.columns:
        manifest = msgspec.structs.replace(manifest, generation=-1)
    path = f"{FOLDER}/{name}/{manifests.FILE_NAME}"
    data = manifest.encode(name for name in store.checkpointer.features if name.startswith(SEGMENTS))
    yield
    # The rename closes the file. Nobody syncs it, so it would stay open and be synced in the way of other writes.
    unnamed = f"{path}.new"
    disk.run([("create", unnamed, 0), ("write", unnamed, 0, data), ("rename", unnamed, path)])
    return SnapshotPin(name, frame, manifest)


class PinnedFiles:
    """The files of a log that a pin has links to."""

    def __init__(self, store: Store, log: StreamLog, folder: str) -> None:
        self._disk = store.disk
        self._log = log
        self._folder = folder
        self.segments: list[SegmentState] = []
        self.columns: list[int] = []
        self.lost = [Damage("messages were lost", log.name, first, last) for first, last in log.lost_ranges]
        self.generation = log.generation if isinstance(log, FileLog) else -1
        subjects = subjects_path(log.ident, self.generation)
        if self.generation >= 0 and self._disk.exists(subjects):
            self._disk.run([("link", subjects, f"{folder}/subjects.{self.generation}")])
        else:
            self.generation = -1

    def add(self, segment: FileSegment, state: SegmentState) -> None:
        """Make links to the files of one segment; raise _SegmentRemoved if the log has dropped it meanwhile."""
        disk, log, number = self._disk, self._log, state.number
        if not disk.exists(segment.path):
            if segment is not log.active_segment and not any(each is segment for each in log.sealed_segments):
                raise _SegmentRemoved
            self.lost.append(
                Damage("a segment is missing", log.name, state.first_seq, state.last_seq, segment.path)
            )
            return
        ops: list[Op] = [("link", segment.path, f"{self._folder}/{number:08x}.seg")]
        columns = columns_path(log.ident, number, self.generation)
        if self.generation >= 0 and _has_columns(segment, state) and disk.exists(columns):
            ops.append(("link", columns, f"{self._folder}/{number:08x}.col"))
            self.columns.append(number)
        try:
            disk.run(ops)
        except FileNotFoundError:
            # The disk thread has removed a file since it was seen.
            raise _SegmentRemoved from None
        self.segments.append(state)


def _has_columns(segment: FileSegment, state: SegmentState) -> bool:
    return segment.columns_saved and state.rows == segment.columns.rows


def _make_name(disk: Disk, frame: int, now_ns: int) -> str:
    """Make a name from the frame number and the time; after a crash an old pin may already have that name.

    The frame number is not enough: a stream in memory changes without a frame, and readers, which cache what they opened
    by its name, would read what a released pin had.
    """
    number, name = 0, f"{frame:016x}{now_ns:016x}"
    while disk.exists(f"{FOLDER}/{name}-{number}"):
        number += 1
    return f"{name}-{number}"


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
    """Remove what is left of a pin."""
    disk.run(_removal_ops(disk, name))


def _removal_ops(disk: Disk, name: str) -> list[Op]:
    """Return what removes a pin: the manifest first, so that no reader opens it."""
    folder = f"{FOLDER}/{name}"
    if not disk.exists(folder):
        return []
    files = sorted(disk.list(folder), key=lambda file: file != manifests.FILE_NAME)
    return [*(("unlink", f"{folder}/{file}") for file in files), ("rmdir", folder)]
