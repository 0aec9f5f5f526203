"""Schema of a checkpoint: msgpack arrays, in field order.

Owns the field names and nothing else; `format` adds the checksums, `checkpoint_writer` writes these structures and
`recovery` reads them.
"""

from __future__ import annotations

import msgspec

from headrace.storage.damage_report import Damage


class SectionRef(msgspec.Struct, frozen=True, array_like=True):
    """Location of a section: in both copies of that checkpoint, at the same offset."""

    checkpoint: int
    offset: int
    length: int
    crc: int


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """A segment up to `end`; `live` is numpy.packbits of its rows (big endian bits), b"" if all are live."""

    number: int
    first_seq: int
    last_seq: int
    rows: int
    end: int
    live: bytes


class StreamCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """One stream as of a frame. `tail` has the records that are in no block yet; they follow the last segment."""

    name: str
    ident: int
    last_seq: int
    last_time_ns: int
    next_segment: int
    generation: int  # of the subjects file
    segments: list[SegmentState]
    tail: bytes
    tail_live: bytes
    is_compressed: bool = False  # new blocks are compressed


class MetadataEntryState(msgspec.Struct, frozen=True, array_like=True):
    """A metadata entry: its value (None if it has operands only) and the merge operands on top of it."""

    key: bytes
    value: bytes | None
    operands: list[bytes]


class StreamEntry(msgspec.Struct, frozen=True, array_like=True):
    """A stream in the root; its section contains all frames up to `frame`."""

    ident: int
    name: str
    frame: int
    ref: SectionRef


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A metadata shard in the root."""

    shard: int
    frame: int
    ref: SectionRef


class CheckpointRoot(msgspec.Struct, frozen=True, array_like=True):
    """The root of a checkpoint. Replay starts with the frame after `frame`.

    `frame_before_open` is the last frame that the store had before a process opened it: opening raises the numbers of
    frames, without new content. A later process that opens the store copies it, until one of them confirms that the store
    is the right one; then it is None, and the frames count as they are. Versions before 2026-11-19 left it out.
    """

    number: int
    frame: int
    next_ident: int
    streams: list[StreamEntry]
    shards: list[ShardEntry]
    damage: list[Damage]
    offline: list[StreamEntry]
    retained_files: list[str]  # damaged journal files: evidence, not to be reused
    writer: str = ""  # the version that wrote it; versions before 2026-11-16 left it out
    frame_before_open: int | None = None
