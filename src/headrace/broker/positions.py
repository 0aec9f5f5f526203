"""How far a stream's sources have come: by index name, the newest origin sequence and which origin that was.

A position is a fact in the same frame as the copy it speaks of, and apart from the messages, so that neither a crash nor
a purge repeats or skips anything. It outlives its source: an entry that comes back goes on where it was.
"""

from __future__ import annotations

import msgspec

from headrace.store import Facts

KEY = b"origins/"


class Position(msgspec.Struct, array_like=True):
    """`seq` 0: nothing yet. `identity` tells the origin from a later stream of the same name."""

    seq: int = 0
    identity: str = ""


def key_of(ident: int) -> bytes:
    """Where the positions of a stream are kept."""
    return KEY + b"%d" % ident


class Positions:
    """The positions of one stream; `facts` is None for a stream in memory, whose positions need not survive."""

    __slots__ = ("_changed", "_facts", "_key", "_known")

    def __init__(self, facts: Facts | None, ident: int) -> None:
        self._facts = facts
        self._key = key_of(ident)
        self._known: dict[str, Position] = {}
        self._changed: dict[str, Position] = {}
        if facts is not None:
            for block in (facts.get(self._key), *facts.notes(self._key)):
                if block:
                    self._known |= msgspec.msgpack.decode(block, type=dict[str, Position])

    def get(self, index: str) -> Position:
        return self._changed.get(index) or self._known.get(index) or Position()

    def set(self, index: str, seq: int, identity: str) -> None:
        """To be written down with the frame under construction."""
        self._changed[index] = Position(seq, identity)

    def save(self) -> None:
        """The frame is about to close."""
        if self._changed and self._facts is not None:
            self._facts.note(self._key, msgspec.msgpack.encode(self._changed))
        self._known |= self._changed
        self._changed.clear()

    def snapshot(self) -> bytes:
        """All that are written down, for a checkpoint: none may be ahead of its copy."""
        return msgspec.msgpack.encode(self._known)
