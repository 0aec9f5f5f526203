"""Routing: who receives what, queue groups, watching of interest, and internal subscribers."""

from __future__ import annotations

import pytest

from support.native_and_pure import TWINS, Desk


@pytest.fixture(params=TWINS)
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


class Sink:
    def __init__(self) -> None:
        self.subjects: list[bytes] = []

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self.subjects.append(subject)


def test_one_of_a_queue_group_receives(desk: Desk) -> None:
    members = [desk.client() for _ in range(3)]
    for member in members:
        member.say(b"SUB jobs.* workers 1\r\n")
    members[0].say(b"SUB jobs.> workers 2\r\nSUB jobs.> others 3\r\n")
    publisher = desk.client()
    for _ in range(200):
        publisher.say(b"PUB jobs.x 0\r\n\r\n")
    heard = [member.heard() for member in members]
    assert sum(h.count(b"MSG jobs.x 1 ") + h.count(b"MSG jobs.x 2 ") for h in heard) == 200
    assert all(h.count(b" 1 0") > 10 for h in heard)
    assert heard[0].count(b"MSG jobs.x 3 ") == 200


def test_a_queue_member_that_does_not_hear_itself_is_passed_over(desk: Desk) -> None:
    mute = desk.client(b'CONNECT {"verbose":false,"echo":false}\r\n')
    other = desk.client()
    mute.say(b"SUB a q 1\r\n")
    other.say(b"SUB a q 2\r\n")
    for _ in range(20):
        assert mute.say(b"PUB a 0\r\n\r\n") == b""
    assert other.heard().count(b"MSG a 2") == 20


def test_interest_follows_subscriptions_and_queues(desk: Desk) -> None:
    client = desk.client()
    assert not desk.hub.has_interest(b"a.b")
    client.say(b"SUB a.* q 1\r\n")
    assert desk.hub.has_interest(b"a.b")
    assert desk.hub.has_interest(b"a.b", b"q")
    assert not desk.hub.has_interest(b"a.b", b"other")
    assert not desk.hub.has_interest(b"a..b")
    client.session.close()
    assert not desk.hub.has_interest(b"a.b")
    assert desk.hub.subscriptions == 0


def test_a_subject_watcher_is_called_when_interest_changes(desk: Desk) -> None:
    seen: list[tuple[bytes, bool]] = []

    def call(subject: bytes) -> None:
        seen.append((subject, desk.hub.has_interest(subject)))

    desk.hub.watch_subject(b"deliver.x", call)
    client = desk.client()
    client.say(b"SUB other 1\r\nSUB deliver.* 2\r\nSUB deliver.x 3\r\nUNSUB 2\r\nUNSUB 3\r\n")
    assert [there for _, there in seen] == [True, True, True, False]
    desk.hub.unwatch_subject(b"deliver.x", call)
    client.say(b"SUB > 4\r\n")
    assert len(seen) == 4


def test_a_watcher_may_stop_watching_when_called(desk: Desk) -> None:
    calls: list[bytes] = []

    def once(subject: bytes) -> None:
        calls.append(subject)
        desk.hub.unwatch_subject(subject, once)

    desk.hub.watch_subject(b"a", once)
    desk.client().say(b"SUB a 1\r\nSUB a 2\r\n")
    assert calls == [b"a"]


def test_a_client_with_many_subscriptions_leaves_nothing(desk: Desk) -> None:
    client = desk.client()
    for i in range(300):
        client.say(b"SUB a.%d.* %d\r\nSUB b.%d x%d\r\n" % (i, i, i, i))
    assert desk.hub.publish(b"a.7.z", b"", b"", b"") == 1
    client.session.close()
    assert desk.hub.subscriptions == 0
    assert desk.hub.publish(b"a.7.z", b"", b"", b"") == 0
    assert desk.hub._root.is_empty
    assert not desk.hub._literals
    assert not desk.hub._parent_counts
    assert not desk.hub._two_token_counts


def test_a_sink_spares_the_503(desk: Desk) -> None:
    sink = Sink()
    desk.hub.subscribe_internal(b"api.>", sink)
    client = desk.client()
    assert client.say(b"SUB i 1\r\nPUB api.x i 0\r\n\r\nPUB nobody i 0\r\n\r\n").count(b"503") == 1
    assert sink.subjects == [b"api.x"]
    client.session.close()
    desk.hub.unsubscribe_internal(b"api.>", sink)
    assert desk.hub._root.is_empty


def test_a_sink_may_answer_while_a_chunk_is_parsed(desk: Desk) -> None:
    class Echo:
        def on_message(
            self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
        ) -> None:
            desk.hub.publish(reply, b"", header, payload)

    desk.hub.subscribe_internal(b"echo", Echo())
    client = desk.client()
    heard = client.say(
        b"SUB _INBOX.* 1\r\n" + b"".join(b"PUB echo _INBOX.%d 1\r\nx\r\n" % i for i in range(500))
    )
    assert heard.count(b"MSG _INBOX.") == 500
    assert b"MSG _INBOX.499 1 1\r\nx\r\n" in heard


def test_a_route_that_ends_on_the_way_still_serves_everybody(desk: Desk) -> None:
    sink = Sink()
    desk.hub.subscribe_internal(b"a", sink)
    client = desk.client()
    client.say(b"SUB a 1\r\nUNSUB 1 1\r\nSUB a q 2\r\nSUB a 3\r\n")
    heard = client.say(b"PUB a 0\r\n\r\n")
    assert sorted(line for line in heard.split(b"\r\n") if line) == [b"MSG a %d 0" % sid for sid in (1, 2, 3)]
    assert sink.subjects == [b"a"]


def test_an_unsubscribe_in_the_middle_of_a_delivery_counts(desk: Desk) -> None:
    client = desk.client()
    client.say(b"SUB a 1\r\nSUB a 2\r\nSUB a 3\r\nUNSUB 1 1\r\nUNSUB 2 1\r\n")
    heard = client.say(b"PUB a 0\r\n\r\nPUB a 0\r\n\r\n")
    assert sorted(line for line in heard.split(b"\r\n") if line) == [
        b"MSG a 1 0",
        b"MSG a 2 0",
        *[b"MSG a 3 0"] * 2,
    ]
    assert desk.hub.subscriptions == 1


def test_a_pattern_with_many_tokens_can_be_listed(desk: Desk) -> None:
    """A new leafnode gets all subscriptions; one deep pattern must not prevent that."""
    pattern = b".".join([b"a", b"*"] * 700)
    desk.client().say(b"SUB %s 1\r\nSUB b.> 2\r\n" % pattern)
    assert {pattern, b"b.>"} <= {found for found, _ in desk.hub.entries()}
