"""The histogram of commit times."""

import pytest

from headrace.storage.io.latency import BOUNDS_US, LatencyHistogram


@pytest.mark.parametrize("place", range(len(BOUNDS_US)))
def test_a_bound_includes_itself_and_nothing_above(place: int) -> None:
    latency = LatencyHistogram()
    latency.record(BOUNDS_US[place] * 1000)
    latency.record(BOUNDS_US[place] * 1000 + 1000)
    assert latency.counts[place] == 1
    assert latency.counts[place + 1] == 1


def test_extremes_have_a_place() -> None:
    latency = LatencyHistogram()
    latency.record(0)
    latency.record(10**12)
    assert (latency.counts[0], latency.counts[-1]) == (1, 1)
    assert (latency.count, latency.sum_us) == (2, 10**9)


def test_quantiles_are_bounds() -> None:
    latency = LatencyHistogram()
    assert latency.quantile_us(0.5) == 0
    for _ in range(99):
        latency.record(100_000)
    latency.record(5_000_000)
    assert latency.quantile_us(0.5) == 128
    assert latency.quantile_us(0.99) == 128
    assert latency.quantile_us(1.0) == 8192
