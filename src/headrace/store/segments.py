"""One segment of a stream in memory: its rows, its blocks, and the way to a record's bytes.

Owns where a block is found: still in memory, in the cache of verified blocks, or in the file, where its
checksum is verified before anything of it is used. Invariant: a block that fails raises `Corrupt`; it
is never skipped. Must not know frames, checkpoints or subjects' names.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from enum import Enum

from headrace.errors import Corrupt
from headrace.store.disk import Disk
from headrace.store.format import BLOCK_BYTES, SEGMENT_HEADER_BYTES, identity, open_block, segment_path
from headrace.store.records import Block, Columns

Buffer = bytes | bytearray | memoryview
#: A segment's rows keep their sequences as distances from the first, which have 32 bits.
REACH = 0xFFFFFFFF


class State(Enum):
    """How far a segment's file has come."""

    NEW = "new"
    CLAIMED = "claimed"  # the frame under construction will make it, on lane "commit"
    MAKING = "making"
    READY = "ready"


class BlockCache:
    """Verified blocks, the least recently used of which go first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._held: OrderedDict[tuple[int, int, int], tuple[Buffer, int]] = OrderedDict()

    def get(self, key: tuple[int, int, int]) -> tuple[Buffer, int] | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: tuple[int, int, int], data: Buffer, place: int) -> None:
        if len(data) * 4 > self.limit or key in self._held:
            return
        self._held[key] = (data, place)
        self.used += len(data)
        while self.used > self.limit:
            self.used -= len(self._held.popitem(last=False)[1][0])


class Segment:
    """Rows and blocks of one segment. `end` is where its last block ends."""

    def __init__(self, number: int, columns: Columns) -> None:
        self.number = number
        self.columns = columns
        self.blocks = array("Q")
        self.pending: dict[int, Block] = {}
        self.end = SEGMENT_HEADER_BYTES
        self.bits = b""
        self.bits_alive = -1
        self._latest = -1

    def add(self, block: Block) -> None:
        """A block was cut at the end of this segment."""
        self.blocks.append(block.offset)
        self.pending[block.offset] = block
        self.end = block.offset + BLOCK_BYTES + block.used

    @property
    def last(self) -> int:
        """The last sequence it has a row for."""
        return self.columns.seq(self.columns.rows - 1)

    @property
    def latest(self) -> int:
        """The latest time of a row; for sealed segments, whose rows do not change."""
        if self._latest < 0:
            self._latest = int(self.columns.time[: self.columns.rows].max())
        return self._latest

    def live_bits(self) -> bytes:
        """Packed live bits, packed again only when something died since."""
        if self.bits_alive != self.columns.alive:
            self.bits, self.bits_alive = self.columns.live_bits(), self.columns.alive
        return self.bits

    def block_of(self, offset: int) -> int:
        """The offset of the block that holds the record at an offset."""
        return self.blocks[bisect_right(self.blocks, offset) - 1]

    def after(self, offset: int) -> int:
        """Where the block that holds the record at an offset is over."""
        at = bisect_right(self.blocks, offset)
        return self.blocks[at] if at < len(self.blocks) else self.end

    def fetch(self, block: int) -> tuple[Buffer, int]:
        """(bytes, place in the segment of their first byte) of a block."""
        held = self.pending[block]
        return held.data, block + BLOCK_BYTES

    def find(self, offset: int) -> tuple[Buffer, int]:
        """(bytes, place of their first byte) of the block that holds the record at an offset."""
        return self.fetch(self.block_of(offset))


def within_reach(first: Segment, last: Segment) -> bool:
    """Whether the rows of both can be in one segment."""
    return last.last - first.columns.base <= REACH


class FileSegment(Segment):
    """A segment with a file."""

    def __init__(
        self, disk: Disk, cache: BlockCache, store: int, ident: int, number: int, columns: Columns
    ) -> None:
        super().__init__(number, columns)
        self.ident = ident
        self.path = segment_path(ident, number)
        self.seed = identity(store, ident, number)
        self.state = State.NEW
        self.unsynced = False
        self.folder_synced = False
        self.saved = False  # its columns are in a file
        self.damaged = False
        self.released = False  # its file went before a checkpoint: nothing is written to it any more
        self._disk = disk
        self._cache = cache

    def fetch(self, block: int) -> tuple[Buffer, int]:
        held = self.pending.get(block)
        if held is not None:
            return held.data, block + BLOCK_BYTES
        key = (self.ident, self.number, block)
        return self._cache.get(key) or self._read(key, block)

    def find(self, offset: int) -> tuple[Buffer, int]:
        block = self.blocks[bisect_right(self.blocks, offset) - 1]
        held = self._cache.get((self.ident, self.number, block))
        return held or self.fetch(block)

    def _read(self, key: tuple[int, int, int], block: int) -> tuple[Buffer, int]:
        at = bisect_right(self.blocks, block)
        end = self.blocks[at] if at < len(self.blocks) else self.end
        try:
            data = self._disk.read(self.path, block, end - block)
        except FileNotFoundError:
            data = b""
        if open_block(data, 0, self.seed, block) is None:
            self.damaged = True
            raise Corrupt(f"the block at {block} of {self.path} is not what was written; run headrace fsck")
        self._cache.put(key, data, block)
        return data, block

    def written(self, block: Block) -> None:
        """The file has this block now; memory need not, but readers of the newest keep finding it in
        the cache.
        """
        self.pending.pop(block.offset, None)
        self._cache.put((self.ident, self.number, block.offset), block.data, block.offset + BLOCK_BYTES)
        self.unsynced = True
