"""Pins: consistent snapshots of one stream for readers in other processes, held for the time of a lease.

Owns `pins/`: each pin is a folder of hard links and a manifest, written last and removed first. Invariant: what a
pin shows never changes, whatever the store does to its own names meanwhile. A crash leaves pins behind; they harm
nothing, and the owner sweeps them when their lease is over. Recovery never touches them. Must not know Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import __version__
from headrace.errors import Corrupt, StoreError, UnknownFeature
from headrace.store import manifest as manifests
from headrace.store.capture import Captured, Held, capture
from headrace.store.disk import Disk, Op
from headrace.store.features import SEGMENTS
from headrace.store.filelog import FileLog
from headrace.store.format import columns_path, subjects_path
from headrace.store.log import Log
from headrace.store.manifest import Manifest
from headrace.store.report import Damage
from headrace.store.segments import FileSegment
from headrace.store.states import SegmentState
from headrace.store.store import Store

FOLDER = "pins"
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A pin that exists. It may be spoken of once `frame` is durable: it shows what that frame made of the log."""

    id: str
    frame: int
    manifest: Manifest


def pin(store: Store, log: Log, lease_s: float, now_ns: int) -> Pin:
    """Everything that the log has admitted, held for `lease_s` seconds from `now_ns` on."""
    disk = store.disk
    name = _free_name(disk, store.frame)
    ops, manifest = _plan(store, log, name, now_ns, now_ns + int(lease_s * NS))
    try:
        if not disk.exists(FOLDER):
            disk.run([("mkdir", FOLDER)])
        disk.run(ops)
    except OSError as error:
        _discard(disk, name)
        raise StoreError(f"stream {log.name} cannot be pinned: {error}") from error
    return Pin(name, log.changed_frame, manifest)


def unpin(store: Store, held: Pin | str) -> None:
    """Lets go of a pin; one that is gone already is no error."""
    _discard(store.disk, held if isinstance(held, str) else held.id)


def sweep(store: Store, now_ns: int) -> list[str]:
    """Removes the pins whose lease is over and those that were never finished; returns their names."""
    gone = []
    for name in store.disk.list(FOLDER):
        if _stale(store.disk, name, now_ns):
            _discard(store.disk, name)
            gone.append(name)
    return gone


def _plan(store: Store, log: Log, name: str, now_ns: int, expires_ns: int) -> tuple[list[Op], Manifest]:
    """What to do on disk for a pin, and what its manifest says."""
    folder = f"{FOLDER}/{name}"
    captured = capture(log)
    present, lost = _present(store.disk, log, captured)
    generation = log.generation if isinstance(log, FileLog) else -1
    saved = [state.number for segment, state in present if _is_saved(segment, state)]
    named = {number: columns_path(log.ident, number, generation) for number in saved}
    columns = [number for number, path in named.items() if store.disk.exists(path)]
    generation = generation if columns else -1
    links = [("link", segment.path, f"{folder}/{state.number:08x}.seg") for segment, state in present]
    links += [("link", named[number], f"{folder}/{number:08x}.col") for number in columns]
    if generation >= 0:
        links.append(("link", subjects_path(log.ident, generation), f"{folder}/subjects.{generation}"))
    manifest = Manifest(
        pin=name,
        store=store.ident,
        stream=log.name,
        ident=log.ident,
        committed_seq=log.last_seq,
        messages=log.messages,
        as_of_ns=now_ns,
        expires_ns=expires_ns,
        segments=[state for _, state in present],
        columns=columns,
        generation=generation,
        loose=captured.loose,
        lost=lost,
        writer=__version__,
    )
    path = f"{folder}/{manifests.NAME}"
    data = manifest.encode(name for name in store.checkpoints.features if name.startswith(SEGMENTS))
    return [("mkdir", folder), *links, ("create", path, 0), ("write", path, 0, data)], manifest


def _present(disk: Disk, log: Log, captured: Captured) -> tuple[list[Held], list[Damage]]:
    """The segments whose files are there, and what is known to be lost."""
    lost = [Damage("messages were lost", log.name, first, last) for first, last in log.lost]
    present = []
    for segment, state in captured.segments:
        if disk.exists(segment.path):
            present.append((segment, state))
        else:
            lost.append(Damage("a segment is missing", log.name, state.base, state.last, segment.path))
    return present, lost


def _is_saved(segment: FileSegment, state: SegmentState) -> bool:
    return segment.saved and state.rows == segment.columns.rows


def _free_name(disk: Disk, frame: int) -> str:
    """Names follow the frames; after a crash an old pin may still have the next one."""
    number = 0
    while disk.exists(f"{FOLDER}/{frame:016x}-{number}"):
        number += 1
    return f"{frame:016x}-{number}"


def _stale(disk: Disk, name: str, now: int) -> bool:
    try:
        return manifests.read(disk, name).expires_ns <= now
    except (FileNotFoundError, Corrupt):
        return True  # never finished, half removed, or of no use to anybody
    except UnknownFeature:
        return False  # left to the version that made it
    except OSError:
        return False  # says nothing of the lease: the next sweep looks again


def _discard(disk: Disk, name: str) -> None:
    """Removes a pin as far as it is there: the manifest first, so that nobody starts to read what is going."""
    folder = f"{FOLDER}/{name}"
    files = disk.list(folder)
    first = [manifests.NAME] if manifests.NAME in files else []
    order = first + [file for file in files if file != manifests.NAME]
    if disk.exists(folder):
        disk.run([*(("unlink", f"{folder}/{file}") for file in order), ("rmdir", folder)])
