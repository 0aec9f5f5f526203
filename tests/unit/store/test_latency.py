"""The histogram of commit times."""

import pytest

from headrace.store.latency import BOUNDS_US, Latency


@pytest.mark.parametrize("place", range(len(BOUNDS_US)))
def test_a_bound_includes_itself_and_nothing_above(place: int) -> None:
    latency = Latency()
    latency.note(BOUNDS_US[place] * 1000)
    latency.note(BOUNDS_US[place] * 1000 + 1000)
    assert latency.counts[place] == 1
    assert latency.counts[place + 1] == 1


def test_extremes_have_a_place() -> None:
    latency = Latency()
    latency.note(0)
    latency.note(10**12)
    assert (latency.counts[0], latency.counts[-1]) == (1, 1)
    assert (latency.count, latency.sum_us) == (2, 10**9)


def test_quantiles_are_bounds() -> None:
    latency = Latency()
    assert latency.quantile_us(0.5) == 0
    for _ in range(99):
        latency.note(100_000)
    latency.note(5_000_000)
    assert latency.quantile_us(0.5) == 128
    assert latency.quantile_us(0.99) == 128
    assert latency.quantile_us(1.0) == 8192
