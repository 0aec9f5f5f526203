"""The clock is set back by an hour: everything that waits still ends after its configured time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.sim import SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.C"


class Ear:
    """Records what arrives on a subject, with its status."""

    def __init__(self, broker: SimBroker, subject: bytes) -> None:
        self.heard: list[tuple[bytes, bytes]] = []
        broker.router.subscribe_internal(subject, self)

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self.heard.append((header.split(b"\r\n")[0], payload))

    def take(self) -> list[tuple[bytes, bytes]]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    made = broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
    assert "error" not in made
    return broker


def consumer(broker: SimBroker, **config: Any) -> Ear:
    full = {"durable_name": "C", "ack_policy": "explicit", **config}
    made = broker.call("CONSUMER.CREATE.S.C", stream_name="S", config=full)
    assert "error" not in made, made
    return Ear(broker, b"dlv")


def pull(broker: SimBroker, **body: Any) -> None:
    broker.router.publish(NEXT, b"dlv", b"", json.dumps({"batch": 10, **body}).encode())
    broker.run_until_idle()


def set_back(broker: SimBroker) -> None:
    broker.timers.now_ns()
    broker.clock.set_by(-HOUR)


def test_ack_wait_ends_though_the_clock_is_set_back(broker: SimBroker) -> None:
    ear = consumer(broker, ack_wait=5 * SECOND)
    broker.publish("s.a", b"1")
    pull(broker, expires=600 * SECOND)
    assert [payload for _, payload in ear.take()] == [b"1"]
    broker.advance(2 * SECOND)
    set_back(broker)
    broker.advance(2 * SECOND)
    assert not ear.take()
    broker.advance(2 * SECOND)
    assert [payload for _, payload in ear.take()] == [b"1"]


def test_ack_wait_over_a_restart(broker: SimBroker) -> None:
    consumer(broker, ack_wait=5 * SECOND)
    broker.publish("s.a", b"1")
    pull(broker, expires=1 * SECOND)
    broker.advance(SECOND)
    clock = SimClock(broker.clock.now_ns() - HOUR)
    again = SimBroker(broker.disk.kill(), SMALL_JOURNAL, clock)
    again.start()
    ear = Ear(again, b"dlv")
    pull(again, expires=600 * SECOND)
    again.advance(6 * SECOND)
    assert [payload for _, payload in ear.take()] == [b"1"]


def test_pulls_end_and_beat(broker: SimBroker) -> None:
    ear = consumer(broker)
    pull(broker, expires=10 * SECOND, idle_heartbeat=2 * SECOND)
    set_back(broker)
    broker.advance(5 * SECOND)
    assert [status for status, _ in ear.take()] == [b"NATS/1.0 100 Idle Heartbeat"] * 2
    broker.advance(5 * SECOND + 1)
    assert ear.take()[-1][0] == b"NATS/1.0 408 Request Timeout"


def test_an_inactive_consumer_ends_though_the_clock_is_set_back(broker: SimBroker) -> None:
    consumer(broker, inactive_threshold=10 * SECOND)
    set_back(broker)
    broker.advance(12 * SECOND)
    assert broker.call("CONSUMER.INFO.S.C")["error"]["err_code"] == 10014


def test_a_pause_ends_at_its_date(broker: SimBroker) -> None:
    ear = consumer(broker, pause_until="2026-01-01T00:00:10Z")
    broker.publish("s.a", b"1")
    pull(broker, expires=2 * HOUR)
    set_back(broker)
    broker.advance(HOUR)
    assert not ear.take()
    broker.advance(11 * SECOND)
    assert [payload for _, payload in ear.take()] == [b"1"]


def test_what_info_shows_is_no_moment_to_come(broker: SimBroker) -> None:
    consumer(broker)
    set_back(broker)
    broker.publish("s.a", b"1")
    pull(broker, expires=SECOND)
    assert broker.call("CONSUMER.INFO.S.C")["delivered"]["last_active"].startswith("2025-12-31T23:00:0")


def open_atomic(broker: SimBroker) -> None:
    broker.publish("s.a", b"1", Nats_Batch_Id="b", Nats_Batch_Sequence="1")


def open_fast(broker: SimBroker) -> None:
    broker.router.publish(b"s.a", b"inbox.b.10.fail.1.0.$FI", b"", b"1")


@pytest.mark.parametrize("open_batch", [open_atomic, open_fast])
def test_a_batch_that_nobody_goes_on_with(broker: SimBroker, open_batch: Callable[[SimBroker], None]) -> None:
    stream = broker.jetstream.streams["S"]
    open_batch(broker)
    broker.run_until_idle()
    assert len(stream.atomic_batches) + len(stream.fast_ingest) == 1
    set_back(broker)
    broker.advance(11 * SECOND)
    assert len(stream.atomic_batches) + len(stream.fast_ingest) == 0


def test_redelivery_after_a_restart(broker: SimBroker) -> None:
    """Deadlines are stored as wall-clock times, because the monotonic clock ends with the process."""
    ear = consumer(broker, ack_wait=5 * SECOND)
    broker.publish("s.a", b"1")
    set_back(broker)
    pull(broker, expires=600 * SECOND)
    broker.advance(6 * SECOND)
    assert len(ear.take()) == 2
    again = SimBroker(broker.disk.kill(), SMALL_JOURNAL, SimClock(broker.clock.now_ns()))
    again.start()
    ear = Ear(again, b"dlv")
    pull(again, expires=600 * SECOND)
    again.advance(6 * SECOND)
    assert [payload for _, payload in ear.take()][:1] == [b"1"]


def test_a_mirror_hears_its_origin(broker: SimBroker) -> None:
    made = broker.call("STREAM.CREATE.M", name="M", mirror={"name": "S"})
    assert "error" not in made
    broker.publish("s.a", b"1")
    broker.advance(5 * SECOND)
    before = set(broker.jetstream.streams["S"].consumers)
    set_back(broker)
    broker.advance(120 * SECOND)
    broker.publish("s.a", b"2")
    broker.advance(5 * SECOND)
    info = broker.call("STREAM.INFO.M")
    assert info["state"]["messages"] == 2
    assert info["mirror"]["active"] < 60 * SECOND
    assert set(broker.jetstream.streams["S"].consumers) == before, "the mirror must not start again"
