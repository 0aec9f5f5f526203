"""Permissions match the simple model, for every small set of rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from headrace.broker import Permissions
from support.permission_model import UNIVERSE, Rules, meant, small_patterns

PATTERNS = small_patterns()
QUEUES = (None, "q", "r")


def ours(rules: Rules) -> Permissions:
    def entries(texts: tuple[str, ...]) -> list[bytes]:
        return [text.encode() for text in texts]

    return Permissions(
        publish_allow=None if rules.publish_allow is None else entries(rules.publish_allow),
        publish_deny=entries(rules.publish_deny),
        subscribe_allow=entries(rules.subscribe_allow or ()),
        subscribe_deny=entries(rules.subscribe_deny),
    )


def lists(most: int) -> Iterator[tuple[str, ...]]:
    for size in range(most + 1):
        yield from itertools.combinations(PATTERNS, size)


def test_publish_permissions_match_the_model() -> None:
    """Every list of up to two allowed and one denied pattern, and every subject."""
    allows: list[tuple[str, ...] | None] = [None, *lists(2)]
    for allow, deny in itertools.product(allows, lists(1)):
        rules = Rules(publish_allow=allow, publish_deny=deny)
        judge = ours(rules)
        for subject in UNIVERSE:
            assert judge.may_publish(subject.encode()) is rules.may_publish(subject), (rules, subject)


def check_subscribing(rules: Rules) -> None:
    judge = ours(rules)
    for pattern, queue in itertools.product(PATTERNS, QUEUES):
        name = queue.encode() if queue else None
        accepted = judge.may_subscribe(pattern.encode(), name)
        assert accepted is rules.may_subscribe(pattern, queue), (rules, pattern, queue)
        if accepted:
            watched = judge.denies_part_of(pattern.encode(), name)
            got = {s for s in meant(pattern) if not (watched and judge.denies_delivery(s.encode(), name))}
            assert got == rules.delivered(pattern, queue), (rules, pattern, queue)


@pytest.mark.parametrize("queued", [False, True])
def test_subscribing_with_one_rule_each(queued: bool) -> None:
    """Every pair of an allowed and a denied pattern, with and without a queue, against every subscription."""
    ends = ("", " q", " *") if queued else ("",)
    entries = [(), *((pattern + end,) for pattern in PATTERNS for end in ends)]
    denials = [(), *((pattern + end,) for pattern in PATTERNS for end in ends[:2])]
    for allow, deny in itertools.product(entries, denials):
        check_subscribing(Rules(subscribe_allow=allow, subscribe_deny=deny))


def test_subscribing_with_two_rules() -> None:
    """A second rule widens what is allowed, or narrows the queues; two denials add up."""
    mixed = [pattern + end for pattern in ("a", "*", ">", "a.*", "*.b") for end in ("", " q")]
    for allow in itertools.combinations(mixed, 2):
        check_subscribing(Rules(subscribe_allow=allow, subscribe_deny=("a.b",)))
    for deny in itertools.combinations(mixed, 2):
        check_subscribing(Rules(subscribe_deny=deny))
