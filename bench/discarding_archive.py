"""`headrace`, whose archive costs nothing: the program of the servers of `bench/archive.py local`.

Objects are in the memory of the server, and what a running server never reads again, groups with frames and chunks of
bases, is discarded. Must not be used for anything but measurements.
"""

from __future__ import annotations

import sys

from headrace.archive import service
from headrace.backup.target import BackupTarget
from headrace.claims.stores.memory import MemoryStore
from headrace.claims.stores.object_store import Attributes, Chunk
from headrace.cli import main

#: Objects from this size on are discarded; records, indexes and the leader object are smaller.
DISCARDED_BYTES = 64 * 1024


class DiscardingStore(MemoryStore):
    """A bucket that has names and small objects only."""

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await super().put(key, data if len(data) < DISCARDED_BYTES else b"", attributes, replace=replace)


def open_discarding_archive(url: str) -> BackupTarget:
    """Open an archive that costs nothing, whatever the configuration says."""
    return BackupTarget(DiscardingStore(), "", url)


if __name__ == "__main__":
    service.open_archive = open_discarding_archive  # type: ignore[attr-defined]
    sys.exit(main())
