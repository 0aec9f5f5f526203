"""Pins a stream without a broker: the holder of the store's lock makes the pin, readers in other processes use it.

Owns opening a store for that purpose. Invariant: the store changes only as it would when a broker starts and stops, and
the lock is free again on return. Must not know Arrow.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.clock import SystemClock
from headrace.errors import StoreError
from headrace.storage.format_features import name_folder_in_errors
from headrace.storage.io.disk import FileDisk
from headrace.storage.recovery.recovery import open_store
from headrace.storage.snapshot import leases
from headrace.storage.store import Store

#: The folder inside a server's `store_dir` that contains the store.
_STORE_SUBFOLDER = "headrace"


@dataclass(frozen=True, slots=True)
class OfflinePin:
    """A stream pinned without a broker."""

    pin: str
    created_ns: int
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    config: dict[str, object]


def find_store_folder(path: str | os.PathLike[str]) -> Path:
    """Return the store in a folder: the folder itself, or the one below a server's `store_dir`."""
    given = Path(path)
    for folder in (given, given / _STORE_SUBFOLDER):
        if (folder / "lock").exists():
            return folder
    raise StoreError(f"there is no store in {given}; pass the store directory of the server (its option -sd)")


def pin_offline(path: str | os.PathLike[str], stream: str, lease_s: float) -> OfflinePin:
    """Pin a stream of a store that no broker has open."""
    folder = find_store_folder(path)
    with _open_offline(folder) as store:
        return _pin_stream(store, folder, stream, lease_s)


def list_streams_offline(path: str | os.PathLike[str]) -> list[str]:
    """Return the streams of a store that no broker has open."""
    with _open_offline(find_store_folder(path)) as store:
        return sorted(store.logs)


@contextmanager
def _open_offline(folder: Path) -> Iterator[Store]:
    disk = FileDisk(folder)
    try:
        with name_folder_in_errors(folder):
            store = open_store(disk, SystemClock())
        try:
            yield store
        finally:
            store.close()
    finally:
        disk.close()


def _pin_stream(store: Store, folder: Path, stream: str, lease_s: float) -> OfflinePin:
    log = store.logs.get(stream)
    if log is None:
        raise StoreError(
            f"there is no stream {stream} in {folder}; its streams: {', '.join(sorted(store.logs)) or 'none'}"
        )
    now = time.time_ns()
    leases.sweep_expired(store, now)
    new_pin = leases.create_pin(store, log, lease_s, now)
    record = json.loads(store.metadata.get(b"stream/%d" % log.ident) or b"{}")
    return OfflinePin(
        new_pin.id,
        int(record.get("created_ns", 0)),
        log.first_seq,
        log.last_seq,
        log.messages,
        log.bytes,
        dict(record.get("config", {})),
    )
