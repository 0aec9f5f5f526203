"""How far a stream's sources have come: by index name, the newest origin sequence and which origin that was.

A position is a fact in the same frame as the copy it speaks of, and apart from the messages, so that neither a crash nor
a purge repeats or skips anything. It outlives its source: an entry that comes back goes on where it was. Where there is
none, as in a stream that was restored from a backup, the newest copy tells.
"""

from __future__ import annotations

import msgspec

from headrace.protocol import headers
from headrace.store import SEQ_MAX, Facts, Log

KEY = b"origins/"
SOURCE = b"Nats-Stream-Source"
#: How many messages are looked at, from the newest on.
LOOK_BACK_MAX = 50_000
_DIGITS_MAX = 20


class Position(msgspec.Struct, array_like=True):
    """`seq` 0: nothing yet. `identity` tells the origin from a later stream of the same name."""

    seq: int = 0
    identity: str = ""


def key_of(ident: int) -> bytes:
    """Where the positions of a stream are kept."""
    return KEY + b"%d" % ident


def read_source(value: bytes) -> tuple[str, Position] | None:
    """The index name and position in the header of a copy; None where it makes no sense."""
    words = value.decode("utf-8", "replace").split(" ")
    if len(words) < 5 or len(words[1]) > _DIGITS_MAX or not (words[1].isascii() and words[1].isdigit()):
        return None
    seq = int(words[1])
    if seq > SEQ_MAX:
        return None
    return f"{words[0]} {words[2]} {words[3]}", Position(seq, words[5] if len(words) > 5 else "")


def told_by_copies(log: Log, index: str) -> Position:
    """The position that the newest copy from a source tells; none when there is no such copy among the newest."""
    seq = log.prev(None, log.last_seq) if log.messages else 0
    for _ in range(LOOK_BACK_MAX):
        message = log.get(seq) if seq else None
        if message is None:
            return Position()
        copied = read_source(headers.get(message[2], SOURCE) or b"")
        if copied is not None and copied[0] == index:
            return copied[1]
        seq = log.prev(None, seq - 1) if seq > 1 else 0
    return Position()


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

    def knows(self, index: str) -> bool:
        """Whether this source ever had a position here."""
        return index in self._changed or index in self._known

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
