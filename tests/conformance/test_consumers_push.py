"""Push consumers: interest, groups, heartbeats, flow control, rate limits, acks by flow control."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, position, seqs_of
from conformance.servers import Server

Make = Callable[..., Reading]
FLOW = "100 FlowControl Request"


@pytest.fixture
def inbox(client: Client) -> str:
    return f"{client.inbox}-push-{time.monotonic_ns()}"


class TestInterest:
    def test_a_listener_gets_everything_and_then_what_is_new(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        info = ten.made("C", deliver_subject=inbox, ack_policy="none")
        assert info["config"]["deliver_subject"] == inbox
        messages = [ten.client.next(sid) for _ in range(10)]
        assert [m.subject for m in messages] == [ten.subject("s")] * 10
        assert seqs_of(messages) == list(range(1, 11))
        ten.fill(1)
        assert ack_of(ten.client.next(sid))[:3] == (1, 11, 11)
        assert ten.info("C")["push_bound"] is True

    def test_without_a_listener_nothing_moves(self, ten: Reading, inbox: str) -> None:
        ten.made("C", deliver_subject=inbox)
        assert "push_bound" not in ten.info("C")
        sid = ten.client.subscribe(inbox)
        assert seqs_of([ten.client.next(sid) for _ in range(10)]) == list(range(1, 11))
        ten.client.unsubscribe(sid)
        ten.client.flush()
        eventually(lambda: "push_bound" not in ten.info("C"))
        ten.fill(1)
        assert position(ten.info("C"), "delivered") == (10, 10)
        sid = ten.client.subscribe(inbox)
        assert ack_of(ten.client.next(sid)).seq == 11

    def test_a_wildcard_does_not_count(self, ten: Reading, inbox: str) -> None:
        ten.client.subscribe(f"{inbox}.*")
        ten.made("C", deliver_subject=f"{inbox}.x")
        time.sleep(0.1)
        assert "push_bound" not in ten.info("C")
        assert position(ten.info("C"), "delivered") == (0, 0)

    def test_the_wrong_kind_of_listener_does_not_count(self, ten: Reading, inbox: str) -> None:
        grouped = ten.client.subscribe(f"{inbox}.plain", "g")
        ten.made("P", deliver_subject=f"{inbox}.plain")
        plain = ten.client.subscribe(f"{inbox}.group")
        other = ten.client.subscribe(f"{inbox}.group", "other")
        ten.made("G", deliver_subject=f"{inbox}.group", deliver_group="g")
        time.sleep(0.1)
        for sid in (grouped, plain, other):
            assert not ten.client.pending(sid)

    def test_members_of_a_group_share(self, ten: Reading, inbox: str) -> None:
        members = [ten.client.subscribe(inbox, "g") for _ in range(3)]
        ten.made("C", deliver_subject=inbox, deliver_group="g")
        got: list[int] = []

        def collected() -> int:
            for sid in members:
                got.extend(seqs_of(ten.client.pending(sid)))
            return len(got)

        eventually(lambda: collected() >= 10)
        assert sorted(got) == list(range(1, 11))
        assert position(ten.info("C"), "delivered") == (10, 10)

    def test_two_listeners_both_get_everything(self, ten: Reading, inbox: str) -> None:
        sids = [ten.client.subscribe(inbox) for _ in range(2)]
        ten.made("C", deliver_subject=inbox, ack_policy="none")
        for sid in sids:
            assert seqs_of([ten.client.next(sid) for _ in range(10)]) == list(range(1, 11))

    def test_auto_unsubscribe_ends_delivery(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.client.unsubscribe(sid, after=4)
        ten.made("C", deliver_subject=inbox, ack_policy="none")
        assert seqs_of([ten.client.next(sid) for _ in range(4)]) == [1, 2, 3, 4]
        eventually(lambda: "push_bound" not in ten.info("C"))


class TestTime:
    def test_push_consumers_send_idle_heartbeats(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        started = time.monotonic()
        ten.made("C", deliver_subject=inbox, ack_policy="none", idle_heartbeat=200 * MS)
        for _ in range(10):
            ten.client.next(sid)
        beat = ten.client.next(sid)
        assert beat.header == (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 10\r\nNats-Last-Stream: 10\r\n\r\n"
        )
        assert (beat.subject, beat.reply) == (inbox, "")
        assert 0.19 < time.monotonic() - started < 60

    def test_replay_at_the_original_speed(self, reading: Make, inbox: str) -> None:
        stream = reading()
        for _ in range(3):
            stream.fill(1)
            time.sleep(0.2)
        sid = stream.client.subscribe(inbox)
        started = time.monotonic()
        stream.made("C", deliver_subject=inbox, ack_policy="none", replay_policy="original")
        arrivals, stored = [], []
        for _ in range(3):
            stored.append(ack_of(stream.client.next(sid)).time_ns)
            arrivals.append(time.monotonic() - started)
        for arrival, stored_ns in zip(arrivals, stored, strict=True):
            earliest = (stored_ns - stored[0]) / SECOND
            assert earliest - 0.05 < arrival < earliest + 60

    def test_a_rate_limit_spreads_deliveries(self, reading: Make, inbox: str) -> None:
        stream = reading(max_msg_size=1000)
        for _ in range(10):
            stream.client.store(stream.subject("s"), b"x" * 850)
        sid = stream.client.subscribe(inbox)
        started = time.monotonic()
        stream.made("C", deliver_subject=inbox, ack_policy="none", rate_limit_bps=80_000)
        for _ in range(10):
            stream.client.next(sid)
        assert 0.6 < time.monotonic() - started < 7  # eight seconds if the limit were in bytes


class TestFlowControl:
    def test_the_flow_control_window_stops_and_doubles(self, reading: Make, inbox: str) -> None:
        """Vector 9: a request after half the window, a stop at its end, and twice as much after a reply."""
        stream = reading(storage="memory")
        for _ in range(560):
            stream.client.publish(stream.subject("s"), b"x" * 10_000)
        eventually(lambda: stream.state()["messages"] == 560)
        sid = stream.client.subscribe(inbox)
        stream.made(
            "C", deliver_subject=inbox, ack_policy="none", flow_control=True, idle_heartbeat=30 * SECOND
        )
        got: list[Any] = []
        asked = []
        while len(got) < 207:
            message = stream.client.next(sid)
            if message.reply.startswith("$JS.FC."):
                assert message.header == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
                asked.append(len(got))
                reply = message.reply
            else:
                got.append(message)
        assert 103 <= asked[0] <= 106
        assert re.fullmatch(rf"\$JS\.FC\.{stream.name}\.C\.\w{{4}}", reply)
        time.sleep(0.1)
        rest = stream.client.pending(sid)
        assert 207 <= len(got) + len(rest) <= 211
        stream.client.publish(reply)
        more = [stream.client.next(sid) for _ in range(310)]
        assert len([m for m in more if not m.reply.startswith("$JS.FC.")]) >= 308

    def test_a_stalled_consumer_says_so(self, reading: Make, inbox: str) -> None:
        stream = reading(storage="memory")
        for _ in range(230):
            stream.client.publish(stream.subject("s"), b"x" * 10_000)
        eventually(lambda: stream.state()["messages"] == 230)
        sid = stream.client.subscribe(inbox)
        stream.made("C", deliver_subject=inbox, ack_policy="none", flow_control=True, idle_heartbeat=100 * MS)
        while True:
            message = stream.client.next(sid)
            if message.status == FLOW:
                asked = message.reply
            if "Nats-Consumer-Stalled" in message.headers:
                break
        assert message.headers["Nats-Consumer-Stalled"] == asked


class TestFlowAcknowledgement:
    def test_ack_policy_flow_control_sets_its_defaults(self, ten: Reading, inbox: str) -> None:
        config = ten.made("C", ack_policy="flow_control", deliver_subject=inbox)["config"]
        assert (config["flow_control"], config["idle_heartbeat"], config["max_ack_pending"]) == (
            True,
            SECOND,
            1000,
        )
        assert "ack_wait" not in config
        assert config["metadata"]["_nats.req.level"] == "4"

    @pytest.mark.parametrize(
        ("config", "code"),
        [
            ({"deliver_subject": None}, 10218),
            ({"max_ack_pending": -1}, 10220),
            ({"ack_wait": SECOND}, 10221),
            ({"max_deliver": 3}, 10222),
        ],
    )
    def test_ack_policy_flow_control_refuses_contradicting_options(
        self, ten: Reading, inbox: str, config: dict[str, Any], code: int
    ) -> None:
        base = {"ack_policy": "flow_control", "deliver_subject": inbox}
        assert ten.create("C", **{**base, **config})["error"]["err_code"] == code

    def test_a_full_consumer_asks_at_once(self, reading: Make, inbox: str) -> None:
        """Vector 8 of the sourcing specification."""
        stream = reading(retention="workqueue")
        stream.fill(8)
        sid = stream.client.subscribe(inbox)
        stream.made("A", ack_policy="flow_control", deliver_subject=inbox, max_ack_pending=3)
        first = [stream.client.next(sid) for _ in range(4)]
        assert seqs_of(first[:3]) == [1, 2, 3]
        assert first[3].status == FLOW
        beat = stream.client.next(sid)
        assert beat.headers["Nats-Consumer-Stalled"] == first[3].reply
        stream.client.publish(first[3].reply, headers={"Nats-Last-Consumer": "2", "Nats-Last-Stream": "2"})
        more = stream.beyond_heartbeats(sid, 3)
        assert seqs_of(more[:2]) == [4, 5]
        assert more[2].status == FLOW
        assert position(stream.info("A"), "ack_floor") == (2, 2)
        eventually(lambda: stream.state()["first_seq"] == 3)

    def test_an_idle_consumer_asks_with_its_heartbeat(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox)
        messages = [ten.client.next(sid) for _ in range(12)]
        assert [m.status for m in messages[10:]] == ["100 Idle Heartbeat", FLOW]
        assert position(ten.info("A"), "ack_floor") == (0, 0)
        ten.client.publish(messages[-1].reply, headers={"Nats-Last-Consumer": "10", "Nats-Last-Stream": "10"})
        eventually(lambda: position(ten.info("A"), "ack_floor") == (10, 10))
        assert ten.info("A")["num_ack_pending"] == 0

    def test_an_answer_without_headers_acknowledges_nothing(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox, max_ack_pending=3)
        asked = [ten.client.next(sid) for _ in range(4)][-1]
        ten.client.publish(asked.reply)
        ten.client.flush()
        info = ten.info("A")
        assert (position(info, "ack_floor"), info["num_ack_pending"]) == ((0, 0), 3)

    def test_ordinary_acknowledgements_find_nobody(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox)
        assert ten.confirm(ten.client.next(sid)).status == "503"

    @pytest.mark.ours_only("A flow-control reply cannot acknowledge undelivered messages")
    def test_an_answer_beyond_what_was_delivered(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox, max_ack_pending=3)
        asked = [ten.client.next(sid) for _ in range(4)][-1]
        ten.client.publish(asked.reply, headers={"Nats-Last-Consumer": "99", "Nats-Last-Stream": "99"})
        eventually(lambda: position(ten.info("A"), "ack_floor") == (3, 3))

    def test_an_answer_with_thousands_of_digits(self, ten: Reading, inbox: str) -> None:
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox, max_ack_pending=3)
        asked = [ten.client.next(sid) for _ in range(4)][-1]
        digits = "9" * 5000
        ten.client.publish(asked.reply, headers={"Nats-Last-Consumer": digits, "Nats-Last-Stream": digits})
        assert position(ten.info("A"), "ack_floor") == (0, 0)

    def test_a_sampling_frequency_with_thousands_of_digits(self, ten: Reading) -> None:
        answer = ten.create("D", sample_freq="9" * 5000)
        assert answer["error"]["err_code"] == 10095
        assert "value out of range" in answer["error"]["description"]


FORGED = pytest.mark.ours_only("A forged ack cannot move the ack floor beyond deliveries")


@pytest.mark.parametrize(
    "numbers",
    ["2.{most}.{most}", "{most}.2.2", "2.{most}.2", pytest.param("2.2.{most}", marks=FORGED)],
)
def test_a_forged_ack_does_not_move_the_floor_beyond_what_was_delivered(
    ten: Reading, inbox: str, numbers: str
) -> None:
    sid = ten.client.subscribe(inbox)
    flow = {"flow_control": True, "idle_heartbeat": 5 * SECOND}
    ten.made("F", ack_policy="all", deliver_subject=inbox, max_ack_pending=3, **flow)
    first = ten.client.next(sid)
    forged = first.reply.split(".")
    forged[4:7] = numbers.format(most=2**63 - 1).split(".")
    ten.client.publish(".".join(forged), b"+ACK")
    assert max(position(ten.info("F"), "ack_floor")) <= 3


def test_a_slow_listener_gets_everything(
    reading: Make, server: Server, connect: Callable[..., Client], inbox: str
) -> None:
    """Much more than the sockets buffer, without flow control: delivery waits for the client."""
    stream = reading(storage="memory")
    for _ in range(2000):
        stream.client.publish(stream.subject("s"), b"x" * 10_000)
    eventually(lambda: stream.state()["messages"] == 2000, 60)
    reader = connect(server)
    sid = reader.subscribe(inbox)
    reader.flush()
    stream.made("C", deliver_subject=inbox, ack_policy="none")
    time.sleep(0.3)
    assert [ack_of(reader.next(sid)).seq for _ in range(2000)] == list(range(1, 2001))
