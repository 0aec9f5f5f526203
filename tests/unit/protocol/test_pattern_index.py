"""`PatternIndex` finds the same pattern as comparing all of them, at a cost that does not grow with their number."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest

from headrace.protocol.pattern_index import NOT_FOUND, PatternIndex
from headrace.protocol.subjects import matches

WORDS = (b"a", b"b", b"c", b"*", b">")


def find_by_comparing(patterns: list[bytes], subject: bytes) -> int:
    return next((n for n, pattern in enumerate(patterns) if matches(pattern, subject)), NOT_FOUND)


def make_pattern(random: Random) -> bytes:
    words = [random.choice(WORDS[:4]) for _ in range(random.randrange(1, 5))]
    if random.random() < 0.3:
        words[-1] = b">"
    return b".".join(words)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_same_pattern_as_comparing_each(seed: int) -> None:
    random = Random(seed)
    for count in (0, 1, 4, 5, 40):
        patterns = [make_pattern(random) for _ in range(count)]
        index = PatternIndex(patterns)
        for _ in range(200):
            subject = b".".join(random.choice(WORDS) for _ in range(random.randrange(1, 6)))
            assert index.find_first(subject) == find_by_comparing(patterns, subject), (patterns, subject)


@pytest.mark.parametrize("subject", [b"", b".a", b"a.", b"a..b"])
@pytest.mark.parametrize("count", [1, 10])
def test_a_malformed_subject_matches_nothing(subject: bytes, count: int) -> None:
    assert not PatternIndex([b">"] * count).matches_any(subject)


def test_the_cost_does_not_grow_with_the_number_of_patterns() -> None:
    def cost_s(count: int) -> float:
        index = PatternIndex([b"a.%d.*.>" % n for n in range(count)])
        assert index.find_first(b"a.%d.x.y" % (count - 1)) == count - 1
        return min(_measure(index, b"a.%d.x.y" % (count - 1)) for _ in range(5))

    assert cost_s(8000) < 16 * cost_s(100)


def _measure(index: PatternIndex, subject: bytes) -> float:
    started_s = process_time()
    for _ in range(1000):
        index.find_first(subject)
    return process_time() - started_s
