"""The index from subjects to consumers finds the same consumers as trying every filter, whatever came and went."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.broker.consumers.filter_index import FilterIndex
from headrace.protocol import subjects

PATTERNS = [b"a", b"a.b", b"a.*", b"*.b", b"a.>", b">", b"a.*.c", b"b.>", b"*.*.*"]
SUBJECTS = [b"a", b"b", b"a.b", b"b.b", b"a.c", b"a.b.c", b"b.c.d", b"c.b"]


def find_by_trying(consumers: dict[Any, list[bytes]], subject: bytes) -> set[Any]:
    return {
        consumer
        for consumer, filters in consumers.items()
        if not filters or any(subjects.matches(pattern, subject) for pattern in filters)
    }


@pytest.mark.parametrize("seed", range(10))
def test_consumers_that_come_and_go_are_found_by_subject(seed: int) -> None:
    rng = random.Random(seed)
    index, present = FilterIndex(), dict[Any, list[bytes]]()
    for number in range(300):
        if present and rng.random() < 0.5:
            consumer = rng.choice(list(present))
            index.remove(consumer, present.pop(consumer))
        else:
            consumer, filters = f"c{number}", rng.sample(PATTERNS, rng.randint(0, 3))
            present[consumer] = filters
            index.add(consumer, filters)  # type: ignore[arg-type]
        for subject in SUBJECTS:
            assert set(index.find_matching(subject)) == find_by_trying(present, subject)


def test_a_trie_of_removed_patterns_does_not_grow() -> None:
    index = FilterIndex()
    for number in range(1000):
        filters = [b"a.%d.*" % number]
        index.add("c", filters)  # type: ignore[arg-type]
        index.remove("c", filters)  # type: ignore[arg-type]
    assert index._root.is_empty
