"""The statistics of `bench/ab.py`: a robust interval for the ratio of paired measurements, and its verdict.

Takes the logarithms of the ratios NEW/OLD, one for each pair. Must not know servers or workloads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

#: A change within 3 % does not count.
MARGIN = 0.03
#: Of each interval. Twenty workloads are judged in one run, so 95 % would miss too often.
CONFIDENCE = 0.99

FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference"


@dataclass(frozen=True)
class Interval:
    """A ratio with its confidence interval; unbounded where there are too few pairs."""

    ratio: float
    low: float
    high: float

    def verdict(self, margin: float = MARGIN) -> str:
        """Classify a ratio of costs: it is a difference only if the whole interval is beyond the margin."""
        if self.low > 1 + margin:
            return SLOWER
        if self.high < 1 / (1 + margin):
            return FASTER
        return NO_DIFFERENCE

    def is_conclusive(self, margin: float = MARGIN) -> bool:
        """Return whether more pairs are pointless: the interval is entirely beyond the margin, or entirely within it."""
        is_within = self.low >= 1 / (1 + margin) and self.high <= 1 + margin
        return is_within or self.verdict(margin) != NO_DIFFERENCE


def estimate(log_ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Estimate the ratio by Hodges and Lehmann: the median of the means of all pairs of measurements.

    The interval inverts Wilcoxon's signed-rank test. It assumes no distribution but symmetry, which the alternating
    order within pairs provides. Outliers widen it; they hardly move the estimate if they are fewer than a quarter.
    """
    if not log_ratios:
        return Interval(math.nan, 0.0, math.inf)
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(log_ratios, 2))
    middle = (averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]) / 2
    dropped = averages_to_drop(len(log_ratios), confidence)
    if dropped is None:
        return Interval(math.exp(middle), 0.0, math.inf)
    return Interval(math.exp(middle), math.exp(averages[dropped]), math.exp(averages[-1 - dropped]))


def averages_to_drop(pairs: int, confidence: float) -> int | None:
    """Return how many averages to drop at each end of the interval; None if there are too few pairs for an interval.

    This is the largest k for which the probability of a signed-rank sum of at most k does not exceed half of
    (1 - confidence). The distribution is exact: the number of sets of ranks with each sum.
    """
    sums = [1]
    for rank in range(1, pairs + 1):
        longer = sums + [0] * rank
        for total, ways in enumerate(sums):
            longer[total + rank] += ways
        sums = longer
    allowed = (1 - confidence) / 2 * 2**pairs
    reached = 0
    for k, ways in enumerate(sums):
        reached += ways
        if reached > allowed:
            return k - 1 if k else None
    return None
