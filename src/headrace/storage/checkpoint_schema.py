"""Schema of a checkpoint: msgpack arrays, in field order.

Owns the field names and nothing else; `format` adds the checksums, `checkpoint_writer` writes these structures and
`recovery` reads them.
"""

from __future__ import annotations

import msgspec

from headrace.storage.damage_report import Damage


class SectionRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a section lies: in both files of that checkpoint, at the same place."""

    checkpoint: int
    offset: int
    length: int
    crc: int


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """A segment up to `end`; `live` is numpy.packbits of its rows (big endian bits), b"" = all live."""

    number: int
    first_seq: int
    last_seq: int
    rows: int
    end: int
    live: bytes


class StreamCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """One stream as of a frame. `tail`: records that are in no block yet; they follow the last segment."""

    name: str
    ident: int
    last_seq: int
    last_time_ns: int
    next_segment: int
    generation: int  # of the subjects file
    segments: list[SegmentState]
    tail: bytes
    tail_live: bytes


class MetadataEntryState(msgspec.Struct, frozen=True, array_like=True):
    """A fact: its value (None: notes without a value) and the notes on top of it."""

    key: bytes
    value: bytes | None
    operands: list[bytes]


class StreamEntry(msgspec.Struct, frozen=True, array_like=True):
    """A stream in the root; frames up to `frame` are contained in its section."""

    ident: int
    name: str
    frame: int
    ref: SectionRef


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard of the facts in the root."""

    shard: int
    frame: int
    ref: SectionRef


class CheckpointRoot(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint says as a whole. Replay starts with the frame after `frame`."""

    number: int
    frame: int
    next_ident: int
    streams: list[StreamEntry]
    shards: list[ShardEntry]
    damage: list[Damage]
    offline: list[StreamEntry]
    retained_files: list[str]  # damaged files of the journal: evidence, not to be recycled
    writer: str = ""  # the version that wrote it; versions before 2026-11-16 left it out
