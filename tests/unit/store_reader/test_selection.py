"""A selection chooses exactly the rows that a slow loop would choose."""

import itertools

import numpy as np
import pytest

from headrace.store.arrow import HEAD
from headrace.store.selection import Selection


def matches(pattern, subject):
    wanted, given = pattern.split(b"."), subject.split(b".")
    for i, token in enumerate(wanted):
        if token == b">" and i == len(wanted) - 1:
            return len(given) > i
        if i >= len(given) or (token not in (b"*", given[i])):
            return False
    return len(wanted) == len(given)


TOKENS = [b"a", b"b+", b"\xff", b"a\n"]
SUBJECTS = [b".".join(parts) for n in (1, 2, 3) for parts in itertools.product(TOKENS, repeat=n)]
PATTERNS = [
    b".".join(p) for n in (1, 2, 3) for p in itertools.product([b"a", b"b+", b"\xff", b"*", b">"], repeat=n)
]


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if b">" not in p[:-1]])
def test_patterns_match_as_the_broker_matches(pattern):
    mask = Selection((pattern,)).subject_mask(SUBJECTS)
    expected = [matches(pattern, subject) for subject in SUBJECTS]
    assert ([True] * len(SUBJECTS) if mask is None else mask.tolist()) == expected


def test_any_of_several_patterns_will_do():
    mask = Selection((b"a", b"b+.*")).subject_mask(SUBJECTS)
    assert mask.tolist() == [matches(b"a", s) or matches(b"b+.*", s) for s in SUBJECTS]


def test_no_pattern_wants_everything():
    assert Selection().subject_mask(SUBJECTS) is None


def rows():
    table = np.zeros(10, HEAD)
    table["seq"] = np.arange(1, 11)
    table["time_ns"] = 1000 + np.arange(10)
    table["ttl_s"][[2, 3]] = [1, 0xFFFFFFFF]
    return table


@pytest.mark.parametrize(
    ("selection", "as_of", "chosen"),
    [
        (Selection(), 0, None),
        (Selection(first_seq=3, end_seq=5), 0, [3, 4]),
        (Selection(first_seq=-4, end_seq=2), 0, [1]),
        (Selection(first_ns=1001, end_ns=1003), 0, [2, 3]),
        (Selection(), 1_000_001_001, None),
        (Selection(), 1_000_001_002, [1, 2, 4, 5, 6, 7, 8, 9, 10]),
        (Selection(end_seq=4), 2_000_000_000, [1, 2]),
    ],
)
def test_bounds_are_half_open_and_the_expired_are_left_out(selection, as_of, chosen):
    mask = selection.row_mask(rows(), as_of)
    assert (None if mask is None else rows()["seq"][mask].tolist()) == chosen
