"""Acknowledgements of all kinds, redelivery, and what streams keep until all consumers are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, position, seqs_of
from conformance.servers import Server

Make = Callable[..., Reading]


def floor(stream: Reading, consumer: str = "C") -> tuple[tuple[int, int], int]:
    info = stream.info(consumer)
    return position(info, "ack_floor"), info["num_ack_pending"]


class TestVerbs:
    @pytest.mark.parametrize("payload", [b"", b"+ACK", b"+OK"])
    def test_an_ack_advances_the_ack_floor(self, ten: Reading, payload: bytes) -> None:
        ten.made("C")
        answer = ten.confirm(ten.fetch("C", 1)[0], payload)
        assert (answer.header, answer.payload) == (b"", b"")
        assert floor(ten) == ((1, 1), 0)
        assert ten.info("C")["ack_floor"]["last_active"]

    @pytest.mark.parametrize("payload", [b"-NAK", b"+WPI", b"+TERM", b"other", b"+ACK"])
    def test_every_verb_is_answered_even_when_it_comes_late(self, ten: Reading, payload: bytes) -> None:
        ten.made("C")
        message = ten.fetch("C", 1)[0]
        for _ in range(2):
            assert ten.confirm(message, payload).payload == b""
        ten.confirm(message)
        assert ten.confirm(message, payload).payload == b""

    def test_the_ack_floor_stops_before_a_nak(self, ten: Reading) -> None:
        """Vector 8."""
        ten.made("C")
        one, two, three, four, five, six = ten.fetch("C", 6)
        for message in (one, two, three):
            ten.confirm(message)
        ten.confirm(four, b"-NAK")
        ten.confirm(six, b"+TERM")
        ten.confirm(five, b"+TERM")
        assert floor(ten) == ((3, 3), 1)
        assert ack_of(ten.fetch("C", 1)[0])[:3] == (2, 4, 7)

    def test_never_delivered_is_not_answered(self, ten: Reading) -> None:
        ten.made("C")
        message = ten.fetch("C", 1)[0]
        beyond = message.reply.replace(".1.1.1.", ".1.7.7.")
        assert ten.silent(beyond, b"+ACK")
        assert ten.silent(message.reply.replace(".1.1.1.", ".1.x.1."), b"+ACK")
        assert floor(ten) == ((0, 0), 1)

    def test_the_second_form_of_the_subject(self, ten: Reading) -> None:
        ten.made("C")
        one, two = ten.fetch("C", 2)
        tail = ".".join(one.reply.split(".")[2:])
        assert ten.client.request(f"$JS.ACK._.szMpdrwD.{tail}", b"+ACK").payload == b""
        assert floor(ten) == ((1, 1), 1)
        tail = ".".join(two.reply.split(".")[2:])
        assert ten.client.request(f"$JS.ACK._.szMpdrwD.{tail}.more", b"+ACK").payload == b""
        assert ten.client.request(f"$JS.ACK._.wrong.{tail}", b"+ACK").status == "503"
        assert floor(ten) == ((2, 2), 0)

    def test_nobody_takes_them_without_acknowledgement(self, ten: Reading) -> None:
        ten.made("C", ack_policy="none")
        assert ten.confirm(ten.fetch("C", 1)[0]).status == "503"
        assert floor(ten) == ((1, 1), 0)

    def test_all_up_to_a_message(self, ten: Reading) -> None:
        ten.made("C", ack_policy="all")
        messages = ten.fetch("C", 6)
        ten.confirm(messages[3])
        assert floor(ten) == ((4, 4), 2)
        ten.confirm(messages[1])
        assert floor(ten) == ((4, 4), 2)
        ten.confirm(messages[5], b"-NAK")
        assert ack_of(ten.fetch("C", 1)[0])[:2] == (2, 6)
        ten.confirm(messages[5])
        assert floor(ten)[1] == 0

    def test_done_and_more(self, ten: Reading) -> None:
        """Vector 9."""
        ten.made("C")
        message = ten.fetch("C", 1)[0]
        inbox = f"{ten.client.inbox}-more"
        sid = ten.client.subscribe(inbox)
        ten.client.publish(message.reply, b'+NXT {"batch":2,"no_wait":true}', reply=inbox)
        assert seqs_of([ten.client.next(sid), ten.client.next(sid)]) == [2, 3]
        assert floor(ten) == ((1, 1), 2)
        assert position(ten.info("C"), "delivered") == (3, 3)


class TestRedelivery:
    def test_messages_are_redelivered_after_ack_wait(self, ten: Reading) -> None:
        full = {"max_ack_pending": 6}  # no new message is delivered before these
        ten.made("C", ack_wait=60 * SECOND, **full)
        ten.fetch("C", 3)
        again = [ack_of(m) for m in ten.fetch("C", 3)]
        assert [ack.seq for ack in again] == [4, 5, 6]
        ten.made("C", ack_wait=200 * MS, **full)  # only now, so that the second three have enough time
        time.sleep(0.5)
        again = [ack_of(m) for m in ten.fetch("C", 6)]
        assert [(ack.delivered, ack.seq) for ack in again] == [(2, seq) for seq in range(1, 7)]
        assert [ack.cseq for ack in again] == list(range(7, 13))
        info = ten.info("C")
        assert (info["num_redelivered"], info["num_ack_pending"], info["num_pending"]) == (6, 6, 4)
        assert position(info, "delivered") == (12, 6)

    def test_at_once_when_refused(self, ten: Reading) -> None:
        ten.made("C")
        one, two, _ = ten.fetch("C", 3)
        ten.confirm(two, b"-NAK")
        ten.confirm(one, b"-NAK")
        assert [ack_of(m)[:2] for m in ten.fetch("C", 3)] == [(2, 2), (2, 1), (1, 4)]

    @pytest.mark.parametrize("argument", [b'{"delay":300000000}', b"300ms"])
    def test_a_nak_with_delay_redelivers_after_it(self, ten: Reading, argument: bytes) -> None:
        ten.made("C", deliver_policy="by_start_sequence", opt_start_seq=10)
        message = ten.fetch("C", 1)[0]
        started = time.monotonic()
        ten.confirm(message, b"-NAK " + argument)
        assert ack_of(ten.fetch("C", 1)[0])[:2] == (2, 10)
        assert 0.25 < time.monotonic() - started < 60

    def test_a_sign_of_life_postpones(self, ten: Reading) -> None:
        for wait_ms in (400, 2_000, 6_000):  # longer if the progress ack came too late
            consumer = f"C{wait_ms}"
            ten.made(consumer, ack_wait=wait_ms * MS, deliver_policy="by_start_sequence", opt_start_seq=10)
            started = time.monotonic()
            message = ten.fetch(consumer, 1)[0]
            time.sleep(0.6 * wait_ms / 1000)
            signed = time.monotonic()
            ten.confirm(message, b"+WPI")
            if time.monotonic() - started < wait_ms / 1000:
                break
        assert ack_of(ten.fetch(consumer, 1)[0])[:2] == (2, 10)
        assert time.monotonic() - signed > wait_ms / 1000 - 0.02

    def test_a_shorter_wait_is_that_of_all_that_is_under_way(self, ten: Reading) -> None:
        full = {"max_ack_pending": 3}
        ten.made("C", ack_wait=60 * SECOND, **full)
        in_progress, refused, _ = ten.fetch("C", 3)
        ten.confirm(in_progress, b"+WPI")
        ten.confirm(refused, b"-NAK")
        assert ack_of(ten.fetch("C", 1)[0])[:2] == (2, 2)
        ten.made("C", ack_wait=200 * MS, **full)
        first: dict[int, int] = {}
        while len(first) < 3:
            ack = ack_of(ten.fetch("C", 1)[0])
            first.setdefault(ack.seq, ack.delivered)
        assert first == {1: 2, 2: 3, 3: 2}

    def test_backoff_until_the_last_try(self, ten: Reading) -> None:
        """Vector 10, twice as fast."""
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{ten.name}.C")
        ten.made(
            "C",
            backoff=[100 * MS, 200 * MS, 400 * MS],
            max_deliver=4,
            deliver_policy="by_start_sequence",
            opt_start_seq=10,
        )
        started = time.monotonic()
        sid = ten.ask("C", {"batch": 10, "expires": 60 * SECOND})
        arrivals = []
        for _ in range(4):
            ten.client.next(sid)
            arrivals.append(time.monotonic() - started)
        # Only the machine can make deliveries late; none comes early, and the defaults would take half a minute.
        for arrival, earliest in zip(arrivals, (0, 0.1, 0.3, 0.7), strict=True):
            assert earliest - 0.02 < arrival < earliest + 60
        event = ten.client.next(events).json
        assert (event["stream_seq"], event["deliveries"]) == (10, 4)
        info = ten.info("C")
        assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 1)

    def test_a_push_consumer_delivers_again(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-again"
        sid = ten.client.subscribe(inbox)
        ten.made("C", deliver_subject=inbox, ack_wait=60 * SECOND)
        messages = [ten.client.next(sid) for _ in range(10)]
        for message in messages[:9]:
            ten.confirm(message)
        ten.made(
            "C", deliver_subject=inbox, ack_wait=200 * MS
        )  # only now, so that all others have enough time
        assert ack_of(ten.client.next(sid))[:2] == (2, 10)

    def test_redeliveries_go_out_although_it_is_full(self, ten: Reading) -> None:
        ten.made("C", max_ack_pending=2, ack_wait=200 * MS)
        ten.fetch("C", 2)
        assert [ack_of(m)[:2] for m in ten.fetch("C", 2)] == [(2, 1), (2, 2)]

    def test_a_deleted_message_is_terminated(self, ten: Reading) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{ten.name}.C")
        ten.made("C")
        ten.fetch("C", 2)
        ten.client.api(f"STREAM.MSG.DELETE.{ten.name}", {"seq": 1})
        event = ten.client.next(events).json
        assert (event["stream_seq"], event["reason"]) == (1, "Unacknowledged message was deleted")
        assert floor(ten) == ((1, 1), 1)

    def test_a_purge_moves_everything(self, ten: Reading) -> None:
        ten.made("C")
        ten.fetch("C", 3)
        ten.client.api(f"STREAM.PURGE.{ten.name}")
        info = eventually(lambda: (found := ten.info("C"))["num_ack_pending"] == 0 and found)
        assert (info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"], info["num_pending"]) == (
            10,
            10,
            0,
        )
        ten.fill(1)
        assert ack_of(ten.fetch("C", 1)[0]).seq == 11


class TestRetention:
    def test_a_work_queue_removes_what_is_done(self, reading: Make) -> None:
        """Vector 11."""
        stream = reading(retention="workqueue")
        stream.fill(4)
        stream.made("C")
        one, two, three, _ = stream.fetch("C", 4)
        stream.confirm(one)
        stream.confirm(two, b"+TERM")
        stream.confirm(three, b"-NAK")
        assert (stream.state()["messages"], stream.state()["first_seq"]) == (2, 3)
        assert stream.create("D")["error"]["err_code"] == 10099
        assert stream.create("D", filter_subject=stream.subject("s"))["error"]["err_code"] == 10100
        stream.client.api(f"CONSUMER.DELETE.{stream.name}.C")
        assert stream.state()["messages"] == 2

    def test_consumers_of_a_work_queue_share_by_filter(self, reading: Make) -> None:
        stream = reading(retention="workqueue")
        stream.fill(6, "a", "b", "c")
        stream.made("A", filter_subject=stream.subject("a"))
        stream.made("B", filter_subject=stream.subject("b"))
        for message in (*stream.fetch("A", 2), *stream.fetch("B", 2)):
            stream.confirm(message)
        eventually(lambda: stream.state()["messages"] == 2)

    def test_interest_keeps_until_all_are_done(self, reading: Make) -> None:
        """Vector 12."""
        stream = reading(retention="interest")
        stream.made("a")
        stream.made("b", filter_subject=stream.subject("i.2"))
        stream.fill(4, "i.1", "i.2")
        for message in stream.fetch("a", 4):
            stream.confirm(message)
        eventually(lambda: stream.state()["messages"] == 2)
        stream.confirm(stream.fetch("b", 1)[0])
        eventually(lambda: stream.state()["messages"] == 1)
        stream.client.api(f"CONSUMER.DELETE.{stream.name}.b")
        eventually(lambda: stream.state()["messages"] == 0)

    def test_without_interest_nothing_is_stored(self, reading: Make) -> None:
        stream = reading(retention="interest")
        stream.fill(2)
        assert (stream.state()["messages"], stream.state()["last_seq"]) == (0, 2)
        stream.made("a", filter_subject=stream.subject("x"))
        stream.fill(2, "x", "y")
        assert (stream.state()["messages"], stream.state()["last_seq"]) == (1, 4)

    def test_delivery_is_enough_without_acknowledgement(self, reading: Make) -> None:
        stream = reading(retention="interest")
        stream.made("a", ack_policy="none")
        stream.fill(4)
        assert stream.state()["messages"] == 4
        stream.fetch("a", 3)
        eventually(lambda: stream.state()["messages"] == 1)

    def test_a_narrower_filter_lets_go(self, reading: Make) -> None:
        stream = reading(retention="interest")
        stream.made("a")
        stream.fill(4, "x", "y")
        stream.made("a", filter_subject=stream.subject("x"))
        eventually(lambda: stream.state()["messages"] == 2)
        assert seqs_of(stream.available("a")) == [1, 3]

    def test_a_new_consumer_does_not_hold_what_came_before(self, reading: Make) -> None:
        stream = reading(retention="interest")
        stream.made("a")
        stream.fill(3)
        stream.made("n", deliver_policy="new")
        for message in stream.fetch("a", 3):
            stream.confirm(message)
        eventually(lambda: stream.state()["messages"] == 0)

    def test_given_up_messages_stay(self, reading: Make) -> None:
        stream = reading(retention="workqueue")
        stream.fill(1)
        stream.made("C", max_deliver=1, ack_wait=100 * MS)
        stream.fetch("C", 1)
        eventually(lambda: stream.info("C")["num_ack_pending"] == 0)
        assert stream.state()["messages"] == 1


class TestRestart:
    def test_state_comes_back(self, fresh_server: Server, connect: Callable[..., Any], name: str) -> None:
        stream = Reading(connect(fresh_server), name)
        stream.client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        stream.fill(10)
        stream.made("C", ack_wait=60 * SECOND)
        stream.made("M", mem_storage=True)
        messages = stream.fetch("C", 6)
        for message in (messages[0], messages[1], messages[3]):
            stream.confirm(message)
        stream.confirm(messages[2], b"-NAK")
        assert ack_of(stream.fetch("C", 1)[0])[:3] == (2, 3, 7)
        before = stream.info("C")
        stream.client.close()
        fresh_server.restart()
        stream = Reading(connect(fresh_server), name)
        after = stream.info("C")
        for part in ("config", "created", "num_ack_pending", "num_redelivered", "num_pending"):
            assert after[part] == before[part], part
        assert (position(after, "delivered"), position(after, "ack_floor")) == ((7, 6), (2, 2))
        assert seqs_of(stream.fetch("C", 4)) == [7, 8, 9, 10]
        assert stream.info("M")["error"]["err_code"] == 10014

    def test_confirmed_means_done_even_after_a_crash(
        self, fresh_server: Server, connect: Callable[..., Any], name: str
    ) -> None:
        stream = Reading(connect(fresh_server), name)
        stream.client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        stream.fill(6)
        stream.made("C", ack_wait=500 * MS)
        messages = stream.fetch("C", 5)
        started = time.time()
        for message in messages[1:4]:
            stream.confirm(message)
        fresh_server.written_since(started, name, "C")
        stream.client.close()
        fresh_server.restart(crash=True)
        stream = Reading(connect(fresh_server), name)
        seen = {ack_of(m).seq for m in stream.fetch("C", 3)}
        assert seen == {1, 5, 6}
