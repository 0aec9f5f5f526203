"""The duplicate window: recent message ids, so that a repeated publish is answered with the sequence of the first one.

Every id is stored in the same frame as its message, so the window survives a crash exactly as the messages do, and also
when the messages themselves are gone (acknowledged, purged or rolled up). The compiled core has the ids in memory; this
module stores them as metadata, in blocks, each under a key of its own: a checkpoint never has to copy all ids at once, and
a block is deleted when its last id has left the window. Versions that know one block only must refuse a store with several.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from headrace._native import DedupWindow
from headrace.storage import MetadataStore, Store

DEDUP_KEY = b"ids/"
DEDUP_RANGE_KEY = b"idblocks/"
BLOCK_BYTES = 1 << 20
_DROPPED_PER_COMMIT = 1_000
_RANGE = struct.Struct("<QQ")


#: The format feature that more than one block needs.
FEATURE = "facts/id-blocks"


def dedup_key(ident: int) -> bytes:
    """Return the key of the first block of a stream's message ids."""
    return DEDUP_KEY + b"%d" % ident


def dedup_block_key(ident: int, number: int) -> bytes:
    """Return the key of a block of a stream's message ids. Early versions had all ids in what is block 0 now."""
    return dedup_key(ident) + (b"/%d" % number if number else b"")


def dedup_range_key(ident: int) -> bytes:
    """Return the key of the numbers of the first and last block of message ids."""
    return DEDUP_RANGE_KEY + b"%d" % ident


class _IdBlock(NamedTuple):
    """A stored block: its key, and the positions of its first id and of the end."""

    key: bytes
    first: int
    end: int


class StreamDedupWindow(DedupWindow):
    """The ids of one stream, for `window_ns` after they were stored."""

    __slots__ = ("_block_bytes", "_blocks", "_features", "_first_position", "_ident", "_metadata", "_number")

    def __init__(self, store: Store | None, ident: int, window_ns: int) -> None:
        """`store` is None for streams in memory, whose ids need not survive."""
        super().__init__(window_ns)
        self._metadata = store.metadata if store is not None else None
        self._features = store.log_context.features if store is not None else None
        self._ident = ident
        self._blocks: deque[_IdBlock] = deque()  # complete ones
        self._number = 0  # of the block that grows, which begins at `_first_position`
        self._first_position = self._block_bytes = 0
        if self._metadata is not None:
            self._load(self._metadata)

    def _load(self, metadata: MetadataStore) -> None:
        first, last = _RANGE.unpack(metadata.get(dedup_range_key(self._ident)) or bytes(_RANGE.size))
        for number in range(first, last + 1):
            key = dedup_block_key(self._ident, number)
            for data in (metadata.get(key) or b"", *metadata.get_operands(key)):
                self.restore(data)
                self._block_bytes += len(data)
            if number < last:
                self._complete_block(key)
        self._number = last

    def _complete_block(self, key: bytes) -> None:
        self._blocks.append(_IdBlock(key, self._first_position, self.saved_position))
        self._first_position, self._block_bytes = self.saved_position, 0

    def save(self, now_ns: int) -> None:
        """Drop expired ids and their blocks, and put new ids into the open frame; called once per commit."""
        self.expire(now_ns, _DROPPED_PER_COMMIT)
        metadata, features = self._metadata, self._features
        if metadata is None or features is None:
            return
        if self._block_bytes >= BLOCK_BYTES and features.request(FEATURE):
            self._complete_block(dedup_block_key(self._ident, self._number))
            self._number += 1
            self._save_range(metadata)
        if unsaved := self.drain_unsaved():
            metadata.merge(dedup_block_key(self._ident, self._number), unsaved)
            self._block_bytes += len(unsaved)
        if self._blocks and self._blocks[0].end <= self.first_position:
            metadata.delete(self._blocks.popleft().key)
            self._save_range(metadata)

    def _save_range(self, metadata: MetadataStore) -> None:
        numbers = (self._number - len(self._blocks), self._number)
        metadata.put(dedup_range_key(self._ident), _RANGE.pack(*numbers))

    def encode_block(self, key: bytes) -> bytes:
        """Return the ids of a stored block that are still known: they replace what was stored one by one."""
        if key == dedup_block_key(self._ident, self._number):
            return self.encode(self._first_position, self.saved_position)
        return next((self.encode(block.first, block.end) for block in self._blocks if block.key == key), b"")

    def delete_stored(self) -> None:
        """Delete all ids from the metadata: the stream is deleted, or keeps no ids any more."""
        metadata = self._metadata
        if metadata is not None:
            for block in self._blocks:
                metadata.delete(block.key)
            metadata.delete(dedup_block_key(self._ident, self._number))
            metadata.delete(dedup_range_key(self._ident))
