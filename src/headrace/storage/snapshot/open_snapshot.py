"""Opens a snapshot: from an existing pin, with the store's lock, or within the process that owns the store.

Owns these three ways and what each must release. Invariant: once opened, a snapshot needs neither a name on disk nor a
lock. Imports pyarrow through `reader`; the broker never imports this module.
"""

from __future__ import annotations

import re
import time

from headrace.clock import SystemClock
from headrace.errors import CorruptData, StoreError, StoreFull
from headrace.storage.format_features import name_folder_in_errors
from headrace.storage.io.overlay_disk import OverlayDisk
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.log.log import StreamLog
from headrace.storage.options import StoreOptions
from headrace.storage.recovery.recovery import open_store
from headrace.storage.snapshot import manifest as manifests
from headrace.storage.snapshot.leases import create_pin, release_pin
from headrace.storage.snapshot.reader import COLUMNS, ArrowLayout, Selection, StreamSnapshot
from headrace.storage.store import Store

__all__ = ["COLUMNS", "ArrowLayout", "Selection", "StreamSnapshot", "open_folder", "open_log", "open_pin"]

_LEASE_S = 3600.0
# Nothing is written permanently, so the files that recovery prepares may be small.
_OPTIONS = StoreOptions(journal_bytes=1 << 20, journal_spares=0, headroom_bytes=0)


def open_pin(folder: str, stream: str, pin: str) -> StreamSnapshot:
    """Open a pin that the store's owner made; only the owner releases it."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", pin):
        raise StoreError(f"{pin!r} is not a valid pin name")
    disk = ReadonlyDisk(folder, exclusive=False)
    with name_folder_in_errors(folder):
        manifest = manifests.load(disk, pin)
    if manifest.stream != stream:
        raise StoreError(f"pin {pin} belongs to stream {manifest.stream}, not to {stream}")
    try:
        return StreamSnapshot(disk, manifest)
    except CorruptData:
        # The lease may have expired meanwhile; the owner removes the manifest first, so loading it shows that.
        manifests.load(disk, pin)
        raise


def open_folder(folder: str, stream: str) -> StreamSnapshot:
    """Open a snapshot of a store that no broker has open, without changing it: recovery runs on an overlay."""
    base = ReadonlyDisk(folder, exclusive=True)
    try:
        disk = OverlayDisk(base)
        with name_folder_in_errors(folder):
            store = open_store(disk, SystemClock(), _OPTIONS)
        log = store.logs.get(stream)
        if log is None:
            raise _make_no_stream_error(store, folder, stream)
        return StreamSnapshot(disk, create_pin(store, log, 0, time.time_ns()).manifest)
    finally:
        base.unlock()


def open_log(store: Store, log: StreamLog, now_ns: int) -> StreamSnapshot:
    """Open a snapshot in the process that owns the store; blocks until what it shows is durable."""
    gate = store.frame_submission.gate
    if gate is not None and gate.holds_all:
        raise StoreError("the store waits for an archive (ack: remote): read the stream through the server")
    if store.memory_frames.dirty:
        store.memory_frames.commit()
    while log.journaled and log.changed_frame > store.committed_frame:
        if not store.in_flight:
            store.commit()
        store.disk.drain()
        if gate is not None and gate.is_waiting:
            raise StoreError(
                "the newest messages wait for the archive, which cannot be reached: read them later"
            )
        if store.waiting_for_space:
            raise StoreFull("the disk is full, and the newest messages are not durable; free some space")
    new_pin = create_pin(store, log, _LEASE_S, now_ns)
    return StreamSnapshot(store.disk, new_pin.manifest, lambda: release_pin(store, new_pin))


def _make_no_stream_error(store: Store, folder: str, stream: str) -> StoreError:
    reason = store.report().offline_streams.get(stream)
    if reason is not None:
        return CorruptData(
            f"stream {stream} cannot be read: {reason}; run `headrace fsck {folder}` for details"
        )
    return StoreError(
        f"there is no stream {stream} in {folder}; its streams: {', '.join(sorted(store.logs)) or 'none'}"
    )
