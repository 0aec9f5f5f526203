"""Sizes of the stores under test: so small that every file is filled and replaced within a few messages."""

from headrace.storage import StoreOptions

KIB = 1 << 10

#: For the simulated disk.
TINY = StoreOptions(
    journal_bytes=16 * KIB,
    block_bytes=2 * KIB,
    segment_bytes=12 * KIB,
    segment_rows=64,
    large_bytes=4 * KIB,
    checkpoint_bytes=24 * KIB,
    headroom_bytes=64 * KIB,
    cache_bytes=16 * KIB,
    compress_min_saving=64,
    flush_bytes=8 * KIB,
    sparse_rows=8,
    subjects_min=3,
)

#: For real files: small too, but not replaced at every message.
SMALL = StoreOptions(
    journal_bytes=1024 * KIB,
    block_bytes=8 * KIB,
    segment_bytes=128 * KIB,
    segment_rows=1_000,
    large_bytes=16 * KIB,
    checkpoint_bytes=512 * KIB,
    headroom_bytes=1024 * KIB,
    cache_bytes=256 * KIB,
    compress_min_saving=64,
    flush_bytes=64 * KIB,
)
