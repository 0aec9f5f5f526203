"""How a reader comes by a snapshot: through an existing pin, the store's lock, or within the owner's process.

Owns these three ways and the release of what each holds. Invariant: once opened, a snapshot needs no name on
disk and no lock any more. Imports pyarrow by way of `reader`; the broker never imports this module.
"""

from __future__ import annotations

import re

from headrace.errors import Corrupt, StoreError
from headrace.store import manifest as manifests
from headrace.store.folder import FolderDisk
from headrace.store.reader import COLUMNS, Selection, Shape, Snapshot

__all__ = ["COLUMNS", "Selection", "Shape", "Snapshot", "open_folder", "open_pin"]


def open_pin(folder: str, stream: str, pin: str) -> Snapshot:
    """A pin that the store's owner made; it stays his to release."""
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", pin):
        raise StoreError(f"{pin!r} is not a name of a pin")
    disk = FolderDisk(folder, exclusive=False)
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
    """A snapshot of a store that no broker has open."""
    FolderDisk(folder, exclusive=True)
    raise StoreError(stream)
