"""Pull requests: their fields, how they are served, how they end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, position, seqs_of

Make = Callable[..., Reading]


class TestRequests:
    @pytest.mark.parametrize(
        ("body", "count"), [(b"", 1), (b"3", 3), (b"{}", 1), (b"text", 1), (b'{"batch":2}', 2), (b" 2 ", 2)]
    )
    def test_each_form_of_pull_request_delivers_its_batch(
        self, ten: Reading, body: bytes, count: int
    ) -> None:
        ten.made("C")
        sid = ten.ask("C", body)
        assert seqs_of([ten.client.next(sid) for _ in range(count)]) == list(range(1, count + 1))
        assert position(ten.info("C"), "delivered") == (count, count)
        assert not ten.client.pending(sid)

    @pytest.mark.parametrize(
        ("config", "body", "status"),
        [
            ({}, b'{"batch":"x"}', "400 Bad Request - json: cannot unmarshal"),
            (
                {},
                b'{"batch":1,"expires":1000000000,"idle_heartbeat":600000000}',
                "400 Bad Request - heartbeat value too large",
            ),
            ({}, b'{"batch":1,"idle_heartbeat":100000000}', "400 Bad Request - heartbeat value too large"),
            ({"max_batch": 2}, b'{"batch":3}', "409 Exceeded MaxRequestBatch of 2"),
            (
                {"max_expires": 500 * MS},
                b'{"batch":1,"expires":600000000}',
                "409 Exceeded MaxRequestExpires of 500ms",
            ),
            ({"max_bytes": 100}, b'{"batch":1,"max_bytes":101}', "409 Exceeded MaxRequestMaxBytes of 100"),
            ({}, b'{"batch":1,"min_pending":1}', "400 Bad Request - Not a Overflow Priority consumer"),
            ({}, b'{"batch":1,"id":"x"}', "400 Bad Request - Not a Pinned Client Priority consumer"),
            ({}, b'{"batch":1,"priority":10}', "400 Bad Request - Priority must be between 0 and 9"),
        ],
    )
    def test_invalid_pull_requests_get_a_status(
        self, ten: Reading, config: dict[str, Any], body: bytes, status: str
    ) -> None:
        ten.made("C", **config)
        answer = ten.client.request(ten.next_subject("C"), body)
        assert answer.status.startswith(status)
        assert (answer.payload, answer.reply) == (b"", "")

    def test_a_level_too_high(self, ten: Reading) -> None:
        ten.made("C")
        answer = ten.client.request(ten.next_subject("C"), b"", {"Nats-Required-Api-Level": "9"})
        assert answer.status == "412 Required Api Level"

    def test_a_push_consumer_refuses_pull_requests(self, ten: Reading) -> None:
        ten.made("C", deliver_subject=f"{ten.client.inbox}-x")
        assert ten.client.request(ten.next_subject("C")).status == "409 Consumer is push based"

    def test_without_a_reply_nothing_happens(self, ten: Reading) -> None:
        ten.made("C")
        ten.client.publish(ten.next_subject("C"))
        ten.client.flush()
        assert ten.info("C")["num_waiting"] == 0

    def test_pull_requests_beyond_max_waiting_are_refused(self, ten: Reading) -> None:
        ten.made("C", max_waiting=1, deliver_policy="new")
        ten.ask("C", {"batch": 1, "expires": 30 * SECOND})
        eventually(lambda: ten.info("C")["num_waiting"] == 1)
        second = ten.ask("C", {"batch": 1, "expires": 30 * SECOND})
        assert ten.client.next(second).status == "409 Exceeded MaxWaiting"
        third = ten.ask("C", {"batch": 1, "expires": SECOND, "idle_heartbeat": 400 * MS})
        time.sleep(0.1)
        assert not ten.client.pending(third)


class TestEnds:
    def test_time_is_up(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        started = time.monotonic()
        sid = ten.ask("C", {"batch": 5, "expires": 200 * MS})
        answer = ten.client.next(sid)
        assert answer.header == (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n"
        )
        assert 0.19 < time.monotonic() - started < 60

    def test_no_wait_ends_with_the_data(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="by_start_sequence", opt_start_seq=8)
        messages = ten.available("C", batch=10)
        assert seqs_of(messages) == [8, 9, 10]
        assert messages[-1].header == b"NATS/1.0 404 No Messages\r\n\r\n"
        assert ten.available("C")[0].status == "404 No Messages"

    def test_no_wait_with_a_time_waits_for_the_first(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        sid = ten.ask("C", {"batch": 5, "no_wait": True, "expires": 30 * SECOND})
        ten.client.flush()
        ten.client.store(ten.subject("s"))
        assert ack_of(ten.client.next(sid)).seq == 11
        assert ten.client.next(sid).status == "404 No Messages"

    def test_no_wait_beside_those_who_wait(self, ten: Reading) -> None:
        ten.made("C", max_ack_pending=1)
        ten.fetch("C", 1)
        ten.ask("C", {"batch": 20, "expires": 30 * SECOND})
        eventually(lambda: ten.info("C")["num_waiting"] == 1)
        sid = ten.ask("C", {"batch": 1, "no_wait": True})
        assert ten.client.next(sid).status == "408 Requests Pending"

    def test_no_wait_stays_while_acknowledgements_are_missing(self, ten: Reading) -> None:
        ten.made("C", max_ack_pending=1)
        first = ten.fetch("C", 1)[0]
        sid = ten.ask("C", {"batch": 1, "no_wait": True})
        ten.client.flush()
        time.sleep(0.1)
        assert not ten.client.pending(sid)
        ten.reply(first)
        assert ack_of(ten.client.next(sid)).seq == 2

    def test_max_bytes_ends_a_pull_request(self, reading: Make) -> None:
        stream = reading()
        for _ in range(10):
            stream.client.store(stream.subject("s"), "hi")
        stream.made("C")
        size = len(stream.subject("s")) + len(f"$JS.ACK.{stream.name}.C.1.1.1.") + 19 + len(".9") + 2
        messages = stream.client.collect(stream.next_subject("C"), {"batch": 10, "max_bytes": 2 * size + 32})
        assert seqs_of(messages) == [1, 2]
        assert messages[-1].header == (
            b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 8\r\nNats-Pending-Bytes: 32\r\n\r\n"
        )
        messages = stream.client.collect(stream.next_subject("C"), {"batch": 2, "max_bytes": 10_000})
        assert seqs_of(messages) == [3, 4]
        assert messages[-1].status == "409 Batch Completed"
        assert messages[-1].headers == {
            "Nats-Pending-Messages": "0",
            "Nats-Pending-Bytes": str(10_000 - 2 * size),
        }
        sid = stream.ask("C", {"batch": 10, "max_bytes": 2 * size, "expires": 300 * MS})
        assert seqs_of([stream.client.next(sid), stream.client.next(sid)]) == [5, 6]
        time.sleep(0.4)
        assert not stream.client.pending(sid)

    def test_a_reply_nobody_listens_to_is_dropped(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        sid = ten.ask("C", {"batch": 5, "expires": 30 * SECOND})
        eventually(lambda: ten.info("C")["num_waiting"] == 1)
        ten.client.unsubscribe(sid)
        eventually(lambda: ten.info("C")["num_waiting"] == 0)

    def test_deleting_the_consumer_ends_pull_requests(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        sid = ten.ask("C", {"batch": 5, "expires": 30 * SECOND})
        eventually(lambda: ten.info("C")["num_waiting"] == 1)
        ten.client.api(f"CONSUMER.DELETE.{ten.name}.C")
        assert ten.client.next(sid).header == b"NATS/1.0 409 Consumer Deleted\r\n\r\n"

    def test_idle_heartbeats_come_at_their_interval(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        started = time.monotonic()
        sid = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "idle_heartbeat": 100 * MS})
        statuses = [ten.client.next(sid) for _ in range(4)]
        assert [m.status for m in statuses] == ["100 Idle Heartbeat"] * 4
        assert 0.38 < time.monotonic() - started < 60
        ten.client.unsubscribe(sid)
        assert statuses[0].header == (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\nNats-Last-Stream: 10\r\n\r\n"
        )

    def test_no_more_heartbeats_than_there_is_time_for(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        sid = ten.ask("C", {"batch": 1, "expires": 450 * MS, "idle_heartbeat": 100 * MS})
        statuses = [ten.client.next(sid).status]
        while statuses[-1] == "100 Idle Heartbeat":
            statuses.append(ten.client.next(sid).status)
        assert statuses[-1] == "408 Request Timeout"
        assert len(statuses) <= 5


class TestService:
    def test_requests_take_turns(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="new")
        one = ten.ask("C", {"batch": 3, "expires": 30 * SECOND})
        two = ten.ask("C", {"batch": 3, "expires": 30 * SECOND})
        eventually(lambda: ten.info("C")["num_waiting"] == 2)
        ten.fill(6)
        assert seqs_of([ten.client.next(one) for _ in range(3)]) == [11, 13, 15]
        assert seqs_of([ten.client.next(two) for _ in range(3)]) == [12, 14, 16]

    def test_the_number_waiting_and_what_is_pending(self, ten: Reading) -> None:
        ten.made("C")
        ten.fetch("C", 4)
        info = ten.info("C")
        assert (info["num_pending"], info["num_ack_pending"], info["num_waiting"]) == (6, 4, 0)
        assert info["delivered"]["last_active"]
        assert "last_active" not in info["ack_floor"]

    def test_too_many_unacknowledged_stop_it(self, ten: Reading) -> None:
        ten.made("C", max_ack_pending=3)
        sid = ten.ask("C", {"batch": 10, "expires": 30 * SECOND})
        first = [ten.client.next(sid) for _ in range(3)]
        time.sleep(0.1)
        assert not ten.client.pending(sid)
        ten.reply(first[1])
        assert ack_of(ten.client.next(sid)).seq == 4

    def test_removed_messages_are_passed_over(self, ten: Reading) -> None:
        ten.made("C")
        for seq in (1, 4, 10):
            ten.client.api(f"STREAM.MSG.DELETE.{ten.name}", {"seq": seq})
        assert ten.info("C")["num_pending"] == 7
        assert seqs_of(ten.available("C")) == [2, 3, 5, 6, 7, 8, 9]

    def test_headers_only_delivers_the_size_instead_of_the_payload(self, reading: Make) -> None:
        stream = reading()
        stream.client.store(stream.subject("s"), "hello", {"A": "b"})
        stream.client.store(stream.subject("s"), "hi")
        stream.made("C", headers_only=True)
        one, two = stream.fetch("C", 2)
        assert (one.header, one.payload) == (b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 5\r\n\r\n", b"")
        assert (two.header, two.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 2\r\n\r\n", b"")

    def test_headers_are_delivered(self, reading: Make) -> None:
        stream = reading()
        stream.client.store(stream.subject("s"), "hello", {"A": "b"})
        stream.made("C")
        message = stream.fetch("C", 1)[0]
        assert (message.subject, message.header, message.payload) == (
            stream.subject("s"), b"NATS/1.0\r\nA: b\r\n\r\n", b"hello",
        )  # fmt: skip

    def test_many_messages_in_order(self, reading: Make) -> None:
        stream = reading()
        client = stream.client
        for number in range(3000):
            client.publish(stream.subject(f"s{number % 7}"), b"x" * (number % 300))
        client.flush()
        eventually(lambda: stream.state()["messages"] == 3000)
        stream.made("C", max_ack_pending=-1, filter_subjects=[stream.subject("s1"), stream.subject("s4")])
        wanted = [number + 1 for number in range(3000) if number % 7 in (1, 4)]
        messages = stream.fetch("C", len(wanted))
        assert seqs_of(messages) == wanted
        assert [ack_of(m).cseq for m in messages] == list(range(1, len(wanted) + 1))
        assert [ack_of(m).pending for m in messages] == list(range(len(wanted) - 1, -1, -1))
        assert [len(m.payload) for m in messages] == [(seq - 1) % 300 for seq in wanted]


class TestPriority:
    def group(self, stream: Reading, policy: str, **config: Any) -> None:
        stream.made("C", priority_policy=policy, priority_groups=["g"], **config)

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"batch": 1}, "400 Bad Request - Priority Group missing"),
            ({"batch": 1, "group": "x"}, "400 Bad Request - Invalid Priority Group"),
        ],
    )
    def test_a_wrong_priority_group_is_refused(self, ten: Reading, body: dict[str, Any], status: str) -> None:
        self.group(ten, "overflow")
        sid = ten.ask("C", body)
        assert ten.client.next(sid).status == status

    def test_overflow_serves_above_its_mark(self, reading: Make) -> None:
        stream = reading()
        self.group(stream, "overflow")
        sid = stream.ask("C", {"batch": 10, "expires": 30 * SECOND, "group": "g", "min_pending": 3})
        stream.fill(2)
        time.sleep(0.1)
        assert not stream.client.pending(sid)
        stream.fill(2)
        assert seqs_of([stream.client.next(sid), stream.client.next(sid)]) == [1, 2]
        time.sleep(0.1)
        assert not stream.client.pending(sid)

    def test_overflow_by_unacknowledged(self, ten: Reading) -> None:
        self.group(ten, "overflow")
        sid = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g", "min_ack_pending": 2})
        time.sleep(0.1)
        assert not ten.client.pending(sid)
        other = ten.ask("C", {"batch": 2, "expires": 30 * SECOND, "group": "g"})
        assert seqs_of([ten.client.next(other), ten.client.next(other)]) == [1, 2]
        assert ack_of(ten.client.next(sid)).seq == 3

    def test_the_lowest_priority_number_is_served_first(self, reading: Make) -> None:
        stream = reading()
        self.group(stream, "prioritized")
        late = stream.ask("C", {"batch": 2, "expires": 30 * SECOND, "group": "g", "priority": 5})
        first = stream.ask("C", {"batch": 2, "expires": 30 * SECOND, "group": "g", "priority": 1})
        eventually(lambda: stream.info("C")["num_waiting"] == 2)
        stream.fill(4)
        assert seqs_of([stream.client.next(first) for _ in range(2)]) == [1, 2]
        assert seqs_of([stream.client.next(late) for _ in range(2)]) == [3, 4]

    def test_a_pin_holds_until_it_is_taken_away(self, ten: Reading, name: str) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{name}.C")
        self.group(ten, "pinned_client", priority_timeout=60 * SECOND)
        one = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g"})
        message = ten.client.next(one)
        pin = message.headers["Nats-Pin-Id"]
        assert len(pin) == 22
        state = ten.info("C")["priority_groups"][0]
        assert (state["group"], state["pinned_client_id"]) == ("g", pin)
        waiting = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g"})
        wrong = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g", "id": "wrong"})
        assert ten.client.next(wrong).status == "423 Nats-Pin-Id mismatch"
        right = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g", "id": pin})
        assert ten.client.next(right).headers["Nats-Pin-Id"] == pin
        assert not ten.client.pending(waiting)
        assert "error" not in ten.client.api(f"CONSUMER.UNPIN.{name}.C", {"group": "g"})
        assert ten.client.next(waiting).headers["Nats-Pin-Id"] != pin
        kinds = [ten.client.next(events).json["type"].rsplit(".", 1)[1] for _ in range(4)]
        assert kinds == [
            "consumer_action",
            "consumer_group_pinned",
            "consumer_group_unpinned",
            "consumer_group_pinned",
        ]

    def test_a_pin_times_out(self, ten: Reading, name: str) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.{name}.C")
        self.group(ten, "pinned_client", priority_timeout=200 * MS)
        one = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g"})
        pin = ten.client.next(one).headers["Nats-Pin-Id"]
        two = ten.ask("C", {"batch": 1, "expires": 30 * SECOND, "group": "g"})
        assert ten.client.next(two).headers["Nats-Pin-Id"] != pin
        assert ten.client.next(events).json["reason"] == "timeout"

    @pytest.mark.parametrize(
        ("body", "code"), [({"group": "x"}, 10160), ({}, 10025), ({"group": "a b"}, 10162)]
    )
    def test_invalid_unpin_requests_are_refused(self, ten: Reading, body: dict[str, Any], code: int) -> None:
        self.group(ten, "pinned_client")
        assert ten.client.api(f"CONSUMER.UNPIN.{ten.name}.C", body)["error"]["err_code"] == code


def test_a_client_that_reconnects_continues(
    ten: Reading, server: Any, connect: Callable[..., Client], name: str
) -> None:
    """Messages sent to a lost connection are delivered again to the next one; nothing is lost."""
    ten.made("C", ack_wait=300 * MS)
    first = Reading(connect(server), name)
    for message in first.fetch("C", 4)[:2]:
        first.confirm(message)
    first.client.close()
    second = Reading(connect(server), name)
    seen = set()
    while len(seen) < 8:
        for message in second.fetch("C", 1):
            second.confirm(message)
            seen.add(ack_of(message).seq)
    assert seen == set(range(3, 11))
