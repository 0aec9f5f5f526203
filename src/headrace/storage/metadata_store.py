"""Durable key-value metadata, with merge operands on top of values.

Owns the metadata of the whole store, split into shards so that a checkpoint can capture them one at a time. Invariant:
`get`, `get_operands` and `items` reflect all frames up to and including the open one. Must not know what a key is
about.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple
from zlib import crc32

import msgspec

from headrace.code_probes import sometimes
from headrace.storage.checkpoint_schema import MetadataEntryState
from headrace.storage.format import DELETE_KEY, MERGE, PUT, encode_entry, encode_keyed_entry
from headrace.storage.native_records import OpenFrame

SHARDS = 64
#: A value that is encoded in slices. It must be what it was when the steps were made, whatever happens in between.
ValueSteps = Generator[None, None, bytes]
MetadataCompactor = Callable[[bytes], bytes | ValueSteps]


class _MetadataEntry:
    __slots__ = ("has_operands", "operands", "value")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.operands: list[bytes] = []
        self.has_operands = False


class MetadataShard:
    """The metadata entries whose keys hash to this shard, and the frame that last changed one of them."""

    __slots__ = ("changed_frame", "entries")

    def __init__(self) -> None:
        self.entries: dict[bytes, _MetadataEntry] = {}
        self.changed_frame = 0


class ShardCapture:
    """The state of a shard at one moment, of which some values are still to be encoded."""

    def __init__(self) -> None:
        self._states: list[MetadataEntryState] = []
        self._unfinished: list[tuple[int, ValueSteps]] = []

    def add(self, key: bytes, value: bytes | ValueSteps | None, operands: list[bytes]) -> None:
        """Add the state of an entry."""
        if isinstance(value, Generator):
            self._unfinished.append((len(self._states), value))
            value = None
        self._states.append(MetadataEntryState(key, value, operands))

    def encode_more(self) -> bool:
        """Encode a slice of what is left; return whether all values are encoded."""
        if self._unfinished:
            at, steps = self._unfinished[-1]
            try:
                next(steps)
            except StopIteration as finished:
                self._states[at] = msgspec.structs.replace(self._states[at], value=finished.value)
                self._unfinished.pop()
        return not self._unfinished

    def encode(self) -> bytes:
        """Encode the shard as a section of a checkpoint."""
        return msgspec.msgpack.encode(self._states)


class PreparedDelete(NamedTuple):
    """The deletion of a key, encoded; see `MetadataStore.delete_prepared`."""

    key: bytes
    shard: MetadataShard
    encoded: bytes


class MetadataStore:
    """Puts, deletes and merges become part of the open frame."""

    def __init__(self, open_frame: OpenFrame) -> None:
        self.shards = [MetadataShard() for _ in range(SHARDS)]
        self.frame_entries: list[bytes] = []  # entries of the open frame, in order
        self._open_frame = open_frame
        self._compactors: list[tuple[bytes, MetadataCompactor]] = []

    def register_compactor(self, prefix: bytes, compactor: MetadataCompactor) -> None:
        """Register a function that returns the value which replaces value and operands of a key; called at checkpoints.

        From now on, operands of keys with this prefix are not kept in memory.
        """
        self._compactors.append((prefix, compactor))

    def put(self, key: bytes, value: bytes) -> None:
        self._add_to_frame(encode_keyed_entry(PUT, key, value), self.apply_put(key, value))

    def merge(self, key: bytes, operand: bytes) -> None:
        shard = self.shards[crc32(key) % SHARDS]
        self._add_operand(shard, key, operand, self._find_compactor(key) is None)
        self._add_to_frame(encode_keyed_entry(MERGE, key, operand), shard)

    def delete(self, key: bytes) -> None:
        shard = self.shards[crc32(key) % SHARDS]
        if shard.entries.pop(key, None) is not None:
            self._add_to_frame(encode_entry(DELETE_KEY, 0, key), shard)

    def prepare_delete(self, key: bytes) -> PreparedDelete:
        """Return what `delete_prepared` needs to delete a key."""
        return PreparedDelete(key, self.shards[crc32(key) % SHARDS], encode_entry(DELETE_KEY, 0, key))

    def delete_prepared(self, deletes: list[PreparedDelete]) -> None:
        """Delete thousands of keys in one frame, with as little work as possible."""
        deleted = [each for each in deletes if each.shard.entries.pop(each.key, None) is not None]
        for shard in {id(each.shard): each.shard for each in deleted}.values():
            shard.changed_frame = self._open_frame.number
        if deleted:
            self.frame_entries.append(b"".join([each.encoded for each in deleted]))
            self._open_frame.pending_bytes += len(self.frame_entries[-1])

    def get(self, key: bytes) -> bytes | None:
        metadata_entry = self.shards[crc32(key) % SHARDS].entries.get(key)
        return metadata_entry.value if metadata_entry is not None else None

    def get_operands(self, key: bytes) -> list[bytes]:
        """Return the operands since the value; complete only if no compactor is registered for the key."""
        metadata_entry = self.shards[crc32(key) % SHARDS].entries.get(key)
        return list(metadata_entry.operands) if metadata_entry is not None else []

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with a value, in order."""
        found = [
            (key, metadata_entry.value)
            for shard in self.shards
            for key, metadata_entry in shard.entries.items()
            if key.startswith(prefix) and metadata_entry.value is not None
        ]
        return iter(sorted(found))

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Yield keys in order, including those with operands only."""
        return iter(sorted(key for shard in self.shards for key in shard.entries if key.startswith(prefix)))

    def _add_to_frame(self, encoded: bytes, shard: MetadataShard) -> None:
        self.frame_entries.append(encoded)
        self._open_frame.pending_bytes += len(encoded)
        shard.changed_frame = self._open_frame.number

    def _find_compactor(self, key: bytes) -> MetadataCompactor | None:
        for prefix, compactor in self._compactors:
            if key.startswith(prefix):
                return compactor
        return None

    def _add_operand(self, shard: MetadataShard, key: bytes, operand: bytes, in_memory: bool) -> None:
        metadata_entry = shard.entries.get(key)
        if metadata_entry is None:
            metadata_entry = shard.entries[key] = _MetadataEntry()
        metadata_entry.has_operands = True
        if in_memory:
            metadata_entry.operands.append(operand)

    # Replay and checkpoints

    def apply_put(self, key: bytes, value: bytes) -> MetadataShard:
        shard = self.shards[crc32(key) % SHARDS]
        metadata_entry = shard.entries.get(key)
        if metadata_entry is None:
            metadata_entry = shard.entries[key] = _MetadataEntry()
        elif metadata_entry.has_operands:
            metadata_entry.operands, metadata_entry.has_operands = [], False
        metadata_entry.value = value
        return shard

    def apply_merge(self, key: bytes, operand: bytes) -> None:
        self._add_operand(self.shards[crc32(key) % SHARDS], key, operand, True)

    def apply_delete(self, key: bytes) -> None:
        self.shards[crc32(key) % SHARDS].entries.pop(key, None)

    def capture_shard(self, number: int) -> ShardCapture:
        """Capture the current state of a shard, with operands compacted into values where a compactor is registered."""
        capture = ShardCapture()
        for key, metadata_entry in sorted(self.shards[number].entries.items()):
            self._capture_entry(capture, key, metadata_entry)
        return capture

    def _capture_entry(self, capture: ShardCapture, key: bytes, metadata_entry: _MetadataEntry) -> None:
        compactor = self._find_compactor(key) if metadata_entry.has_operands else None
        if compactor is None:
            capture.add(key, metadata_entry.value, list(metadata_entry.operands))
            return
        sometimes("merge operands are compacted")
        value = compactor(key)
        if isinstance(value, bytes):
            metadata_entry.value, metadata_entry.operands, metadata_entry.has_operands = value, [], False
        # Else the entry stays as it is: the next checkpoint encodes its value again.
        capture.add(key, value, [])

    def restore_shard(self, number: int, states: list[MetadataEntryState]) -> None:
        """Restore a shard from the result of `capture_shard`."""
        entries = self.shards[number].entries
        for state in states:
            metadata_entry = entries[state.key] = _MetadataEntry()
            metadata_entry.value, metadata_entry.operands, metadata_entry.has_operands = (
                state.value,
                list(state.operands),
                bool(state.operands),
            )
