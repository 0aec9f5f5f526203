"""Latency histogram with bounds that double; cheap enough to record every commit.

One thread records and other threads read at any time: a reader may miss the newest sample but never sees an
inconsistent one.
"""

from __future__ import annotations

#: Upper bounds in microseconds: 32 us to about 4 s; longer durations count in the last bucket.
BOUNDS_US = tuple(32 << power for power in range(18))
LAST_BUCKET = len(BOUNDS_US)


class LatencyHistogram:
    """Counts by duration, the number of samples and their sum."""

    __slots__ = ("count", "counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_US) + 1)
        self.count = 0
        self.sum_us = 0

    def record(self, duration_ns: int) -> None:
        """Record one sample."""
        us = duration_ns // 1000
        bucket = ((us - 1) >> 5).bit_length() if us > BOUNDS_US[0] else 0
        self.counts[bucket if bucket < LAST_BUCKET else LAST_BUCKET] += 1
        self.count += 1
        self.sum_us += us

    def quantile_us(self, share: float) -> int:
        """Return the bound below which this share of all samples is; 0 if there are none."""
        target_count, seen = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= target_count:
                return BOUNDS_US[min(bucket, len(BOUNDS_US) - 1)]
        return 0
