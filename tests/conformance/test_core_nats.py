"""Core NATS between clients: who receives which message, in which form and order."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conformance.client import Client, Message, Wire, parse_message
from conformance.servers import Server

Connect = Callable[..., Client]


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*", "a", True),
        ("*.*", "a.b", True),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True),
        ("A", "a", False),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a.>", "a.>", True),
        ("a.b", "a.>", False),
        ("a.b", "a.*", False),
        ("straße.*", "straße.日本", True),
        ("$SYSTEM.x", "$SYSTEM.x", True),
    ],
)
def test_wildcards_match_their_subjects(
    client: Client, name: str, pattern: str, subject: str, matches: bool
) -> None:
    sid = client.subscribe(f"{name}.{pattern}")
    client.publish(f"{name}.{subject}", b"x")
    assert [m.payload for m in client.pending(sid)] == ([b"x"] if matches else [])


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "."])
def test_subjects_with_empty_tokens_reach_nobody(client: Client, name: str, subject: str) -> None:
    sid = client.subscribe(">")
    client.publish(subject, name.encode())
    assert [m for m in client.pending(sid) if m.payload == name.encode()] == []


def test_each_subscription_gets_its_copy(client: Client, name: str) -> None:
    sids = [client.subscribe(f"{name}.a"), client.subscribe(f"{name}.*"), client.subscribe(f"{name}.>")]
    client.publish(f"{name}.a", b"x")
    assert [len(client.pending(sid)) for sid in sids] == [1, 1, 1]


def test_order_is_that_of_publishing(server: Server, connect: Connect, name: str) -> None:
    receiver, sender = connect(server), connect(server)
    sid = receiver.subscribe(f"{name}.>")
    receiver.flush()
    for i in range(2000):
        sender.publish(f"{name}.{i % 7}", b"%d" % i)
    assert [int(receiver.next(sid).payload) for _ in range(2000)] == list(range(2000))


def test_a_large_payload_arrives_whole(server: Server, connect: Connect, name: str) -> None:
    receiver, sender = connect(server), connect(server)
    sid = receiver.subscribe(name)
    receiver.flush()
    payload = bytes(range(256)) * 4096
    sender.publish(name, payload)
    assert receiver.next(sid).payload == payload


def test_an_operation_may_arrive_in_pieces(wire: Wire, name: str) -> None:
    wire.send(b'CONNECT {"verbose":false}\r\n')
    operations = f"SUB {name} 1\r\nPUB {name} 5\r\nhello\r\nPING\r\n".encode()
    for i in range(len(operations)):
        wire.send(operations[i : i + 1])
    wire.expect(f"MSG {name} 1 5\r\nhello\r\n".encode(), b"PONG\r\n")


class TestQueueGroups:
    def test_one_member_gets_each_message(self, server: Server, connect: Connect, name: str) -> None:
        members = [connect(server) for _ in range(3)]
        sids = [m.subscribe(name, "workers") for m in members]
        for member in members:
            member.flush()
        sender = connect(server)
        for _ in range(300):
            sender.publish(name)
        sender.flush()
        got = [len(m.pending(s)) for m, s in zip(members, sids, strict=True)]
        assert sum(got) == 300
        assert all(got), got

    def test_members_may_have_different_patterns(self, client: Client, name: str) -> None:
        sids = [client.subscribe(f"{name}.{p}", "workers") for p in ("a", "*", ">")]
        for _ in range(200):
            client.publish(f"{name}.a")
        got = [len(client.pending(sid)) for sid in sids]
        assert sum(got) == 200

    def test_groups_and_plain_subscriptions_are_independent(self, client: Client, name: str) -> None:
        plain = client.subscribe(name)
        first = [client.subscribe(name, "one") for _ in range(2)]
        second = [client.subscribe(name, "two") for _ in range(2)]
        for _ in range(50):
            client.publish(name)
        assert len(client.pending(plain)) == 50
        assert sum(len(client.pending(sid)) for sid in first) == 50
        assert sum(len(client.pending(sid)) for sid in second) == 50

    def test_a_member_that_left_gets_nothing(self, server: Server, connect: Connect, name: str) -> None:
        stays, leaves = connect(server), connect(server)
        sid = stays.subscribe(name, "q")
        leaves.subscribe(name, "q")
        stays.flush()
        leaves.flush()
        leaves.close()
        sender = connect(server)
        _until(lambda: _gets_all(sender, stays, sid, name, 20))

    def test_no_echo_leaves_the_message_to_another_member(
        self, server: Server, connect: Connect, name: str
    ) -> None:
        quiet, other = connect(server, echo=False), connect(server)
        own = quiet.subscribe(name, "q")
        sid = other.subscribe(name, "q")
        other.flush()
        for _ in range(30):
            quiet.publish(name)
        assert quiet.pending(own) == []
        assert len(other.pending(sid)) == 30


def _gets_all(sender: Client, receiver: Client, sid: str, subject: str, count: int) -> bool:
    for _ in range(count):
        sender.publish(subject)
    sender.flush()
    return len(receiver.pending(sid)) == count


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline


class TestRequests:
    def test_request_and_reply(self, server: Server, connect: Connect, name: str) -> None:
        service, caller = connect(server), connect(server)
        sid = service.subscribe(name)
        service.flush()
        reply = caller.ask(name, b"question")
        asked = service.next(sid)
        assert asked.reply == reply
        service.publish(asked.reply, b"answer")
        assert caller.next("1").payload == b"answer"

    def test_a_request_without_responders_gets_503(self, client: Client, name: str) -> None:
        answer = client.request(name)
        assert answer.header == f"NATS/1.0 503\r\nNats-Subject: {name}\r\n\r\n".encode()
        assert answer.payload == b""

    def test_no_responders_is_told_only_to_those_who_ask(
        self, server: Server, connect: Connect, name: str
    ) -> None:
        silent = connect(server, no_responders=False)
        silent.ask(name)
        assert silent.pending("1") == []

    def test_no_responders_when_only_others_listen_to_the_reply(
        self, server: Server, connect: Connect, name: str
    ) -> None:
        caller, listener = connect(server), connect(server)
        sid = listener.subscribe(f"{name}.reply")
        listener.flush()
        caller.publish(f"{name}.nobody", b"", reply=f"{name}.reply")
        caller.flush()
        assert listener.pending(sid) == []

    def test_a_queue_member_is_a_responder(self, server: Server, connect: Connect, name: str) -> None:
        service, caller = connect(server), connect(server)
        sid = service.subscribe(name, "q")
        service.flush()
        caller.ask(name)
        service.publish(service.next(sid).reply, b"ok")
        assert caller.next("1").payload == b"ok"

    def test_a_responder_that_unsubscribed_is_none(self, client: Client, name: str) -> None:
        sid = client.subscribe(name)
        client.unsubscribe(sid)
        assert client.request(name).status == "503"


class TestHeaders:
    HEADERS = {"A": "b", "Long": "x" * 300}

    def test_they_arrive_as_sent(self, client: Client, name: str) -> None:
        sid = client.subscribe(name)
        client.publish(name, b"data", self.HEADERS)
        message = client.next(sid)
        assert (message.headers, message.payload) == (self.HEADERS, b"data")

    def test_they_are_cut_for_clients_without(self, server: Server, connect: Connect, name: str) -> None:
        plain = connect(server, headers=False, no_responders=False)
        sid = plain.subscribe(name)
        plain.flush()
        connect(server).publish(name, b"data", self.HEADERS)
        message = plain.next(sid)
        assert (message.header, message.payload) == (b"", b"data")

    def test_they_are_not_checked(self, wire: Wire, name: str) -> None:
        wire.send(b'CONNECT {"verbose":false,"headers":true}\r\n')
        wire.send(f"SUB {name} 1\r\nHPUB {name} 5 7\r\nno\n\0?hi\r\n".encode())
        wire.expect(f"HMSG {name} 1 5 7\r\nno\n\0?hi\r\n".encode())

    def test_a_header_free_message_is_a_plain_one(self, client: Client, name: str) -> None:
        sid = client.subscribe(name)
        client.publish(name, b"x")
        assert client.next(sid) == Message(name, sid, "", b"", b"x")


class TestEcho:
    def test_own_messages_come_back_by_default(self, client: Client, name: str) -> None:
        sid = client.subscribe(name)
        client.publish(name)
        assert len(client.pending(sid)) == 1

    def test_not_with_echo_off(self, server: Server, connect: Connect, name: str) -> None:
        quiet, other = connect(server, echo=False), connect(server)
        own, sid = quiet.subscribe(name), other.subscribe(name)
        other.flush()
        quiet.publish(name, b"x")
        assert quiet.pending(own) == []
        assert other.next(sid).payload == b"x"


class TestUnsubscribe:
    @pytest.mark.parametrize("queue", ["", "q"])
    def test_after_a_number_of_messages(self, client: Client, name: str, queue: str) -> None:
        sid = client.subscribe(name, queue)
        client.unsubscribe(sid, 3)
        for i in range(5):
            client.publish(name, b"%d" % i)
        assert [m.payload for m in client.pending(sid)] == [b"0", b"1", b"2"]

    def test_the_maximum_can_be_raised_before_it_is_reached(self, client: Client, name: str) -> None:
        sid = client.subscribe(name)
        client.unsubscribe(sid, 2)
        client.publish(name)
        client.unsubscribe(sid, 4)
        for _ in range(5):
            client.publish(name)
        assert len(client.pending(sid)) == 4

    def test_a_sid_can_be_used_again(self, client: Client, name: str) -> None:
        client.send(f"SUB {name}.a 77\r\nUNSUB 77\r\nSUB {name}.b 77\r\n".encode())
        client.publish(f"{name}.a", b"a")
        client.publish(f"{name}.b", b"b")
        assert [m.payload for m in client.pending("77")] == [b"b"]

    def test_a_closed_connection_takes_its_subscriptions_along(
        self, server: Server, connect: Connect, name: str
    ) -> None:
        gone, caller = connect(server), connect(server)
        gone.subscribe(name)
        gone.flush()
        gone.close()

        def nobody_answers() -> bool:
            caller.ask(name)
            return [m.status for m in caller.pending("1")] == ["503"]

        _until(nobody_answers)


class TestModes:
    def test_verbose_answers_each_operation(self, wire: Wire, name: str) -> None:
        operations = (
            b'CONNECT {"verbose":true,"headers":true}',
            f"SUB {name} 1".encode(),
            b"PUB other.%s 1\r\nx" % name.encode(),
            b"HPUB other.%s 12 12\r\nNATS/1.0\r\n\r\n" % name.encode(),
            b"UNSUB 1",
        )
        for operation in operations:
            wire.send(operation + b"\r\n")
            wire.expect(b"+OK\r\n")

    def test_an_error_takes_the_place_of_ok(self, wire: Wire) -> None:
        wire.send(b'CONNECT {"verbose":true}\r\nSUB a..b 1\r\nPING\r\n')
        wire.expect(b"+OK\r\n", b"-ERR 'Invalid Subject'\r\n", b"PONG\r\n")

    @pytest.mark.parametrize("subject", ["a.*", "a.>", "a..b", "*"])
    def test_pedantic_complains_about_published_wildcards(self, wire: Wire, subject: str) -> None:
        wire.send(f'CONNECT {{"verbose":false,"pedantic":true}}\r\nPUB {subject} 0\r\n\r\nPING\r\n'.encode())
        wire.expect(b"-ERR 'Invalid Publish Subject'\r\n", b"PONG\r\n")

    def test_connect_keys_in_any_case_and_unknown_ones(self, wire: Wire) -> None:
        wire.send(b'CONNECT {"Verbose":false,"PEDANTIC":false,"wings":2}\r\nPING\r\n')
        wire.expect(b"PONG\r\n")

    def test_a_second_connect_changes_the_options(self, wire: Wire) -> None:
        wire.send(b'CONNECT {"verbose":false}\r\nCONNECT {"verbose":true}\r\nUNSUB 1\r\n')
        wire.expect(b"+OK\r\n", b"+OK\r\n")

    def test_a_second_connect_drops_subscriptions(self, wire: Wire, name: str) -> None:
        connect = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
        wire.send(connect + f"SUB {name} 1\r\n".encode() + connect)
        wire.send(f"PUB {name} 1\r\nx\r\nPING\r\n".encode())
        wire.expect(b"PONG\r\n")


def test_messages_have_their_shape() -> None:
    """The test client's own parser works, so that other failures are the server's."""
    frame = b"HMSG s 9 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    assert parse_message(frame) == Message("s", "9", "r", b"NATS/1.0\r\n\r\n", b"hi")
    assert parse_message(b"MSG s 9 2\r\nhi\r\n") == Message("s", "9", "", b"", b"hi")
