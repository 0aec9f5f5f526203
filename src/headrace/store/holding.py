"""A pin without a broker: whoever has the store's lock makes it, and readers in other processes use it.

Owns opening a store for just that. Invariant: what is done to the store is what a broker's start and stop would do, and
the lock is free again on return. Must not know Arrow.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StoreError
from headrace.store import pins
from headrace.store.disk import FileDisk
from headrace.store.features import named
from headrace.store.store import Store

#: The folder inside a server's `store_dir` that is the store.
_INNER = "headrace"


@dataclass(frozen=True, slots=True)
class Held:
    """A stream as a pin holds it."""

    pin: str
    created_ns: int
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    config: dict[str, object]


class _WallClock:
    def now_ns(self) -> int:
        return time.time_ns()


def store_folder(path: str | os.PathLike[str]) -> Path:
    """The store in a folder: the folder itself, or the one that a server keeps below its `store_dir`."""
    outer = Path(path)
    for folder in (outer, outer / _INNER):
        if (folder / "lock").exists():
            return folder
    raise StoreError(f"{outer} holds no store; give the folder that the server was started with (-sd)")


def hold(path: str | os.PathLike[str], stream: str, lease_s: float) -> Held:
    """Pin a stream of a store that no broker has open."""
    folder = store_folder(path)
    disk = FileDisk(folder)
    try:
        with named(folder):
            store = Store.open(disk, _WallClock())
        try:
            return _hold(store, folder, stream, lease_s)
        finally:
            store.close()
    finally:
        disk.close()


def _hold(store: Store, folder: Path, stream: str, lease_s: float) -> Held:
    log = store.logs.get(stream)
    if log is None:
        raise StoreError(
            f"there is no stream {stream} in {folder}; there are {', '.join(sorted(store.logs)) or 'none'}"
        )
    now = time.time_ns()
    pins.sweep(store, now)
    made = pins.pin(store, log, lease_s, now)
    kept = json.loads(store.facts.get(b"stream/%d" % log.ident) or b"{}")
    return Held(
        made.id,
        int(kept.get("created_ns", 0)),
        log.first_seq,
        log.last_seq,
        log.messages,
        log.bytes,
        dict(kept.get("config", {})),
    )
