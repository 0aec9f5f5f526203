"""How a reader comes by a snapshot: through an existing pin, the store's lock, or within the owner's process.

Owns these three ways and the release of what each holds. Invariant: once opened, a snapshot needs no name on
disk and no lock any more. Imports pyarrow by way of `reader`; the broker never imports this module.
"""

from __future__ import annotations

import re
import time

from headrace.errors import Corrupt, Full, StoreError
from headrace.store import manifest as manifests
from headrace.store.features import named
from headrace.store.folder import FolderDisk
from headrace.store.log import Log
from headrace.store.options import StoreOptions
from headrace.store.overlay import OverlayDisk
from headrace.store.pins import pin, unpin
from headrace.store.reader import COLUMNS, Selection, Shape, Snapshot
from headrace.store.store import Store

__all__ = ["COLUMNS", "Selection", "Shape", "Snapshot", "open_folder", "open_log", "open_pin"]

_LEASE_S = 3600.0
# Nothing is written for good, so the files that recovery prepares may be small.
_OPTIONS = StoreOptions(journal_bytes=1 << 20, journal_spares=0, headroom_bytes=0)


def open_pin(folder: str, stream: str, pin: str) -> Snapshot:
    """A pin that the store's owner made; it stays his to release."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", pin):
        raise StoreError(f"{pin!r} is not a name of a pin")
    disk = FolderDisk(folder, exclusive=False)
    with named(folder):
        manifest = manifests.load(disk, pin)
    if manifest.stream != stream:
        raise StoreError(f"pin {pin} is of stream {manifest.stream}, not of {stream}")
    try:
        return Snapshot(disk, manifest)
    except Corrupt:
        # Its lease may have run out meanwhile; the owner removes the manifest first, so loading tells.
        manifests.load(disk, pin)
        raise


def open_folder(folder: str, stream: str) -> Snapshot:
    """A snapshot of a store that no broker has open, without changing it: recovery runs over an overlay."""
    beneath = FolderDisk(folder, exclusive=True)
    try:
        disk = OverlayDisk(beneath)
        with named(folder):
            store = Store.open(disk, WallClock(), _OPTIONS)
        log = store.logs.get(stream)
        if log is None:
            raise _no_stream(store, folder, stream)
        return Snapshot(disk, pin(store, log, 0, time.time_ns()).manifest)
    finally:
        beneath.unlock()


def open_log(store: Store, log: Log, now_ns: int) -> Snapshot:
    """A snapshot within the process that owns the store; what it shows is durable. Blocks until it is."""
    while log.changed_frame > store.committed:
        if not store.in_flight:
            store.seal()
        store.disk.drain()
        if store.waits:
            raise Full("the disk is full, and what is to be shown is not durable; free some space")
    made = pin(store, log, _LEASE_S, now_ns)
    return Snapshot(store.disk, made.manifest, lambda: unpin(store, made))


def _no_stream(store: Store, folder: str, stream: str) -> StoreError:
    why = store.report().offline.get(stream)
    if why is not None:
        return Corrupt(f"stream {stream} cannot be read: {why}; `headrace fsck {folder}` says more")
    return StoreError(
        f"there is no stream {stream} in {folder}; there are {', '.join(sorted(store.logs)) or 'none'}"
    )


class WallClock:
    """The time of this machine."""

    def now_ns(self) -> int:
        return time.time_ns()
