"""No step of a request, and no commit after it, holds the event loop for long, however large the stream is.

Measured in CPU time of this thread, as the best of several tries, so that a busy machine does not matter.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import Future
from time import thread_time
from typing import Any

import numpy as np
import pytest

from headrace.broker.consumers import ack_state_record
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.key_order import KeyOrder
from headrace.broker.consumers.redelivery import Redelivery
from headrace.broker.operation_runner import complete
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

#: Half of the 10 ms that a turn may take: other machines are slower.
LIMIT_S, TRIES = 0.005, 5
MESSAGES = 400_000
BATCH = 10_000


def fill(broker: SimBroker, make_subject: Callable[[int], bytes]) -> None:
    assert "error" not in broker.call("STREAM.CREATE.S", name="S", subjects=["S.>"])
    log = broker.jetstream.streams["S"].log
    for start in range(0, MESSAGES, BATCH):
        log.append_many([(make_subject(n), b"", b"x") for n in range(start, start + BATCH)], 1)
        broker.store.commit()
        broker.run_until_idle()


def purge_every_second_message(broker: SimBroker) -> int:
    fill(broker, lambda number: b"S.%d" % (number % 2))
    return broker.call_nowait("STREAM.PURGE.S", filter="S.1")


def list_subjects(broker: SimBroker) -> int:
    fill(broker, lambda number: b"S.k.%d" % number)
    return broker.call_nowait("STREAM.INFO.S", subjects_filter=">")


def create_last_per_subject_consumer(broker: SimBroker) -> int:
    fill(broker, lambda number: b"S.k.%d" % number)
    config = {"durable_name": "c", "deliver_policy": "last_per_subject", "filter_subject": "S.k.*"}
    return broker.call_nowait("CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)


OPERATIONS = [purge_every_second_message, list_subjects, create_last_per_subject_consumer]


class Stopwatch:
    """Measures the steps of API requests, and commits."""

    def __init__(self, broker: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest_s = self._off_loop_s = 0.0
        commit = broker.store.commit
        monkeypatch.setattr(broker.jetstream, "run_off_loop", self._run_off_loop)
        monkeypatch.setattr(broker.jetstream, "run_operation", lambda _, call: self.measure(call))
        monkeypatch.setattr(broker.store, "commit", lambda: self.measure(commit))

    def measure(self, call: Callable[[], Any]) -> Any:
        started_s, off_loop_s = thread_time(), self._off_loop_s
        try:
            return call()
        finally:
            off_loop_s = self._off_loop_s - off_loop_s
            self.longest_s = max(self.longest_s, thread_time() - started_s - off_loop_s)

    def _run_off_loop(self, call: Callable[[], Any], on_done: Callable[[Future[Any]], None]) -> None:
        """Make the call here: the simulation has one thread. Its time does not count."""
        started_s = thread_time()
        outcome = complete(call)
        self._off_loop_s += thread_time() - started_s
        on_done(outcome)


def measure_longest_turn_s(operation: Callable[[SimBroker], int], monkeypatch: pytest.MonkeyPatch) -> float:
    broker = SimBroker(SimDisk(), StoreOptions())
    broker.start()
    stopwatch = Stopwatch(broker, monkeypatch)
    gc.collect()
    gc.disable()
    try:
        number = operation(broker)
        stopwatch.longest_s = 0.0
        broker.run_until(lambda: number in broker.replies)
    finally:
        gc.enable()
    assert "error" not in broker.replies[number].json
    return stopwatch.longest_s


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_no_turn_is_long(operation: Callable[[SimBroker], int], monkeypatch: pytest.MonkeyPatch) -> None:
    longest_s = float("inf")
    for _ in range(TRIES):
        longest_s = min(longest_s, measure_longest_turn_s(operation, monkeypatch))
        if longest_s < LIMIT_S:
            return
    pytest.fail(f"the longest turn takes {longest_s * 1e3:.1f} ms of CPU time")


class Receiver:
    """Receives the messages of a consumer; `acks` are where to acknowledge them, by subject."""

    def __init__(self) -> None:
        self.acks: dict[bytes, bytes] = {}

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Take a message."""
        self.acks[subject] = reply


def pull_keyed_messages(broker: SimBroker, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass over very many messages of few keys, each on a subject of its own; then change the filter."""
    fill(broker, lambda number: b"S.%d.%d" % (number, number % 10))
    broker.router.subscribe_internal(b"receiver", Receiver())
    config: dict[str, Any] = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**15}
    config |= {"max_ack_pending_per_subject": 1, "key_tokens": "3"}
    body = {"stream_name": "S", "config": config}
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", **body)
    deliver = Consumer.deliver
    monkeypatch.setattr(Consumer, "deliver", lambda self: stopwatch.measure(lambda: deliver(self)))
    stopwatch.longest_s = 0.0
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"receiver", b"", b'{"batch":99}')
    broker.run_until_idle()
    info = broker.call("CONSUMER.INFO.S.c")
    assert (info["num_ack_pending"], info["num_blocked_subjects"]) == (10, 10)
    assert "error" not in broker.call(
        "CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config | {"filter_subject": "S.*.1"}
    )
    broker.run_until_idle()
    monkeypatch.setattr(Consumer, "deliver", deliver)


def search_for_rare_matches(broker: SimBroker, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search a key with very many passed-over messages for the few that a new filter matches."""
    fill(broker, lambda number: b"S.k.%d" % (number * 100 // MESSAGES))
    broker.router.subscribe_internal(b"receiver", Receiver())
    config: dict[str, Any] = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**15}
    config |= {"max_ack_pending_per_subject": 1, "key_tokens": "2"}
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"receiver", b"", b'{"batch":99}')
    broker.run_until_idle()
    config["filter_subject"] = "S.k.99"
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)
    broker.run_until_idle()
    deliver = Consumer.deliver
    monkeypatch.setattr(Consumer, "deliver", lambda self: stopwatch.measure(lambda: deliver(self)))
    stopwatch.longest_s = 0.0
    broker.router.publish(b"$JS.ACK.S.c.1.1.1.1.0", b"", b"", b"+ACK")
    broker.run_until_idle()
    monkeypatch.setattr(Consumer, "deliver", deliver)
    assert list(broker.jetstream.streams["S"].consumers["c"].ack_state.pending) == [MESSAGES * 99 // 100 + 1]


def purge_passed_over_messages(
    broker: SimBroker, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purge a stream of which nearly everything was passed over."""
    fill(broker, lambda number: b"S.%d" % (number % 100))
    broker.router.subscribe_internal(b"receiver", Receiver())
    config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending_per_subject": 1}
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"receiver", b"", b'{"batch":101}')
    broker.run_until_idle()
    key_order = broker.jetstream.streams["S"].consumers["c"].ack_state.key_order
    assert (key_order.passed, key_order.blocked) == (MESSAGES - 100, 100)
    stopwatch.longest_s = 0.0
    number = broker.call_nowait("STREAM.PURGE.S")
    broker.run_until(lambda: number in broker.replies)
    assert (key_order.passed, key_order.blocked) == (0, 0)


@pytest.mark.parametrize("act", [pull_keyed_messages, search_for_rare_matches, purge_passed_over_messages])
def test_no_turn_is_long_when_messages_are_passed_over(
    act: Callable[[SimBroker, Stopwatch, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest_s = float("inf")
    for _ in range(TRIES):
        broker = SimBroker(SimDisk(), StoreOptions())
        broker.start()
        stopwatch = Stopwatch(broker, monkeypatch)
        gc.collect()
        gc.disable()
        try:
            act(broker, stopwatch, monkeypatch)
        finally:
            gc.enable()
        longest_s = min(longest_s, stopwatch.longest_s)
        if longest_s < LIMIT_S:
            return
    pytest.fail(f"the longest turn takes {longest_s * 1e3:.1f} ms of CPU time")


@pytest.mark.parametrize("key_tokens", ["", "2"])
def test_a_long_search_does_not_hold_up_a_new_message(
    key_tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next messages of 300 keys are far away; a message of another key arrives."""
    keys = 300

    def make_subject(number: int) -> bytes:
        is_noise = 2 * keys <= number < MESSAGES - keys
        return b"S.noise.x" if is_noise else b"S.%d.x" % (number % keys)

    broker = SimBroker(SimDisk(), StoreOptions())
    broker.start()
    fill(broker, make_subject)
    receiver = Receiver()
    broker.router.subscribe_internal(b"receiver", receiver)
    config: dict[str, Any] = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**15}
    config |= {"max_ack_pending_per_subject": 1, "key_tokens": key_tokens}
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config=config)
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"receiver", b"", b'{"batch":9999}')
    broker.run_until_idle()

    def acknowledge() -> None:
        acks, receiver.acks = receiver.acks, {}
        for subject, ack in acks.items():
            if subject != b"S.noise.x":
                broker.router.publish(ack, b"", b"", b"+ACK")

    acknowledge()
    broker.run_until_idle()
    acknowledge()  # now the next messages are those at the end
    broker.publish("S.new.x", b"x")
    turns, deliver = [], Consumer.deliver

    def count_turn(consumer: Consumer) -> None:
        turns.append(consumer)
        deliver(consumer)

    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "deliver", count_turn)
        broker.run_until(lambda: b"S.new.x" in receiver.acks)
    assert len(turns) < 10
    broker.run_until_idle()
    assert len(receiver.acks) == keys + 1


@pytest.mark.parametrize(
    "config", [{"max_deliver": 1}, {"dead_letter": {"subject": "dead"}, "max_deliver": 1}, {}]
)
def test_no_turn_is_long_when_many_messages_are_due(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are given up, become dead letters or are delivered again."""
    longest_s = float("inf")
    for _ in range(TRIES):
        longest_s = min(longest_s, measure_expiry_s(config, monkeypatch))
        if longest_s < LIMIT_S:
            return
    pytest.fail(f"the longest turn takes {longest_s * 1e3:.1f} ms of CPU time")


def measure_expiry_s(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the longest turn when the ack wait of all pending messages ends at the same time."""
    broker = SimBroker(SimDisk(), StoreOptions())
    broker.start()
    stopwatch, pending = Stopwatch(broker, monkeypatch), 10_000
    broker.call("STREAM.CREATE.D", name="D", subjects=["dead"])
    broker.call("STREAM.CREATE.S", name="S", subjects=["S.>"])
    log, letters = broker.jetstream.streams["S"].log, broker.jetstream.streams["D"].log
    log.append_many([(b"S.1", b"", b"x")] * pending, 1)
    broker.store.commit()
    broker.run_until_idle()
    config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": pending, **config}
    response = broker.call(
        "CONSUMER.DURABLE.CREATE.S.c", stream_name="S", config={**config, "ack_wait": 10**9}
    )
    assert "error" not in response
    consumer = broker.jetstream.streams["S"].consumers["c"]
    seqs = np.arange(1, pending + 1, dtype=np.uint64)
    consumer.ack_state.record_deliveries(seqs, consumer.now_ns(), 10**9, acked=False)
    consumer.arm_timer()
    redeliver = Redelivery.redeliver_expired
    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(
                Redelivery,
                "redeliver_expired",
                lambda self, now_ns: stopwatch.measure(lambda: redeliver(self, now_ns)),
            )
            stopwatch.longest_s = 0.0
            broker.advance(3 * 10**9)
    finally:
        gc.enable()
    if "max_deliver" in config:
        assert not consumer.ack_state.next_deadline()
        assert letters.messages == (pending if "dead_letter" in config else 0)
    else:
        assert len(consumer.ack_state.redelivery_queue) == pending
    return stopwatch.longest_s


@pytest.mark.parametrize("key_tokens", ["", "2"])
def test_a_checkpoint_encodes_blocked_keys_in_slices(
    key_tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slice has more than a few keys, and what changes in between is not lost with a crash."""
    keys, per_slice = 40, 4
    monkeypatch.setattr(ack_state_record, "KEYS_PER_SLICE", per_slice)
    disk = SimDisk()
    broker = SimBroker(disk, StoreOptions())
    broker.start()
    assert "error" not in broker.call("STREAM.CREATE.S", name="S", subjects=["S.>"])
    log = broker.jetstream.streams["S"].log
    log.append_many([(b"S.%d" % (number % keys), b"", b"x") for number in range(3 * keys)], 1)
    receiver = Receiver()
    broker.router.subscribe_internal(b"receiver", receiver)
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**15, "key_tokens": key_tokens}
    body = {"stream_name": "S", "config": config | {"max_ack_pending_per_subject": 1}}
    assert "error" not in broker.call("CONSUMER.DURABLE.CREATE.S.c", **body)
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"receiver", b"", b'{"batch":99}')
    broker.run_until_idle()
    assert broker.jetstream.streams["S"].consumers["c"].ack_state.key_order.blocked == keys

    def acknowledge(*numbers: int) -> None:
        for number in numbers:
            broker.router.publish(receiver.acks[b"S.%d" % number], b"", b"", b"+ACK")

    acknowledge(0)
    broker.advance(10**9)
    sizes: list[int] = []
    encode = KeyOrder.encode_pairs

    def encode_slice(self: KeyOrder, some: Any, firsts: Any) -> bytes:
        sizes.append(len(some))
        if len(sizes) in (2, 5):  # in the middle: the next messages of two keys are delivered
            acknowledge(len(sizes), keys - len(sizes))
        return encode(self, some, firsts)

    monkeypatch.setattr(KeyOrder, "encode_pairs", encode_slice)
    broker.store.checkpoint()
    broker.run_until_idle()
    assert sizes == [per_slice] * (keys // per_slice)
    broker.advance(10**9)
    assert broker.store.checkpointer.durable_number > 0
    before = broker.jetstream.streams["S"].consumers["c"].ack_state
    expected = sorted(before.pending), before.key_order.list_all()
    assert len(expected[0]) == keys
    again = SimBroker(disk.kill(), StoreOptions())
    again.start()
    after = again.jetstream.streams["S"].consumers["c"].ack_state
    assert (sorted(after.pending), after.key_order.list_all()) == expected
