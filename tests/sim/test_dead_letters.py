"""Dead letters: single cases in a simulated server."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.consumers.delivery_loop import DeliveryLoop
from headrace.broker.consumers.redelivery import LETTER_BYTES_PER_TURN, Redelivery
from headrace.broker.stream import Stream
from headrace.jetstream_api.times import format_time
from headrace.sim.clock import SECOND_NS
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StreamLog

from .test_keyed_consumers import Inbox, make_broker, make_consumer, make_letters, store

#: Dead letters of messages that were delivered too often, or terminated.
BOTH = {"subject": "dlq.s", "on": ["max_deliver", "term"]}


def fail_reads(
    monkeypatch: pytest.MonkeyPatch, broker: SimBroker, name: str, failures: list[Exception]
) -> None:
    """Let reads of a stream's messages fail, each with one of these errors."""
    log, get = broker.jetstream.streams[name].log, StreamLog.get

    def read(self: StreamLog, seq: int) -> Any:
        if self is log and failures:
            raise failures.pop()
        return get(self, seq)

    monkeypatch.setattr(StreamLog, "get", read)


def test_a_read_that_fails_forgets_no_message_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter=BOTH)
    store(broker, *["s.a"] * 20)
    assert len(Inbox(broker).pull()) == 20
    fail_reads(monkeypatch, broker, "S", [OSError(5, "input/output error")])
    broker.advance(SECOND_NS + SECOND_NS // 2)
    assert (letters.messages, len(consumer.ack_state.pending)) == (19, 1)
    assert consumer.ack_handler.dead_letters.failed == 1
    broker.advance(2 * SECOND_NS)
    assert (letters.messages, len(consumer.ack_state.pending)) == (20, 0)


def test_an_error_makes_the_rest_of_what_is_due_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error is: the deadlines of up to 64 messages had been removed."""
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter=BOTH)
    store(broker, *["s.a"] * 20)
    assert len(Inbox(broker).pull()) == 20
    redeliver_one, failures = Redelivery._redeliver_one, [OSError(5, "input/output error")]

    def fail_once(self: Redelivery, seq: int, *others: Any) -> bool:
        if seq == 5 and failures:
            raise failures.pop()
        return redeliver_one(self, seq, *others)

    monkeypatch.setattr(Redelivery, "_redeliver_one", fail_once)
    with pytest.raises(OSError, match="input/output"):
        broker.advance(2 * SECOND_NS)
    broker.advance(5 * SECOND_NS)
    assert (letters.messages, len(consumer.ack_state.pending)) == (20, 0)


def test_a_read_that_fails_forgets_no_redelivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, what was queued has no deadline."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker)
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    consumer.ack_state.ack_deadlines.clear()
    consumer.ack_state.enqueue(1)
    fail_reads(monkeypatch, broker, "S", [OSError(5, "input/output error")])
    inbox.replies.clear()
    with pytest.raises(OSError, match="input/output"):
        inbox.pull()
    broker.advance(2 * SECOND_NS)
    inbox.pull()
    assert list(inbox.replies) == [1]


@pytest.mark.parametrize("limit", [0, 1])
def test_a_nak_of_the_last_delivery_needs_no_pull_request_to_become_a_dead_letter(limit: int) -> None:
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(
        broker, max_deliver=1, ack_wait=SECOND_NS, max_ack_pending_per_subject=limit, dead_letter=BOTH
    )
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull(1) == [1]
    inbox.ack(1, payload=b"-NAK")
    broker.advance(2 * SECOND_NS)
    assert letters.messages == 1
    assert not consumer.ack_state.pending


def test_large_dead_letters_are_published_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of a megabyte took 14 ms."""
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter=BOTH)
    size = LETTER_BYTES_PER_TURN // 4
    for _ in range(30):
        broker.publish("s.a", b"x" * size)
    broker.run_until_idle()
    assert len(Inbox(broker).pull()) == 30
    published = []
    redeliver_expired = Redelivery.redeliver_expired

    def count_letters(self: Redelivery, now_ns: int) -> None:
        before = letters.messages
        redeliver_expired(self, now_ns)
        published.append(letters.messages - before)

    monkeypatch.setattr(Redelivery, "redeliver_expired", count_letters)
    broker.advance(2 * SECOND_NS)
    assert (sum(published), max(published)) == (30, 4)
    assert not consumer.ack_state.pending
    cost = []
    redeliver = DeliveryLoop._redeliver

    def record_cost(loop: DeliveryLoop, now_ns: int) -> Any:
        cost.append(redeliver(loop, now_ns))
        return cost[-1]

    monkeypatch.setattr(DeliveryLoop, "_redeliver", record_cost)
    broker.publish("s.a", b"x" * size)
    broker.run_until_idle()
    inbox = Inbox(broker)
    inbox.pull(1)
    inbox.ack(31, payload=b"-NAK")
    inbox.pull(1)
    assert letters.messages == 31
    assert cost == [cost[0]]
    assert cost[0] >= 4 * size


def terminate(broker: SimBroker, *seqs: int) -> None:
    """Make these messages dead letters."""
    inbox = Inbox(broker)
    inbox.pull()
    inbox.ack(*seqs, payload=b"+TERM")


def redrive(broker: SimBroker, seq: int = 1) -> dict[str, Any]:
    response: dict[str, Any] = broker.call("STREAM.MSG.REDRIVE.D", seq=seq)
    broker.run_until_idle()
    return response


def make_scheduled(broker: SimBroker) -> StreamLog:
    config = {"subjects": ["s.>"], "allow_msg_schedules": True, "allow_msg_ttl": True}
    assert "error" not in broker.call("STREAM.CREATE.S", name="S", **config)
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"])
    log: StreamLog = broker.jetstream.streams["S"].log
    return log


def plan(broker: SimBroker, pattern: str) -> None:
    broker.publish("s.plan", b"x", Nats_Schedule=pattern, Nats_Schedule_Target="s.out")
    broker.run_until_idle()


def test_what_is_redriven_purges_no_schedule() -> None:
    """The message of a schedule that fired says that its schedule is over; there is a new one meanwhile."""
    broker = make_broker()
    log = make_scheduled(broker)
    make_consumer(broker, filter_subject="s.out", dead_letter=BOTH)
    plan(broker, "@at " + format_time(broker.jetstream.clock.wall_ns() + 2 * SECOND_NS))
    broker.advance(4 * SECOND_NS)
    terminate(broker, 2)
    plan(broker, "@at " + format_time(broker.jetstream.clock.wall_ns() + 3600 * SECOND_NS))
    assert log.get_subject_count(b"s.plan") == 1
    assert redrive(broker)["seq"] == 4
    assert log.get_subject_count(b"s.plan") == 1
    assert b"Nats-DL-Header-Schedule-Next: purge\r\n" in log.get(4)[2]


def test_a_schedule_that_is_redriven_does_not_start_again() -> None:
    broker = make_broker()
    log = make_scheduled(broker)
    make_consumer(broker, filter_subject="s.plan", dead_letter=BOTH)
    plan(broker, "@every 2s")
    terminate(broker, 1)
    response = redrive(broker)
    assert "the schedule on s.plan would end" in response["error"]["description"]
    assert broker.jetstream.streams["D"].log.messages == 1
    broker.call("STREAM.PURGE.S")
    assert redrive(broker)["success"]
    last_seq = log.last_seq
    broker.advance(20 * SECOND_NS)
    assert log.last_seq == last_seq
    assert b"\r\nNats-DL-Header-Schedule: @every 2s\r\n" in log.get(last_seq)[2]


@pytest.mark.parametrize("with_ttl", [True, False])
def test_the_ttl_of_what_is_redriven_counts_or_stays_renamed(with_ttl: bool) -> None:
    broker = make_broker()
    log = make_scheduled(broker)
    make_consumer(broker, dead_letter=BOTH)
    broker.publish("s.a", b"x", Nats_TTL="5s", Nats_Rollup="sub")
    broker.run_until_idle()
    terminate(broker, 1)
    if not with_ttl:
        broker.call("STREAM.DELETE.S")
        broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
        log = broker.jetstream.streams["S"].log
    at = redrive(broker)["seq"]
    header = log.get(at)[2]
    assert (b"\r\nNats-TTL: 5s\r\n" in header) == with_ttl
    assert (b"\r\nNats-DL-Header-TTL: 5s\r\n" in header) != with_ttl
    assert b"\r\nNats-DL-Header-Rollup: sub\r\n" in header  # a copy of the stream would act on it
    broker.advance(10 * SECOND_NS)
    assert (log.get(at) is None) == with_ttl


def test_the_transform_of_a_stream_does_not_stop_a_redrive() -> None:
    """Neither is the stored subject searched for as a published one, nor is it changed again."""
    broker = make_broker()
    transform = {"src": "parcels.*", "dest": "{{partition(4,1)}}.parcels.{{wildcard(1)}}"}
    broker.call("STREAM.CREATE.S", name="S", subjects=["parcels.*"], subject_transform=transform)
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"])
    make_consumer(broker, dead_letter=BOTH)
    store(broker, "parcels.ann")
    log = broker.jetstream.streams["S"].log
    subject = log.get(1)[1]
    assert subject != b"parcels.ann"
    terminate(broker, 1)
    assert redrive(broker)["seq"] == 2
    assert log.get(2)[1] == subject
    broker.call(
        "STREAM.UPDATE.S", name="S", subjects=["parcels.*"], subject_transform={"src": ">", "dest": "x.>"}
    )
    terminate(broker, 2)
    assert redrive(broker, 2)["seq"] == 3
    assert log.get(3)[1] == subject


def test_a_dead_letter_of_a_stream_that_is_gone_goes_to_the_stream_that_captures_it() -> None:
    broker = make_broker()
    make_letters(broker)
    make_consumer(broker, dead_letter=BOTH)
    store(broker, "s.a", "s.b")
    terminate(broker, 1, 2)
    broker.call("STREAM.DELETE.S")
    assert "no stream captures s.a" in redrive(broker)["error"]["description"]
    broker.call(
        "STREAM.CREATE.N",
        name="N",
        subjects=["s.*"],
        subject_transform={"src": "s.*", "dest": "n.{{wildcard(1)}}"},
    )
    assert redrive(broker)["stream"] == "N"
    assert broker.jetstream.streams["N"].log.get(1)[1] == b"n.a"


def create_consumer(broker: SimBroker, **config: Any) -> str:
    """Create a consumer with dead letters; return the error."""
    config = {"durable_name": "C", "ack_policy": "explicit", "dead_letter": BOTH, **config}
    response = broker.call("CONSUMER.CREATE.S.C", stream_name="S", config=config)
    return str(response.get("error", {}).get("description", ""))


@pytest.mark.parametrize(
    ("dead", "other", "stream", "text"),
    [
        ({"republish": {"src": "dlq.>", "dest": "s.>"}}, {}, {}, "stream 'D' republishes them"),
        ({}, {}, {"sources": [{"name": "D"}]}, "stream 'S' copies stream 'D'"),
        ({}, {}, {"subjects": [], "mirror": {"name": "D"}}, "stream 'S' copies stream 'D'"),
        (
            {},
            {
                "subjects": [],
                "mirror": {"name": "D"},
                "republish": {"src": "*.s", "dest": "s.{{wildcard(1)}}"},
            },
            {},
            "stream 'O' republishes them",
        ),
        (
            {},
            {"sources": [{"name": "D", "subject_transforms": [{"src": "dlq.>", "dest": "o.>"}]}]},
            {"sources": [{"name": "O", "filter_subject": "o.s"}]},
            "stream 'S' copies stream 'O'",
        ),
    ],
)
def test_dead_letters_must_not_come_back_as_copies(
    dead: dict[str, Any], other: dict[str, Any], stream: dict[str, Any], text: str
) -> None:
    broker = make_broker()
    for name, config in (("D", dead), ("O", other), ("S", stream)):
        subjects = {"D": ["dlq.>"], "O": ["other"], "S": ["s.>"]}[name]
        response = broker.call(f"STREAM.CREATE.{name}", name=name, **{"subjects": subjects, **config})
        assert "error" not in response, response
    problem = create_consumer(broker)
    assert "dead letters on 'dlq.s' would come back to the same stream: " + text in problem


def test_copies_of_dead_letters_are_allowed_if_the_consumer_does_not_get_them() -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"])
    sources = [{"name": "D", "filter_subject": "dlq.t"}]
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], sources=sources)
    assert not create_consumer(broker)
    broker.call("STREAM.UPDATE.S", name="S", subjects=["s.>"], sources=[{"name": "D"}])
    assert not create_consumer(broker, filter_subject="s.>")
    store(broker, "s.a")
    terminate(broker, 1)
    assert broker.jetstream.streams["D"].log.messages == 1


def test_a_source_that_is_added_later_ends_no_message_in_a_loop() -> None:
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(broker, ack_wait=SECOND_NS, dead_letter=BOTH)
    store(broker, "s.a", "s.b")
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 2]
    inbox.ack(1, payload=b"+TERM")
    assert letters.messages == 1
    assert "error" not in broker.call("STREAM.UPDATE.S", name="S", subjects=["s.*"], sources=[{"name": "D"}])
    inbox.ack(2, payload=b"+TERM")
    assert letters.messages == 1
    assert 2 in consumer.ack_state.pending
    assert "error" not in broker.call("STREAM.UPDATE.S", name="S", subjects=["s.*"])
    broker.advance(60 * SECOND_NS)
    assert (letters.messages, 2 in consumer.ack_state.pending) == (2, False)


def test_the_target_is_searched_once_for_many_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4,000 consumers of the target, a turn took 201 ms: they were sorted for each letter."""
    broker = make_broker()
    letters = make_letters(broker)
    make_consumer(broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter=BOTH)
    store(broker, *["s.a"] * 100)
    assert len(Inbox(broker).pull()) == 100
    consumer_configs, searches = Stream.consumer_configs, []

    def count(self: Stream) -> Any:
        searches.append(self.name)
        return consumer_configs(self)

    monkeypatch.setattr(Stream, "consumer_configs", count)
    broker.advance(2 * SECOND_NS)
    assert letters.messages == 100
    assert searches.count("D") <= 1


def make_full(broker: SimBroker) -> None:
    """Make a stream of dead letters that has no room for any."""
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"], max_msgs=1, discard="new")
    store(broker, "dlq.full")


def test_a_reset_forgets_what_was_terminated() -> None:
    broker = make_broker()
    make_full(broker)
    consumer = make_consumer(broker, ack_wait=SECOND_NS, dead_letter=BOTH)
    store(broker, "s.a")
    terminate(broker, 1)
    broker.call("CONSUMER.RESET.S.C")
    assert Inbox(broker).pull() == [1]
    broker.call("STREAM.PURGE.D")
    broker.advance(5 * SECOND_NS)
    assert not broker.jetstream.streams["D"].log.messages
    assert list(consumer.ack_state.pending) == [1]


def test_what_was_terminated_and_then_acknowledged_or_removed_costs_no_memory() -> None:
    broker = make_broker()
    make_full(broker)
    consumer = make_consumer(broker, dead_letter=BOTH)
    store(broker, *["s.a"] * 300)
    inbox = Inbox(broker)
    assert len(inbox.pull(300)) == 300
    for seq in range(1, 301):
        inbox.ack(seq, payload=b"+TERM")
        if seq % 2:
            inbox.ack(seq)
        else:
            broker.call("STREAM.MSG.DELETE.S", seq=seq)
    assert not consumer.ack_state.pending
    assert len(consumer.ack_handler.dead_letters._terminated) < 70
