"""Messages that are removed between planning and reading, and how a snapshot lists them."""

from __future__ import annotations

import numpy as np

from headrace.tables.gap_finder import GapFinder, count_sequences, format_gaps


class Stream:
    """The first sequence of a stream, and how often it was asked for."""

    def __init__(self) -> None:
        self.first_seq = 1
        self.requests = 0

    def find_first_seq(self) -> int:
        self.requests += 1
        return self.first_seq


def rows(*seqs: int) -> np.ndarray:
    return np.array(seqs, np.int64)


def test_rows_without_holes_cost_no_request() -> None:
    stream = Stream()
    gaps = GapFinder(5, stream.find_first_seq)
    gaps.on_rows(rows(5, 6, 7))
    gaps.on_rows(rows())
    gaps.on_rows(rows(8))
    gaps.on_end(9)
    assert (gaps.take(), stream.requests) == ([], 0)


def test_only_holes_below_the_first_sequence_are_gaps() -> None:
    stream = Stream()
    gaps = GapFinder(5, stream.find_first_seq)
    gaps.on_rows(rows(5, 7, 8))  # 6 was deleted
    stream.first_seq = 14
    gaps.on_rows(rows(12, 15, 20))
    assert (gaps.take(), stream.requests) == ([(9, 11), (13, 13)], 2)
    stream.first_seq = 100
    gaps.on_end(31)
    assert gaps.take() == [(21, 30)]
    gaps.on_end(31)
    assert gaps.take() == []


def test_the_end_of_a_range_that_was_deleted_is_no_gap() -> None:
    stream = Stream()
    gaps = GapFinder(5, stream.find_first_seq)
    gaps.on_rows(rows(5))
    gaps.on_end(31)
    assert gaps.take() == []


def test_a_snapshot_lists_a_hundred_gaps() -> None:
    gaps = [(each, each + 1) for each in range(10, 10_000, 10)]
    listed = format_gaps(gaps).split(",")
    assert (listed[0], listed[98], listed[-1], len(listed)) == ("10-11", "990-991", "1000-9991", 100)
    assert format_gaps(gaps[:2]) == "10-11,20-21"
    assert count_sequences(gaps) == 2 * len(gaps)
