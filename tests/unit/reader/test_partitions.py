"""Partitions cover a range of sequences without gaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.reader import options as o
from headrace.reader.batch_cast import SeqRange
from headrace.reader.partitions import split_range


@given(st.integers(1, 10**12), st.integers(0, 10**8), st.integers(1, 50), st.integers(1, 10**6))
def test_ranges_follow_each_other(start: int, length: int, partitions: int, most: int) -> None:
    given_options = {"stream": "S", "minPartitions": str(partitions), "maxMessagesPerPartition": str(most)}
    ranges = split_range(SeqRange(start, start + length), o.parse_read_options(given_options))
    places = [each.start for each in ranges] + [start + length]
    assert places[0] == start
    assert all(each.end == following for each, following in zip(ranges, places[1:], strict=True))
    assert all(each.start < each.end for each in ranges)
