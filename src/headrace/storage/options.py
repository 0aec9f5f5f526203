"""Options of a store: one frozen value, the only source of every limit."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes in bytes. Tests use tiny ones, so that every file is filled within a few messages."""

    journal_bytes: int = 16 * MIB  # one journal file
    journal_spares: int = 1  # journal files kept ready
    block_bytes: int = 64 * KIB  # at most, header included
    segment_bytes: int = 64 * MIB  # a segment is sealed when it would grow beyond
    segment_rows: int = 1 << 20  # ... or holds this many records
    large_bytes: int = 32 * KIB  # records of this size or more go straight to the segment
    checkpoint_bytes: int = 128 * MIB  # journaled (and large) bytes that trigger a checkpoint
    headroom_bytes: int = 64 * MIB  # less than this free: refuse to append
    cache_bytes: int = 32 * MIB  # verified blocks kept in memory
    compact_live_ratio: float = 0.5  # a sealed segment with a smaller live share is merged
    compress_min_saving: int = 4 * KIB  # a block that compression makes smaller by less stays plain
    flush_bytes: int = 4 * MIB  # written to segments in one submission
    sparse_rows: int = 1 << 14  # if most of these rows are dead, the next checkpoint seals the segment
    subjects_min: int = 4096  # dead subjects before a stream drops them
