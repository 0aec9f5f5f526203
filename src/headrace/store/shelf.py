"""What the logs of one store share, and the seams through which they reach the rest of it.

Owns nothing but references: a log knows its shelf, not the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.store.disk import Disk
from headrace.store.options import StoreOptions
from headrace.store.records import Block, Gate
from headrace.store.report import Damage
from headrace.store.segments import BlockCache, FileSegment

if TYPE_CHECKING:
    from headrace.store.filelog import FileLog


class Shelf:
    """Shared by all file logs of a store."""

    def __init__(self, disk: Disk, store: int, options: StoreOptions, gate: Gate) -> None:
        self.disk = disk
        self.store = store
        self.options = options
        self.gate = gate
        self.cache = BlockCache(options.cache_bytes)
        self.larges: list[tuple[FileLog, FileSegment, Block]] = []  # to be synced before the frame
        self.large_bytes = 0
        self.queue_block: Callable[[FileLog, FileSegment, Block], None] = lambda log, segment, block: None
        self.queue_columns: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.discard: Callable[[str], None] = lambda path: None
        self.bury: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.consider: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.damage: Callable[[Damage], None] = lambda damage: None
        self.check_space: Callable[[int], None] = lambda size: None
