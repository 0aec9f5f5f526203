"""Imports between accounts leave nothing behind: pending replies end, and so does everything that waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker import Accounts, Timers, reply_map
from headrace.broker.account_imports import AccountImports
from headrace.broker.routing.exports import AccountImportError, Export, Import

SECOND = 1_000_000_000


class Clock:
    now = 0

    def now_ns(self) -> int:
        return self.now


class Ear:
    """Subscribes, records messages, and replies if it is set to."""

    def __init__(self) -> None:
        self.heard: list[tuple[bytes, bytes, bytes, bytes]] = []

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self.heard.append((subject, reply, header, payload))


class World:
    def __init__(self, **export: Any) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.accounts = Accounts()
        self.exchange = AccountImports(self.accounts, self.timers, "S")
        self.a, self.b = self.accounts.get_or_create("A"), self.accounts.get_or_create("B")
        self.export = Export("service", b"svc.>", **export)
        wanted = Import("service", "A", b"svc.>", b"ask.>")
        self.exchange.set_imports("B", [wanted], lambda name: [self.export] if name == "A" else [])
        self.service, self.requester = Ear(), Ear()
        self.a.router.subscribe_internal(b"svc.*", self.service)
        self.b.router.subscribe_internal(b"inbox", self.requester)
        self.desk = self.exchange.reply_map(self.a)

    def ask(self) -> bytes:
        """Send a request; return the reply subject that the service sees."""
        assert self.b.router.publish(b"ask.x", b"inbox", b"", b"?") == 1
        return self.service.heard[-1][1]

    def pass_time(self, seconds: int) -> None:
        self.clock.now += seconds * SECOND
        self.timers.run_due()


def test_one_answer_and_nothing_is_left() -> None:
    world = World()
    reply = world.ask()
    assert world.a.router.publish(reply, b"", b"", b"!") == 1
    assert world.a.router.publish(reply, b"", b"", b"again") == 0
    assert [heard[3] for heard in world.requester.heard] == [b"!"]
    assert len(world.desk) == 0
    assert not world.a.router.has_interest(reply)


def test_no_subscriber_and_nothing_is_left() -> None:
    world = World()
    world.a.router.unsubscribe_internal(b"svc.*", world.service)
    assert world.b.router.publish(b"ask.x", b"inbox", b"", b"?") == 0
    assert not world.b.router.has_interest(b"ask.x")
    assert len(world.desk) == 0


def test_an_answer_that_never_comes_is_not_expected_for_ever() -> None:
    world = World(response_timeout_ns=10 * SECOND)
    first = world.ask()
    world.pass_time(6)
    second = world.ask()
    world.pass_time(5)
    assert len(world.desk) == 1
    assert world.a.router.publish(first, b"", b"", b"late") == 0
    world.pass_time(6)
    assert len(world.desk) == 0
    assert world.a.router.publish(second, b"", b"", b"late") == 0
    assert world.timers.next_deadline() is None


def test_many_answers_keep_it_open() -> None:
    world = World(response="stream", response_timeout_ns=10 * SECOND)
    reply = world.ask()
    for number in range(5):
        world.pass_time(8)
        assert world.a.router.publish(reply, b"", b"", b"%d" % number) == 1
    assert world.a.router.publish(reply, b"", b"", b"") == 1
    assert world.a.router.publish(reply, b"", b"", b"more") == 0
    assert len(world.desk) == 0


def test_a_requester_that_left_ends_it() -> None:
    world = World(response="stream")
    reply = world.ask()
    world.b.router.unsubscribe_internal(b"inbox", world.requester)
    assert world.a.router.publish(reply, b"", b"", b"1") == 0
    assert len(world.desk) == 0


def test_an_answer_may_be_answered() -> None:
    """The reply of a reply is routed back, too."""
    world = World()
    back = Ear()
    world.a.router.subscribe_internal(b"back", back)
    world.a.router.publish(world.ask(), b"back", b"", b"!")
    shown = world.requester.heard[-1][1]
    assert shown != b"back"
    assert world.b.router.publish(shown, b"", b"", b"thanks") == 1
    assert back.heard[-1][3] == b"thanks"


def test_the_end_of_an_import() -> None:
    world = World()
    reply = world.ask()
    world.exchange.clear_imports("B")
    assert world.b.router.publish(b"ask.x", b"inbox", b"", b"?") == 0
    assert world.a.router.publish(reply, b"", b"", b"!") == 1, "an answer under way still arrives"
    world.exchange.close()


def test_what_is_not_exported() -> None:
    world = World()
    with pytest.raises(AccountImportError, match="may not import"):
        world.exchange.set_imports(
            "B", [Import("service", "A", b"other", b"other")], lambda name: [world.export]
        )
    assert world.b.router.publish(b"ask.x", b"inbox", b"", b"?") == 0, "no import is left half made"


def test_a_ring_of_services_ends() -> None:
    """Cycles are rejected earlier; if one exists anyway, a request does not loop."""
    world = World()
    export = Export("service", b">")
    world.exchange.set_imports("B", [Import("service", "A", b"ring", b"ring")], lambda name: [export])
    world.exchange.set_imports("A", [Import("service", "B", b"ring", b"ring")], lambda name: [export])
    assert world.b.router.publish(b"ring", b"inbox", b"", b"?") == 0


def test_many_overdue_replies_are_removed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_map, "_EXPIRED_AT_ONCE", 10)
    world = World(response_timeout_ns=10 * SECOND)
    for _ in range(25):
        world.ask()
    sizes = []
    for seconds in (11, 1, 1):
        world.pass_time(seconds)
        sizes.append(len(world.desk))
    assert sizes[0] > 0, "not all at once"
    assert sizes[-1] == 0


def test_beyond_the_limit_the_oldest_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_map, "PENDING_MAX", 3)
    world = World()
    replies = [world.ask() for _ in range(5)]
    assert len(world.desk) == 3
    assert [world.a.router.publish(reply, b"", b"", b"!") for reply in replies] == [0, 0, 1, 1, 1]


def test_one_account_does_not_take_the_replies_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_map, "PENDING_MAX", 3)
    world = World()
    wanted = Import("service", "A", b"svc.>", b"ask.>")
    world.exchange.set_imports("C", [wanted], lambda name: [world.export] if name == "A" else [])
    other = world.accounts.get_or_create("C")
    mine = world.ask()
    for _ in range(10):
        assert other.router.publish(b"ask.x", b"inbox", b"", b"?") == 1
    assert len(world.desk) == 4
    assert world.a.router.publish(mine, b"", b"", b"!") == 1


def test_deadlines_of_replies_that_came_do_not_pile_up() -> None:
    world = World(response_timeout_ns=10 * SECOND)
    waiting = world.ask()
    for _ in range(100):
        assert world.a.router.publish(world.ask(), b"", b"", b"!") == 1
    [first] = world.desk._iter_first()
    assert first.subject == waiting
    assert first.following is None
    world.pass_time(11)
    assert len(world.desk) == 0
    assert world.a.router.publish(waiting, b"", b"", b"!") == 0


def test_replies_with_different_timeouts_expire_in_turn() -> None:
    world = World(response_timeout_ns=10 * SECOND)
    slow = world.ask()
    world.desk.map_reply(world.exchange.reply_map(world.b), b"inbox", many=True, timeout_ns=3 * SECOND)
    world.pass_time(4)
    assert len(world.desk) == 1
    assert world.a.router.publish(slow, b"", b"", b"!") == 1
