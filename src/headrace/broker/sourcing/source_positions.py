"""Positions of a stream's sources: by index name, the newest upstream sequence and which upstream that was.

A position is stored as metadata in the same frame as the copy it refers to, separate from the messages, so that neither
a crash nor a purge repeats or skips anything. It outlives its source: an entry that is added again continues where it
was. If there is no position, as in a stream restored from a backup, it is read from the newest copy.
"""

from __future__ import annotations

import msgspec

from headrace.protocol import headers
from headrace.storage import SEQ_MAX, MetadataStore, StreamLog

KEY = b"origins/"
SOURCE_HEADER = b"Nats-Stream-Source"
#: How many messages are searched, starting with the newest.
LOOK_BACK_MAX = 50_000
_DIGITS_MAX = 20


class SourcePosition(msgspec.Struct, array_like=True):
    """`seq` 0: nothing yet. `identity` distinguishes the upstream from a later stream with the same name."""

    seq: int = 0
    identity: str = ""


def make_key(ident: int) -> bytes:
    """Return the metadata key of a stream's positions."""
    return KEY + b"%d" % ident


def parse_source_header(value: bytes) -> tuple[str, SourcePosition] | None:
    """Parse the index name and position from the header of a copy; None if it is not valid."""
    tokens = value.decode("utf-8", "replace").split(" ")
    if len(tokens) < 5 or len(tokens[1]) > _DIGITS_MAX or not (tokens[1].isascii() and tokens[1].isdigit()):
        return None
    seq = int(tokens[1])
    if seq > SEQ_MAX:
        return None
    return f"{tokens[0]} {tokens[2]} {tokens[3]}", SourcePosition(seq, tokens[5] if len(tokens) > 5 else "")


def recover_from_copies(log: StreamLog, index: str) -> SourcePosition:
    """Return the position in the newest copy from a source; 0 if there is no copy among the newest messages."""
    seq = log.find_prev(None, log.last_seq) if log.messages else 0
    for _ in range(LOOK_BACK_MAX):
        message = log.get(seq) if seq else None
        if message is None:
            return SourcePosition()
        parsed = parse_source_header(headers.get(message[2], SOURCE_HEADER) or b"")
        if parsed is not None and parsed[0] == index:
            return parsed[1]
        seq = log.find_prev(None, seq - 1) if seq > 1 else 0
    return SourcePosition()


class SourcePositions:
    """The positions of one stream; `metadata` is None for a stream in memory, whose positions need not survive."""

    __slots__ = ("_key", "_metadata", "_saved", "_unsaved")

    def __init__(self, metadata: MetadataStore | None, ident: int) -> None:
        self._metadata = metadata
        self._key = make_key(ident)
        self._saved: dict[str, SourcePosition] = {}
        self._unsaved: dict[str, SourcePosition] = {}
        if metadata is not None:
            for block in (metadata.get(self._key), *metadata.get_operands(self._key)):
                if block:
                    self._saved |= msgspec.msgpack.decode(block, type=dict[str, SourcePosition])

    def get(self, index: str) -> SourcePosition:
        return self._unsaved.get(index) or self._saved.get(index) or SourcePosition()

    def has_position(self, index: str) -> bool:
        """Whether this source ever had a position in this stream."""
        return index in self._unsaved or index in self._saved

    def set(self, index: str, seq: int, identity: str) -> None:
        """Set a position; it is persisted with the open frame."""
        self._unsaved[index] = SourcePosition(seq, identity)

    def save(self) -> None:
        """Persist changed positions before the frame closes."""
        if not self._unsaved:
            return
        if self._metadata is not None:
            self._metadata.merge(self._key, msgspec.msgpack.encode(self._unsaved))
        self._saved |= self._unsaved
        self._unsaved.clear()

    def encode_snapshot(self) -> bytes:
        """Encode all persisted positions for a checkpoint: none may be ahead of its copy."""
        return msgspec.msgpack.encode(self._saved)
