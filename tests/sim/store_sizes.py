"""Sizes of simulated stores: files are filled and replaced within a few messages, or hardly ever."""

from headrace.storage import StoreOptions
from headrace.storage.log import renumbering

KIB = 1 << 10

#: Settings for `module_settings`: subjects get new ids in many slices.
SMALL_SLICES = ((renumbering, "SUBJECTS_PER_SLICE", 2), (renumbering, "SUBJECTS_AT_ONCE", 1))

SIZES = (
    StoreOptions(
        journal_bytes=64 * KIB,
        block_bytes=2 * KIB,
        segment_bytes=12 * KIB,
        segment_rows=64,
        large_bytes=4 * KIB,
        checkpoint_bytes=48 * KIB,
        headroom_bytes=64 * KIB,
        cache_bytes=16 * KIB,
        flush_bytes=8 * KIB,
        sparse_rows=8,
        subjects_min=3,
        compress_min_saving=64,
    ),
    StoreOptions(
        journal_bytes=256 * KIB,
        block_bytes=8 * KIB,
        segment_bytes=64 * KIB,
        segment_rows=500,
        large_bytes=16 * KIB,
        checkpoint_bytes=256 * KIB,
        headroom_bytes=256 * KIB,
        cache_bytes=64 * KIB,
        flush_bytes=32 * KIB,
        sparse_rows=50,
        subjects_min=20,
        compress_min_saving=64,
    ),
)
