"""What happens between two steps of a request: timers fire, limits change, restores finish, calls fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.consumers import interest_sweep
from headrace.broker.handlers import stream_handlers
from headrace.broker.streams import purge
from headrace.jetstream_api.configs import StreamConfig
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

SECOND = 1_000_000_000


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    return broker


def create_consumers(broker: SimBroker, names: list[str], **config: Any) -> None:
    for name in names:
        body = {"durable_name": name, "ack_policy": "explicit", **config}
        assert "error" not in broker.call(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=body)


def fill(broker: SimBroker, count: int, subject: str = "s.x") -> None:
    for _ in range(count):
        broker.publish(subject, b"x")
    broker.run_until_idle()


def run_until_answered(broker: SimBroker, request: Any, on_step: Callable[[], None]) -> None:
    for _ in range(100_000):
        if request in broker.replies:
            return
        broker.step()
        on_step()
    raise AssertionError("no answer")


def test_a_consumer_that_expires_while_its_stream_is_deleted(broker: SimBroker) -> None:
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    create_consumers(broker, [f"c{n}" for n in range(100)], inactive_threshold=5 * SECOND)
    stream, expired = broker.jetstream.streams["S"], list[bool]()

    def expire_the_rest() -> None:
        if stream.closed and len(stream.consumers) < 70 and not expired:
            expired.append(True)
            broker.clock.advance(30 * SECOND)
            broker.timers.run_due()

    request = broker.call_nowait("STREAM.DELETE.S")
    run_until_answered(broker, request, expire_the_rest)
    assert expired
    assert broker.replies[request].json["success"]
    assert "error" not in broker.call("STREAM.CREATE.T", name="T", subjects=["t"])


def test_an_unexpected_error_does_not_hold_up_later_requests(
    broker: SimBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    fill(broker, 100)
    monkeypatch.setattr(purge, "_SLICE", 10)
    stream = broker.jetstream.streams["S"]
    real, calls = stream.retention.remove, list[int]()

    def fail_later(seqs: Any) -> int:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return real(seqs)

    monkeypatch.setattr(type(stream.retention), "remove", lambda _self, seqs: fail_later(seqs))
    broker.call_nowait("STREAM.PURGE.S", filter="s.x")
    with pytest.raises(MemoryError):
        broker.run_until_idle()
    assert "error" not in broker.call("STREAM.CREATE.T", name="T", subjects=["t"])


def test_a_stream_that_no_longer_has_interest_retention_keeps_its_messages(
    broker: SimBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interest_sweep, "_SLICE_SEQS", 4)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], retention="interest")
    create_consumers(broker, ["A", "B"])
    fill(broker, 500)
    requests = [
        broker.call_nowait("CONSUMER.DELETE.S.A"),
        broker.call_nowait("STREAM.UPDATE.S", name="S", subjects=["s.>"], retention="limits"),
        broker.call_nowait("CONSUMER.DELETE.S.B"),
    ]
    broker.run_until(lambda: all(request in broker.replies for request in requests))
    broker.run_until_idle()
    assert broker.call("STREAM.INFO.S")["state"]["messages"] == 500


@pytest.mark.parametrize("pattern", ["s.x", ">"])
def test_a_purge_keeps_the_newest_although_the_oldest_leave_meanwhile(
    broker: SimBroker, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name, value in (("_SLICE", 10), ("_SEARCHED", 20), ("_PREFIX_SLICE", 20)):
        monkeypatch.setattr(purge, name, value)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    fill(broker, 400)
    stream, removed = broker.jetstream.streams["S"], list[int]()

    def remove_some() -> None:
        if not removed and stream.log.messages < 380:
            removed.append(stream.retention.remove_below(stream.log.first_seq + 100))

    run_until_answered(broker, broker.call_nowait("STREAM.PURGE.S", filter=pattern, keep=50), remove_some)
    assert removed
    assert broker.call("STREAM.INFO.S")["state"]["messages"] == 50
    assert stream.log.first_seq == 351


def test_a_restore_that_finishes_during_validation_counts(
    broker: SimBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_handlers, "MANY_PATTERNS", 1)
    registry, jetstream = broker.jetstream.registry, broker.jetstream
    real = jetstream.run_off_loop
    registered: list[str] = []

    def run_off_loop(call: Any, on_done: Any) -> None:
        real(call, on_done)
        if not registered:
            registered.append("R")
            registry.register_stream(StreamConfig(name="R", subjects=["x"]), jetstream.store.create("R"))

    monkeypatch.setattr(jetstream, "run_off_loop", run_off_loop)
    answer = broker.call("STREAM.CREATE.T", name="T", subjects=["x", "y"])
    assert answer["error"]["err_code"] == 10065
