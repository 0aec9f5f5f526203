"""What the logs of one store share, and the seams through which they reach the rest of it.

Owns nothing but references: a log knows its shelf, not the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.storage.damage_report import Damage
from headrace.storage.io.disk import Disk
from headrace.storage.native_records import OpenFrame, RecordBlock
from headrace.storage.options import StoreOptions
from headrace.storage.segments.segment import BlockCache, FileSegment

if TYPE_CHECKING:
    from headrace.storage.log.file_log import FileLog


class LogContext:
    """Shared by all file logs of a store."""

    def __init__(self, disk: Disk, store_id: int, options: StoreOptions, open_frame: OpenFrame) -> None:
        self.disk = disk
        self.store_id = store_id
        self.options = options
        self.open_frame = open_frame
        self.block_cache = BlockCache(options.cache_bytes)
        self.large_writes: list[
            tuple[FileLog, FileSegment, RecordBlock]
        ] = []  # to be synced before the frame
        self.large_pending_bytes = 0
        self.flush_block: Callable[[FileLog, FileSegment, RecordBlock], None] = lambda log, segment, block: (
            None
        )
        self.flush_columns: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.discard_file: Callable[[str], None] = lambda path: None
        self.bury: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.maybe_compact: Callable[[FileLog, FileSegment], None] = lambda log, segment: None
        self.report_damage: Callable[[Damage], None] = lambda damage: None
        self.check_space: Callable[[int], None] = lambda size: None
