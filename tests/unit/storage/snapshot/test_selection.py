"""A selection has exactly the rows that a simple loop would select."""

import itertools

import numpy as np
import pytest

from headrace.storage.snapshot.selection import Selection


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


TIME = 1000 + np.arange(10, dtype=np.uint64)
TTL = np.array([0, 0, 1, 0xFFFFFFFF, 0, 0, 0, 0, 0, 0], np.uint32)


@pytest.mark.parametrize(
    ("selection", "as_of", "chosen"),
    [
        (Selection(), 0, range(10)),
        (Selection(first_ns=1001, end_ns=1003), 0, [1, 2]),
        (Selection(), 1_000_001_001, range(10)),
        (Selection(), 1_000_001_002, [0, 1, 3, 4, 5, 6, 7, 8, 9]),
        (Selection(end_ns=1004), 2_000_000_000, [0, 1, 3]),
    ],
)
def test_times_are_half_open_and_the_expired_are_left_out(selection, as_of, chosen):
    mask = selection.row_mask(TIME, TTL, as_of)
    assert np.flatnonzero(mask).tolist() == list(chosen)


def test_without_lifetimes_or_bounds_there_is_no_mask():
    assert Selection().row_mask(TIME, np.zeros(10, np.uint32), 5_000_000_000) is None


@pytest.mark.parametrize(
    ("first", "end", "span"),
    [
        (None, None, (0, 4)),
        (3, 8, (1, 3)),
        (4, 7, (2, 2)),
        (-5, 1, (0, 0)),
        (0, 2, (0, 1)),
        (100, None, (4, 4)),
    ],
)
def test_sequences_are_half_open(first, end, span):
    seqs = np.array([1, 3, 7, 9], np.uint64)
    assert Selection(first_seq=first, end_seq=end).seq_span(seqs) == span
