"""Comparing copies agrees with comparing sets."""

import random

from headrace.migrate.sequence_compare import LiveSequences, compare


def make_live(first: int, last: int, live: set[int]) -> LiveSequences:
    """Return the sequences as a server reports them: an empty stream begins after its last sequence."""
    if not live:
        return LiveSequences(last + 1, last, 0, frozenset())
    first = min(live)
    return LiveSequences(first, last, len(live), frozenset(set(range(first, last + 1)) - live))


def find_extra(difference_extra: tuple[int, ...], below: int, live: set[int]) -> set[int]:
    return set(difference_extra) | {seq for seq in live if seq < below}


def test_a_comparison_finds_what_sets_find() -> None:
    for seed in range(3000):
        chance = random.Random(seed)
        last = chance.randint(0, 12)
        numbers = range(1, last + 1)
        original = {seq for seq in numbers if chance.random() < 0.6}
        copied_last = chance.randint(0, last + 2)
        copy = {seq for seq in range(1, copied_last + 1) if chance.random() < 0.7}
        found = compare(make_live(1, last, original), make_live(1, copied_last, copy))
        assert found.missing == len(original - copy), seed
        assert found.first_missing == min(original - copy, default=0), seed
        assert find_extra(found.extra, found.extra_below, copy) == copy - original, seed
        assert found.is_empty == (original == copy), seed


def test_without_a_complete_list_the_counts_decide() -> None:
    original = LiveSequences(1, 10, 6, frozenset({2}))
    assert not original.is_complete
    assert compare(original, LiveSequences(1, 10, 6, frozenset())).missing == 0
    assert compare(original, LiveSequences(1, 10, 5, frozenset())).missing == 1
    assert compare(original, LiveSequences(1, 8, 6, frozenset())).missing == 2
