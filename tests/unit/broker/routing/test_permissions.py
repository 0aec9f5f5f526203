"""Allow and deny lists."""

import pytest

from headrace.broker import Permissions


def test_no_rules_allow_everything() -> None:
    rules = Permissions()
    assert rules.may_publish(b"a")
    assert rules.may_subscribe(b">", None)
    assert not rules.denies_part_of(b">")


def test_an_empty_publish_list_allows_nothing_an_empty_subscribe_list_all() -> None:
    rules = Permissions(publish_allow=[], subscribe_allow=[])
    assert not rules.may_publish(b"a")
    assert rules.may_subscribe(b"a", None)


def test_deny_overrides_allow() -> None:
    rules = Permissions(publish_allow=[b"a.>"], publish_deny=[b"a.*.secret"])
    assert rules.may_publish(b"a.b")
    assert not rules.may_publish(b"a.b.secret")
    assert not rules.may_publish(b"b")


@pytest.mark.parametrize(
    ("pattern", "queue", "allowed"),
    [
        (b"foo", None, True),
        (b"foo", b"v1", True),
        (b"foo", b"v2", False),
        (b"bar", None, False),
        (b"bar", b"w.1", True),
        (b"open", b"any", True),
        (b">", None, False),
        (b"wide.*", None, True),
        (b"wide.>", None, False),
    ],
)
def test_queues_in_rules(pattern: bytes, queue: bytes | None, allowed: bool) -> None:
    rules = Permissions(subscribe_allow=[b"foo", b"foo v1", b"bar w.*", b"open", b"wide.*"])
    assert rules.may_subscribe(pattern, queue) is allowed


def test_a_narrower_denial_withholds() -> None:
    rules = Permissions(subscribe_deny=[b"a.no", b"b q"])
    assert rules.may_subscribe(b"a.*", None)
    assert not rules.may_subscribe(b"a.no", None)
    assert rules.may_subscribe(b"b", None)
    assert not rules.may_subscribe(b"b", b"q")
    assert rules.denies_part_of(b"a.*")
    assert not rules.denies_part_of(b"b.*")
    assert rules.denies_delivery(b"a.no")
    assert not rules.denies_delivery(b"a.yes")


def test_decisions_are_remembered_within_bounds() -> None:
    rules = Permissions(publish_allow=[b"a.*"])
    for i in range(3000):
        assert rules.may_publish(b"a.%d" % i)
    assert len(rules._publish_cache) <= 1024
