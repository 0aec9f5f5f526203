"""Order per key and dead letters: single cases in a simulated server."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from headrace.broker.consumers import key_order, key_order_setup, passed_messages
from headrace.broker.consumers.delivery_loop import DeliveryLoop
from headrace.broker.consumers.key_order import KeyOrder
from headrace.broker.consumers.redelivery import LETTERS_PER_TURN, Redelivery
from headrace.broker.streams import retention
from headrace.sim.clock import SECOND_NS
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.network.sim_client import SimClient
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions
from headrace.storage.log.log_index import LogIndex

from .store_sizes import SIZES


def make_broker(disk: SimDisk | None = None) -> SimBroker:
    broker = SimBroker(disk or SimDisk(1), SIZES[0])
    broker.start()
    return broker


def make_consumer(broker: SimBroker, name: str = "C", **config: Any) -> Any:
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    response = broker.call(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=config)
    assert "error" not in response, response
    return broker.jetstream.streams["S"].consumers[name]


class Inbox:
    """Receives messages inside the server, and acknowledges them."""

    announced = False

    def __init__(self, broker: SimBroker, name: str = "C") -> None:
        self.broker, self.name = broker, name
        self.replies: dict[int, bytes] = {}
        broker.router.subscribe_internal(b"inbox." + name.encode(), self)

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        if reply:
            self.replies[int(reply.split(b".")[5])] = reply

    def pull(self, batch: int = 100) -> list[int]:
        """Pull what is available; return the new sequences."""
        before = set(self.replies)
        body = b'{"batch": %d, "no_wait": true}' % batch
        subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{self.name}".encode()
        self.broker.router.publish(subject, b"inbox." + self.name.encode(), b"", body)
        self.broker.run_until_idle()
        return sorted(set(self.replies) - before)

    def ack(self, *seqs: int, payload: bytes = b"") -> None:
        for seq in seqs:
            self.broker.router.publish(self.replies[seq], b"", b"", payload)
        self.broker.run_until_idle()


def store(broker: SimBroker, *subjects: str) -> None:
    for subject in subjects:
        broker.publish(subject, b"x")
    broker.run_until_idle()


def test_passed_over_messages_stay_when_many_consumers_have_acknowledged_them() -> None:
    """With more than eight consumers, messages are compared in the order of their subjects."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"], retention="interest")
    make_consumer(broker, max_ack_pending_per_subject=1)
    others = [Inbox(broker, f"O{number}") for number in range(9)]
    for other in others:
        make_consumer(broker, other.name)
    store(broker, *("s.b", "s.a") * 100)  # in several segments
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 2]
    for other in others:
        assert other.pull(200) == list(range(1, 201))
        other.ack(*range(1, 201))
    assert broker.jetstream.streams["S"].log.messages == 200
    inbox.ack(1, 2)
    assert inbox.pull() == [3, 4]


@pytest.mark.parametrize("key_tokens", ["", "2"])
def test_a_restart_continues_with_what_was_passed_over(key_tokens: str) -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    make_consumer(broker, max_ack_pending_per_subject=1, key_tokens=key_tokens)
    store(broker, "s.a", "s.a", "s.b", "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 3]
    broker.call("STREAM.MSG.DELETE.S", seq=2)  # the first that was passed over
    broker.advance(SECOND_NS)
    broker = make_broker(broker.disk.kill())
    consumer = broker.jetstream.streams["S"].consumers["C"]
    assert (consumer.ack_state.key_order.blocked, consumer.num_pending()) == (1, 1)
    again = Inbox(broker)
    again.replies = inbox.replies
    again.ack(1)
    assert again.pull() == [4]


def test_a_worker_that_lost_its_message_cannot_extend_its_deadline() -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1, ack_wait=SECOND_NS)
    store(broker, "s.a", "s.a")
    inbox = Inbox(broker)
    inbox.pull()
    first = inbox.replies[1]
    broker.advance(SECOND_NS + SECOND_NS // 10)
    inbox.pull()
    deadline_ns = consumer.ack_state.next_deadline()
    broker.advance(SECOND_NS // 2)
    broker.router.publish(first, b"", b"", b"+WPI")
    assert consumer.ack_state.next_deadline() == deadline_ns


def test_a_dead_letter_waits_for_a_target_that_survives_a_crash() -> None:
    """The target was replaced by a stream in memory after the consumer was created: the message stays pending."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    broker.call("STREAM.CREATE.D", name="D", subjects=["dead"])
    make_consumer(broker, dead_letter={"subject": "dead", "on": ["term"]})
    broker.call("STREAM.DELETE.D")
    broker.call("STREAM.CREATE.D", name="D", subjects=["dead"], storage="memory")
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    inbox.ack(1, payload=b"+TERM")
    broker.advance(SECOND_NS)
    assert broker.jetstream.streams["D"].log.messages == 0
    broker = make_broker(broker.disk.kill())
    assert list(broker.jetstream.streams["S"].consumers["C"].ack_state.pending) == [1]


@pytest.mark.parametrize("reason", ["term", "max_deliver"])
def test_a_crash_leaves_a_dead_letter_and_its_ack(reason: str) -> None:
    """They are in one frame, so that no dead letter is published twice."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    broker.call("STREAM.CREATE.D", name="D", subjects=["dead"])
    make_consumer(broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter={"subject": "dead", "on": [reason]})
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    broker.advance(SECOND_NS // 2)
    if reason == "term":
        inbox.ack(1, payload=b"+TERM")
    while not broker.jetstream.streams["D"].log.messages:
        broker.advance(SECOND_NS // 100)
    broker = make_broker(broker.disk.kill())
    assert broker.jetstream.streams["D"].log.messages == 1
    assert not broker.jetstream.streams["S"].consumers["C"].ack_state.pending


def test_a_nak_counts_after_order_per_key_was_switched_off() -> None:
    """A message that was delivered late has a higher consumer sequence than later messages of the stream."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, "s.a", "s.a", "s.b")
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 3]
    inbox.ack(1)
    assert inbox.pull() == [2]
    make_consumer(broker)
    broker.run_until_idle()
    assert consumer.ack_state.key_order is None
    assert consumer.ack_state.get_ack_floor() == (1, 1)
    first = inbox.replies.pop(3)
    broker.router.publish(first, b"", b"", b"-NAK")
    broker.run_until_idle()
    assert inbox.pull() == [3]
    inbox.ack(2, 3)
    assert consumer.ack_state.get_ack_floor() == (4, 3)


def test_requests_take_turns_also_across_blocks() -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, *(f"s.{number}" for number in range(200)))
    inboxes = [Inbox(broker, name) for name in ("A", "B")]
    for inbox in inboxes:
        subject, body = b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 99, "expires": 1000000000}'
        broker.router.publish(subject, b"inbox." + inbox.name.encode(), b"", body)
    broker.run_until_idle()
    assert [len(inbox.replies) for inbox in inboxes] == [99, 99]
    received = {**inboxes[0].replies, **inboxes[1].replies}
    assert sorted(received) == list(range(1, 199))
    assert [reply.split(b".")[6] for _, reply in sorted(received.items())] == [
        b"%d" % n for n in range(1, 199)
    ]
    assert [reply.split(b".")[8] for _, reply in sorted(received.items())] == [
        b"%d" % n for n in range(199, 1, -1)
    ]


def make_letters(broker: SimBroker, **config: Any) -> Any:
    """Make a stream of dead letters, and a consumer whose messages become dead letters."""
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"], discard="new", **config)
    return broker.jetstream.streams["D"].log


def test_dead_letters_of_many_messages_are_published_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(
        broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter={"subject": "dlq.s", "on": ["max_deliver"]}
    )
    store(broker, *["s.a"] * 300)
    assert len(Inbox(broker).pull(300)) == 300
    published = []
    redeliver_expired = Redelivery.redeliver_expired

    def count_letters(self: Redelivery, now_ns: int) -> None:
        before = letters.messages
        redeliver_expired(self, now_ns)
        published.append(letters.messages - before)

    monkeypatch.setattr(Redelivery, "redeliver_expired", count_letters)
    broker.advance(2 * SECOND_NS)
    assert (sum(published), max(published)) == (300, LETTERS_PER_TURN)
    assert not consumer.ack_state.pending


def test_an_ack_between_the_turns_does_not_stop_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker()
    letters = make_letters(broker)
    consumer = make_consumer(
        broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter={"subject": "dlq.s", "on": ["max_deliver"]}
    )
    store(broker, *["s.a"] * 300)
    assert len(Inbox(broker).pull(300)) == 300
    redeliver_expired = Redelivery.redeliver_expired

    def acknowledge_next(self: Redelivery, now_ns: int) -> None:
        redeliver_expired(self, now_ns)
        if LETTERS_PER_TURN + 1 in consumer.ack_state.pending:
            consumer.ack_state.ack(LETTERS_PER_TURN + 1)

    monkeypatch.setattr(Redelivery, "redeliver_expired", acknowledge_next)
    broker.advance(5 * SECOND_NS)
    assert letters.messages == 299
    assert not consumer.ack_state.pending


def test_a_terminated_message_becomes_a_dead_letter_later_and_is_not_redelivered() -> None:
    """Even if it was delivered `max_deliver` times meanwhile, for which this consumer wants no dead letters."""
    broker = make_broker()
    letters = make_letters(broker, max_msgs=1)
    consumer = make_consumer(
        broker, max_deliver=1, ack_wait=SECOND_NS, dead_letter={"subject": "dlq.s", "on": ["term"]}
    )
    broker.publish("dlq.full", b"x")
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    inbox.ack(1, payload=b"+TERM bad")
    assert list(consumer.ack_state.pending) == [1]
    broker.advance(5 * SECOND_NS)
    assert list(consumer.ack_state.pending) == [1]
    broker.call("STREAM.PURGE.D")
    broker.advance(5 * SECOND_NS)
    assert letters.messages == 1
    header = letters.get(letters.last_seq)[2]
    assert b"Nats-DL-Reason: term" in header
    assert not consumer.ack_state.pending


def test_a_loop_that_appears_later_leaves_the_message_pending() -> None:
    """The subjects of a stream change, so that dead letters would come back through another stream."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    broker.call("STREAM.CREATE.B", name="B", subjects=["b.*"])
    broker.call("STREAM.CREATE.C", name="C", subjects=["c.*"])
    consumer = make_consumer(broker, dead_letter={"subject": "b.dead", "on": ["term"]})
    config = {
        "durable_name": "W",
        "ack_policy": "explicit",
        "dead_letter": {"subject": "c.dead", "on": ["term"]},
    }
    assert "error" not in broker.call("CONSUMER.CREATE.B.W", stream_name="B", config=config)
    broker.call("STREAM.DELETE.C")
    assert "error" not in broker.call("STREAM.UPDATE.S", name="S", subjects=["s.*", "c.*"])
    store(broker, "s.a")
    inbox = Inbox(broker)
    assert inbox.pull(1) == [1]
    inbox.ack(1, payload=b"+TERM")
    broker.run_until_idle()
    assert list(consumer.ack_state.pending) == [1]
    assert not broker.jetstream.streams["B"].log.messages
    assert "error" not in broker.call("STREAM.UPDATE.S", name="S", subjects=["s.*"])
    broker.advance(60 * SECOND_NS)
    assert not consumer.ack_state.pending
    assert broker.jetstream.streams["B"].log.messages == 1


def test_dead_letters_must_not_come_back_through_another_stream() -> None:
    broker = make_broker()
    for name in "ABC":
        broker.call(f"STREAM.CREATE.{name}", name=name, subjects=[f"{name.lower()}.*"])

    def create(stream: str, subject: str) -> dict[str, Any]:
        letter = {"subject": subject, "on": ["max_deliver"]}
        config = {"durable_name": "C", "ack_policy": "explicit", "max_deliver": 1, "dead_letter": letter}
        response: dict[str, Any] = broker.call(
            f"CONSUMER.CREATE.{stream}.C", stream_name=stream, config=config
        )
        return response

    assert "error" not in create("A", "b.dead")
    assert "error" not in create("B", "c.dead")
    response = create("C", "a.dead")
    assert "would come back to the same stream" in response["error"]["description"]
    assert "consumer 'C' of stream 'B'" in create("C", "a.dead")["error"]["description"]


def make_stuck(broker: SimBroker, **config: Any) -> Any:
    """Return a consumer that passed over 499 messages on s.a and 10 on s.b."""
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1, **config)
    store(broker, *["s.a"] * 500, *["s.b"] * 11, *["s.c"] * 10)
    Inbox(broker).pull()
    return consumer


def test_a_new_filter_is_applied_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_messages, "_COUNT_ROWS", 64)
    broker = make_broker()
    consumer = make_stuck(broker)
    spans = []
    find_seqs = LogIndex.find_seqs

    def record_span(self: LogIndex, subject_filter: Any, lo: int, hi: int) -> Any:
        spans.append(hi - lo + 1)
        return find_seqs(self, subject_filter, lo, hi)

    monkeypatch.setattr(LogIndex, "find_seqs", record_span)
    order = consumer.ack_state.key_order
    assert order.passed == 499 + 10 + 9
    new_filter = consumer.log.get_filter((b"s.a",))
    consumer.filter = new_filter
    order.set_filter(new_filter)
    assert spans == [64]
    assert order.continue_changes()
    assert (spans, order.passed) == ([64, 64], 128)
    for seq in (70, 400):  # counted, and not counted yet
        broker.call("STREAM.MSG.DELETE.S", seq=seq)
    assert order.passed == 127
    consumer.schedule_delivery()
    broker.run_until_idle()
    assert not order.continue_changes()
    assert (max(spans), order.passed, order.blocked) == (64, 497, 1)


@pytest.mark.parametrize("filter_subject", ["s.a", "s.b"])
def test_removals_do_not_search_between_the_messages(
    monkeypatch: pytest.MonkeyPatch, filter_subject: str
) -> None:
    broker = make_broker()
    consumer = make_stuck(broker, filter_subject=filter_subject)
    order = consumer.ack_state.key_order
    before = order.passed

    def fail(*_: Any) -> None:
        raise AssertionError("searched a range")

    monkeypatch.setattr(LogIndex, "find_seqs", fail)
    order.before_removal([2, 400, 505, 520])
    assert before - order.passed == {"s.a": 2, "s.b": 1}[filter_subject]


def test_a_counter_neither_takes_dead_letters_nor_has_them_redriven() -> None:
    """A dead letter of a counter has the total of that time, which must not become the current one again."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"], allow_msg_counter=True)
    broker.call("STREAM.CREATE.D", name="D", subjects=["dlq.>"])
    broker.call("STREAM.CREATE.P", name="P", subjects=["p.*"])
    letter = {"subject": "s.dead", "on": ["term"]}
    config = {"durable_name": "C", "ack_policy": "explicit", "dead_letter": letter}
    refused = broker.call("CONSUMER.CREATE.P.C", stream_name="P", config=config)
    assert "has counters" in refused["error"]["description"]
    consumer = make_consumer(broker, dead_letter={"subject": "dlq.s", "on": ["term"]})
    broker.publish("s.a", b"", Nats_Incr="5")
    broker.run_until_idle()
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    inbox.ack(1, payload=b"+TERM")
    assert not consumer.ack_state.pending
    letters = broker.jetstream.streams["D"].log
    assert letters.messages == 1
    refused = broker.call("STREAM.MSG.REDRIVE.D", seq=1)
    assert "has counters" in refused["error"]["description"]
    assert (letters.messages, broker.jetstream.streams["S"].log.messages) == (1, 1)


@pytest.mark.parametrize("limit", [0, 1])
def test_a_purge_makes_room_for_more_messages(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Also if pending messages are gone already, so that nobody announces their removal."""
    monkeypatch.setattr(Redelivery, "on_messages_removed", lambda *_, **__: None)
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    make_consumer(broker, max_ack_pending=2, max_ack_pending_per_subject=limit)
    store(broker, "s.a", "s.b", "s.c", "s.d")
    inbox = Inbox(broker)
    subject, body = b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch": 9, "expires": 1000000000}'
    broker.router.publish(subject, b"inbox.C", b"", body)
    broker.run_until_idle()
    assert sorted(inbox.replies) == [1, 2]
    broker.call("STREAM.PURGE.S")
    store(broker, "s.e")
    assert sorted(inbox.replies) == [1, 2, 5]


def test_a_read_that_fails_once_blocks_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, "s.a", "s.a", "s.b")
    read_message, failures = DeliveryLoop._read_message, [OSError(5, "input/output error")]

    def fail_once(loop: DeliveryLoop, seq: int) -> Any:
        if failures:
            raise failures.pop()
        return read_message(loop, seq)

    monkeypatch.setattr(DeliveryLoop, "_read_message", fail_once)
    inbox = Inbox(broker)
    with pytest.raises(OSError, match="input/output"):
        inbox.pull()
    consumer.deliver()
    broker.run_until_idle()
    assert sorted(inbox.replies) == [1, 3]
    inbox.ack(1)
    assert inbox.pull() == [2]


def test_acks_from_before_a_reset_count_for_messages_that_were_delivered_again() -> None:
    """As documented: both deliveries have the count 1. Messages that were passed over wait all the same."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, "s.a", "s.b", "s.b", "s.b")
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 2]
    inbox.ack(2)
    assert inbox.pull() == [3]
    before = dict(inbox.replies)
    broker.call("CONSUMER.RESET.S.C")
    inbox.replies.clear()
    assert inbox.pull() == [1, 2]
    broker.router.publish(before[3], b"", b"", b"")
    assert inbox.pull() == []
    broker.router.publish(before[2], b"", b"", b"")
    assert inbox.pull() == [3]


def test_metadata_changes_the_limit_and_switches_it_off() -> None:
    """Clients send back the configuration that they read, with the limit that earlier metadata had set."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    key = "headrace.max_ack_pending_per_subject"

    def update(config: dict[str, Any]) -> Any:
        response = broker.call("CONSUMER.CREATE.S.C", stream_name="S", config=config)
        return response.get("config", response)

    config = update({"durable_name": "C", "ack_policy": "explicit", "metadata": {key: "1"}})
    assert config["max_ack_pending_per_subject"] == 1
    for limit in ("5", "0"):
        config["metadata"][key] = limit
        config = update(config)
        assert config.get("max_ack_pending_per_subject", 0) == int(limit)
    config["max_ack_pending_per_subject"] = 2
    config = update(config)
    assert config["max_ack_pending_per_subject"] == 2
    assert update(config)["max_ack_pending_per_subject"] == 2
    config["metadata"][key] = "many"
    assert "from 0 to 1000000" in update(config)["error"]["description"]


def test_a_key_with_old_messages_leaves_room_for_others_in_small_requests() -> None:
    """Each request has room for one message."""
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, *["s.a", "s.b", "s.c", "s.d"], *["s.a"] * 40, *["s.b", "s.c", "s.d"] * 10)
    client, received = SimClient(broker, 1, Random(1)), []
    inbox = client.subscribe(received.append)

    def settle() -> None:
        while client.step() or broker.step():
            pass

    def pull(batch: int, **options: int) -> list[str]:
        body = json.dumps({"batch": batch, "no_wait": True, **options}).encode()
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", body, reply=inbox)
        settle()
        messages = [message for message in received if message.reply]
        received.clear()
        for message in messages:
            client.publish(message.reply.decode(), b"")
        settle()
        return [message.subject.decode() for message in messages]

    assert pull(9) == ["s.a", "s.b", "s.c", "s.d"]
    subjects = [subject for _ in range(32) for subject in pull(500, max_bytes=70)]
    assert (len(subjects), consumer.ack_state.key_order.blocked) == (32, 4)
    assert min(subjects.count(f"s.{key}") for key in "abcd") >= 7


@pytest.mark.parametrize("seq", [0, 18])
def test_a_trim_forgets_what_was_passed_over(monkeypatch: pytest.MonkeyPatch, seq: int) -> None:
    """A whole stream or a long part of it goes, without a list of messages; after a crash the consumer is as before."""
    monkeypatch.setattr(retention, "_PREFIX_SLICE", 4)
    monkeypatch.setattr(passed_messages, "_COUNT_ROWS", 4)
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"], allow_rollup_hdrs=True)
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, *["s.a", "s.b"] * 10)
    inbox = Inbox(broker)
    assert inbox.pull(5) == [1, 2]
    assert consumer.ack_state.key_order.passed == 18
    if seq:
        broker.jetstream.streams["S"].retention.remove_below(seq)
        broker.jetstream.streams["S"].mark_dirty()
    else:
        broker.publish("s.c", b"x", Nats_Rollup="all")
    broker.run_until_idle()
    left = (3, 2) if seq else (0, 0)
    assert (consumer.ack_state.key_order.passed, consumer.ack_state.key_order.blocked) == left
    assert not consumer.ack_state.pending
    broker.advance(SECOND_NS)
    broker = make_broker(broker.disk.kill())
    consumer = broker.jetstream.streams["S"].consumers["C"]
    assert (consumer.ack_state.key_order.passed, consumer.ack_state.key_order.blocked) == left
    again = Inbox(broker)
    assert again.pull(5) == ([18, 19] if seq else [21])


def test_many_blocked_keys_are_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a new filter drops."""
    broker = SimBroker(SimDisk(1), StoreOptions())
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1, max_ack_pending=-1, ack_wait=10**15)
    keys, sizes, take_changes = 20_000, [], KeyOrder.take_changes

    def record_size(self: KeyOrder) -> Any:
        changes = take_changes(self)
        sizes.append(len(changes))
        return changes

    monkeypatch.setattr(KeyOrder, "take_changes", record_size)
    consumer.log.append_many([(b"s.%d.x" % (number % keys), b"", b"x") for number in range(2 * keys)], 1)
    broker.store.commit()
    broker.run_until_idle()
    assert len(Inbox(broker).pull(keys + 1)) == keys
    assert consumer.ack_state.key_order.blocked == keys
    make_consumer(
        broker, max_ack_pending_per_subject=1, max_ack_pending=-1, ack_wait=10**15, filter_subject="s.7.x"
    )
    broker.advance(SECOND_NS)
    assert consumer.ack_state.key_order.blocked == 1
    assert sum(sizes) > keys
    assert max(sizes) <= 4_096
    broker = make_broker(broker.disk.kill())
    assert broker.jetstream.streams["S"].consumers["C"].ack_state.key_order.blocked == 1


def test_a_higher_limit_is_applied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other change of the configuration looks at the keys."""
    monkeypatch.setattr(key_order, "_KEYS_AT_ONCE", 4)
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, *[f"s.{number % 10}" for number in range(20)])
    inbox = Inbox(broker)
    assert inbox.pull(11) == list(range(1, 11))
    order = consumer.ack_state.key_order
    order.set_limit(1)
    assert not order.continue_changes()
    order.set_limit(2)
    assert order.continue_changes()
    assert order.continue_changes()
    consumer.deliver()
    assert not order.continue_changes()
    assert inbox.pull(11) == list(range(11, 21))


def test_a_count_skips_sequences_without_messages() -> None:
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, "s.a", "s.a")
    inbox = Inbox(broker)
    assert inbox.pull() == [1]
    consumer.log.advance(10**9)
    broker.jetstream.streams["S"].mark_dirty()
    store(broker, "s.a", "s.b")
    assert inbox.pull() == [10**9 + 2]
    order = consumer.ack_state.key_order
    order.set_filter(None)
    assert not order.continue_changes()
    assert order.passed == 2


def test_order_per_key_ends_when_few_messages_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order_setup, "_PENDING_MAX", 1)
    broker = make_broker()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1)
    store(broker, "s.a", "s.a", "s.b")
    inbox = Inbox(broker)
    assert inbox.pull() == [1, 3]
    make_consumer(broker)
    assert inbox.pull() == [2]
    assert consumer.ack_state.key_order is not None
    inbox.ack(3, 2)
    consumer.deliver()
    assert consumer.ack_state.key_order is None
    assert list(consumer.ack_state.pending) == [1]


def test_a_search_for_new_messages_looks_at_as_many_as_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message in 100 matches the filter, and all are passed over."""
    broker = SimBroker(SimDisk(1), StoreOptions())
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.*"])
    consumer = make_consumer(broker, max_ack_pending_per_subject=1, filter_subject="s.0")
    messages = 500_000
    consumer.log.append_many([(b"s.%d" % (number % 100), b"", b"x") for number in range(messages)], 1)
    broker.store.commit()
    broker.run_until_idle()
    spans, find_seqs = [], LogIndex.find_seqs

    def record_span(self: LogIndex, subject_filter: Any, lo: int, hi: int, *others: int) -> Any:
        spans.append(hi - lo + 1)
        return find_seqs(self, subject_filter, lo, hi, *others)

    monkeypatch.setattr(LogIndex, "find_seqs", record_span)
    assert Inbox(broker).pull(2) == [1]
    assert consumer.ack_state.key_order.passed == messages // 100 - 1
    assert sum(spans) < 1.5 * messages
