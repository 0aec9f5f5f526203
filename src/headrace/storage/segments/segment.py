"""One segment of a stream in memory: its rows, its blocks, and access to the bytes of a record.

Owns where a block is found: still in memory, in the cache of verified blocks, or in the file, where its checksum is
verified before anything in it is used. Invariant: a block that fails raises `CorruptData`; it is never skipped. Must
not know frames, checkpoints or subject names.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from enum import Enum

from headrace.errors import CorruptData
from headrace.storage.compressed_block import open_block
from headrace.storage.format import (
    BLOCK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    compute_segment_seed,
    segment_path,
)
from headrace.storage.io.disk import Disk
from headrace.storage.native_records import RecordBlock, SegmentIndex

Buffer = bytes | bytearray | memoryview
#: A segment's rows store their sequences as 32-bit distances from the first one.
SEQ_SPAN_MAX = 0xFFFFFFFF


class FileState(Enum):
    """State of a segment's file."""

    NEW = "new"
    RESERVED = "claimed"  # the open frame will create it, on the commit queue
    CREATING = "making"
    READY = "ready"


class BlockCache:
    """Cache of verified blocks; the least recently used ones are evicted first. `use_count` changes with each use."""

    def __init__(self, limit: int) -> None:
        self.max_bytes = limit
        self.used_bytes = 0
        self.use_count = 0
        self._blocks: OrderedDict[tuple[int, int, int], tuple[Buffer, int]] = OrderedDict()

    def get(self, key: tuple[int, int, int]) -> tuple[Buffer, int] | None:
        self.use_count += 1
        found = self._blocks.get(key)
        if found is not None:
            self._blocks.move_to_end(key)
        return found

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self.used_bytes = 0

    def put(self, key: tuple[int, int, int], data: Buffer, base_offset: int) -> None:
        if len(data) * 4 > self.max_bytes or key in self._blocks:
            return
        self._blocks[key] = (data, base_offset)
        self.used_bytes += len(data)
        while self.used_bytes > self.max_bytes:
            self.used_bytes -= len(self._blocks.popitem(last=False)[1][0])


class Segment:
    """Rows and blocks of one segment. `end` is where its last block ends."""

    def __init__(self, number: int, columns: SegmentIndex) -> None:
        self.number = number
        self.columns = columns
        self.blocks = array("Q")
        self.pending: dict[int, RecordBlock] = {}
        self.end = SEGMENT_HEADER_BYTES
        self.cached_live_bits = b""
        self.cached_alive = -1
        self._latest_time_ns = -1

    def add_block(self, block: RecordBlock) -> None:
        """Append a block that was just finished."""
        self.blocks.append(block.offset)
        self.pending[block.offset] = block
        self.end = block.offset + BLOCK_HEADER_BYTES + block.used

    @property
    def last_seq(self) -> int:
        """The last sequence that has a row."""
        return self.columns.seq(self.columns.rows - 1)

    @property
    def latest_time_ns(self) -> int:
        """The latest time of any row; for sealed segments, whose rows do not change."""
        if self._latest_time_ns < 0:
            self._latest_time_ns = self.columns.find_latest_time()
        return self._latest_time_ns

    def live_bits(self) -> bytes:
        """Return packed live bits; packed again only if rows died since."""
        if self.cached_alive != self.columns.alive:
            self.cached_live_bits, self.cached_alive = self.columns.live_bits(), self.columns.alive
        return self.cached_live_bits

    def find_block(self, offset: int) -> int:
        """Return the offset of the block that contains the record at an offset."""
        return self.blocks[bisect_right(self.blocks, offset) - 1]

    def find_block_end(self, offset: int) -> int:
        """Return where the block that contains the record at an offset ends."""
        at = bisect_right(self.blocks, offset)
        return self.blocks[at] if at < len(self.blocks) else self.end

    def read_block(self, block: int) -> tuple[Buffer, int]:
        """Return the bytes of a block, and the position of their first byte in the segment."""
        cached = self.pending[block]
        return cached.data, block + BLOCK_HEADER_BYTES

    def read_block_at(self, offset: int) -> tuple[Buffer, int]:
        """Return the bytes of the block that contains the record at an offset, and the position of their first byte."""
        return self.read_block(self.find_block(offset))


def fits_one_segment(first: Segment, last: Segment) -> bool:
    """Return whether the rows of both fit into one segment."""
    return last.last_seq - first.columns.base <= SEQ_SPAN_MAX


class FileSegment(Segment):
    """A segment with a file."""

    def __init__(
        self, disk: Disk, cache: BlockCache, store_id: int, ident: int, number: int, columns: SegmentIndex
    ) -> None:
        super().__init__(number, columns)
        self.ident = ident
        self.path = segment_path(ident, number)
        self.seed = compute_segment_seed(store_id, ident, number)
        self.state = FileState.NEW
        self.unsynced = False
        self.folder_synced = False
        self.columns_saved = False  # its columns are in a file
        self.damaged = False
        self.released = False  # its file was removed before a checkpoint: nothing is written to it any more
        self._disk = disk
        self._cache = cache

    def read_block(self, block: int) -> tuple[Buffer, int]:
        cached = self.pending.get(block)
        if cached is not None:
            return cached.data, block + BLOCK_HEADER_BYTES
        key = (self.ident, self.number, block)
        return self._cache.get(key) or self._read_verified(key, block)

    def read_block_at(self, offset: int) -> tuple[Buffer, int]:
        block = self.blocks[bisect_right(self.blocks, offset) - 1]
        cached = self._cache.get((self.ident, self.number, block))
        return cached or self.read_block(block)

    def _read_verified(self, key: tuple[int, int, int], block: int) -> tuple[Buffer, int]:
        at = bisect_right(self.blocks, block)
        end = self.blocks[at] if at < len(self.blocks) else self.end
        try:
            data = self._disk.read(self.path, block, end - block)
        except FileNotFoundError:
            data = b""
        opened = open_block(data, 0, self.seed, block)
        if opened is None:
            self.damaged = True
            raise CorruptData(f"the block at {block} of {self.path} is damaged; run headrace fsck")
        self._cache.put(key, opened.data, block)
        return opened.data, block

    def on_block_written(self, block: RecordBlock) -> None:
        """Move a block that is now in the file from memory to the cache, where readers of new messages still find it."""
        self.pending.pop(block.offset, None)
        self._cache.put(
            (self.ident, self.number, block.offset), block.data, block.offset + BLOCK_HEADER_BYTES
        )
        self.unsynced = True
