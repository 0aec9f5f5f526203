"""A set of patterns gives the same result as comparing every pair, with far fewer steps."""

from __future__ import annotations

import random

import pytest

from headrace.protocol import subjects
from headrace.protocol.pattern_set import PatternSet, TooManyVisits


def make_pattern(rng: random.Random) -> bytes:
    length = rng.randint(1, 4)
    words = [rng.choice([b"a", b"b", b"c", b"*"]) for _ in range(length)]
    if rng.random() < 0.2:
        words[-1] = b">"
    return b".".join(words)


@pytest.mark.parametrize("seed", range(40))
def test_answers_equal_those_of_pairwise_comparison(seed: int) -> None:
    rng = random.Random(seed)
    patterns = [make_pattern(rng) for _ in range(rng.randint(0, 12))]
    found = PatternSet(patterns)
    for _ in range(60):
        asked = make_pattern(rng)
        assert found.overlaps(asked) == any(subjects.overlaps(asked, each) for each in patterns)
        assert found.covers(asked) == any(subjects.is_subset(asked, each) for each in patterns)
        assert (asked in found) == (asked in patterns)


@pytest.mark.parametrize("seed", range(10))
def test_a_discarded_pattern_counts_no_more(seed: int) -> None:
    rng = random.Random(seed)
    patterns = [make_pattern(rng) for _ in range(10)]
    found = PatternSet(patterns)
    gone = patterns.pop(rng.randrange(10))
    found.discard(gone)
    found.discard(b"never.added")
    for _ in range(60):
        asked = make_pattern(rng)
        assert found.overlaps(asked) == any(subjects.overlaps(asked, each) for each in patterns)


def test_steps_grow_with_the_number_of_patterns_not_with_its_square() -> None:
    steps = []
    for count in (1_000, 8_000):
        found = PatternSet(b"orders.%d.*.new" % number for number in range(count))
        for number in range(count):
            found.discard(b"orders.%d.*.new" % number)
            assert not found.overlaps(b"orders.%d.*.new" % number)
            found.add(b"orders.%d.*.new" % number)
        steps.append(found.visits)
    assert steps[1] < 9 * steps[0]


def test_a_limit_on_steps() -> None:
    found = PatternSet((b"a%d.x" % number for number in range(1_000)), visits_max=500)
    assert not found.overlaps(b"a1.y")
    with pytest.raises(TooManyVisits):
        found.overlaps(b"*.y")


def test_nothing_is_left_of_removed_patterns() -> None:
    found = PatternSet([b"a.b.c", b"a.b", b"a.b"])
    found.discard(b"a.b.c")
    found.discard(b"a.x")
    found.discard(b"a.b.c.d")
    assert b"a.b" in found
    assert not found.overlaps(b"a.b.>")
    found.discard(b"a.b")
    found.discard(b"a.b")
    assert not found.overlaps(b">")
    assert not found._root.children
