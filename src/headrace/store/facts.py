"""Durable key -> value, and increments (notes) on top of a value.

Owns the facts of the whole store, cut into shards so that a checkpoint can take them one at a time.
Invariant: what `get`, `notes` and `items` say is what the frames up to and including the one under
construction say. Must not know what a fact is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

from headrace.probes import probe
from headrace.store.format import FORGET, NOTE, PUT, entry, keyed
from headrace.store.records import Gate
from headrace.store.states import FactState

SHARDS = 64
Fold = Callable[[bytes], bytes]


class _Fact:
    __slots__ = ("noted", "notes", "value")

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.notes: list[bytes] = []
        self.noted = False


class Shard:
    """The facts whose key falls into it, and the frame that last changed one of them."""

    __slots__ = ("changed_frame", "facts")

    def __init__(self) -> None:
        self.facts: dict[bytes, _Fact] = {}
        self.changed_frame = 0


class Facts:
    """put, delete and note go into the frame under construction."""

    def __init__(self, gate: Gate) -> None:
        self.shards = [Shard() for _ in range(SHARDS)]
        self.entries: list[bytes] = []  # for the frame, in order
        self._gate = gate
        self._folds: list[tuple[bytes, Fold]] = []

    def register(self, prefix: bytes, fold: Fold) -> None:
        """`fold(key)` gives the value that stands for value and notes of a key; asked at checkpoints.

        Notes on keys of this prefix are from now on not kept in memory.
        """
        self._folds.append((prefix, fold))

    def put(self, key: bytes, value: bytes) -> None:
        self._say(keyed(PUT, key, value), self.apply_put(key, value))

    def note(self, key: bytes, delta: bytes) -> None:
        shard = self.shards[crc32(key) % SHARDS]
        self._fact(shard, key, delta, self._fold(key) is None)
        self._say(keyed(NOTE, key, delta), shard)

    def delete(self, key: bytes) -> None:
        shard = self.shards[crc32(key) % SHARDS]
        if shard.facts.pop(key, None) is not None:
            self._say(entry(FORGET, 0, key), shard)

    def get(self, key: bytes) -> bytes | None:
        fact = self.shards[crc32(key) % SHARDS].facts.get(key)
        return fact.value if fact is not None else None

    def notes(self, key: bytes) -> list[bytes]:
        """The notes since the value; complete only as long as nobody registered a fold for the key."""
        fact = self.shards[crc32(key) % SHARDS].facts.get(key)
        return list(fact.notes) if fact is not None else []

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys with a value, in order."""
        found = [
            (key, fact.value)
            for shard in self.shards
            for key, fact in shard.facts.items()
            if key.startswith(prefix) and fact.value is not None
        ]
        return iter(sorted(found))

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Keys in order, those with notes only too."""
        return iter(sorted(key for shard in self.shards for key in shard.facts if key.startswith(prefix)))

    def _say(self, said: bytes, shard: Shard) -> None:
        self.entries.append(said)
        self._gate.pending += len(said)
        shard.changed_frame = self._gate.frame

    def _fold(self, key: bytes) -> Fold | None:
        for prefix, fold in self._folds:
            if key.startswith(prefix):
                return fold
        return None

    def _fact(self, shard: Shard, key: bytes, delta: bytes, keep: bool) -> None:
        fact = shard.facts.get(key)
        if fact is None:
            fact = shard.facts[key] = _Fact()
        fact.noted = True
        if keep:
            fact.notes.append(delta)

    # Replay and checkpoints

    def apply_put(self, key: bytes, value: bytes) -> Shard:
        shard = self.shards[crc32(key) % SHARDS]
        fact = shard.facts.get(key)
        if fact is None:
            fact = shard.facts[key] = _Fact()
        elif fact.noted:
            fact.notes, fact.noted = [], False
        fact.value = value
        return shard

    def apply_note(self, key: bytes, delta: bytes) -> None:
        self._fact(self.shards[crc32(key) % SHARDS], key, delta, True)

    def apply_forget(self, key: bytes) -> None:
        self.shards[crc32(key) % SHARDS].facts.pop(key, None)

    def capture(self, number: int) -> list[FactState]:
        """A shard as it is now, with notes folded into values where somebody can."""
        return [self._captured(key, fact) for key, fact in sorted(self.shards[number].facts.items())]

    def _captured(self, key: bytes, fact: _Fact) -> FactState:
        fold = self._fold(key) if fact.noted else None
        if fold is not None:
            probe("notes are folded")
            fact.value, fact.notes, fact.noted = fold(key), [], False
        return FactState(key, fact.value, list(fact.notes))

    def restore(self, number: int, states: list[FactState]) -> None:
        """The opposite of `capture`."""
        facts = self.shards[number].facts
        for state in states:
            fact = facts[state.key] = _Fact()
            fact.value, fact.notes, fact.noted = state.value, list(state.notes), bool(state.notes)
