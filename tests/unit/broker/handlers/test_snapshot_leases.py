"""Pins granted to readers end with their lease, or when they are released."""

from __future__ import annotations

import pytest

from headrace.broker.handlers import lease_registry
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

SECOND = 1_000_000_000


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    assert "error" not in broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"1")
    broker.advance(SECOND)
    return broker


def pinned(broker: SimBroker, lease_s: float) -> str:
    name: str = broker.call("STREAM.PIN.S", lease=lease_s)["pin"]
    return name


def test_what_is_let_go_leaves_no_timer(broker: SimBroker) -> None:
    before = len(broker.timers)
    for _ in range(100):
        assert broker.call("STREAM.UNPIN.S", pin=pinned(broker, 86_400))["success"]
    broker.advance(SECOND)
    assert len(broker.timers) == before
    assert broker.disk.list("pins") == []


def test_each_lease_ends_in_its_own_time(broker: SimBroker) -> None:
    broker.advance(60 * SECOND)  # the store has given back what it does not need
    before = len(broker.timers)
    long, short, gone = pinned(broker, 60), pinned(broker, 10), pinned(broker, 20)
    broker.call("STREAM.UNPIN.S", pin=gone)
    broker.run_until_idle()
    assert broker.disk.list("pins") == sorted([long, short])
    broker.advance(11 * SECOND)
    assert broker.disk.list("pins") == [long]
    broker.advance(50 * SECOND)
    assert broker.disk.list("pins") == []
    assert len(broker.timers) == before
    assert len(broker.jetstream.pin_leases) == 0


def test_one_that_is_swept_with_the_next_leaves_no_timer(broker: SimBroker) -> None:
    before = len(broker.timers)
    pinned(broker, 10)
    broker.clock.set_by(11 * SECOND)
    last = pinned(broker, 10)
    broker.run_until_idle()
    assert broker.disk.list("pins") == [last]
    assert len(broker.timers) == before + 1


def test_a_pin_is_released_through_its_own_stream_only(broker: SimBroker) -> None:
    broker.call("STREAM.CREATE.T", name="T", subjects=["t"])
    pin = pinned(broker, 60)
    assert broker.call("STREAM.UNPIN.T", pin=pin)["error"]["err_code"] == 10003
    assert broker.call("STREAM.PIN.T", pin=pin)["error"]["err_code"] == 10003
    assert broker.call("STREAM.PIN.S", pin=pin)["pin"] == pin
    assert broker.call("STREAM.UNPIN.S", pin=pin)["success"]
    assert broker.call("STREAM.UNPIN.S", pin=pin)["success"]  # already gone
    assert broker.call("STREAM.UNPIN.nothing", pin=pin)["error"]["err_code"] == 10059


def test_the_pin_of_a_deleted_stream_can_be_released(broker: SimBroker) -> None:
    pin = pinned(broker, 60)
    broker.call("STREAM.DELETE.S")
    assert broker.call("STREAM.UNPIN.S", pin=pin)["success"]
    broker.run_until_idle()
    assert broker.disk.list("pins") == []


def test_the_number_of_pins_is_limited(broker: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.handlers.snapshot_leases.LEASES_MAX", 3)
    pins = [pinned(broker, 60) for _ in range(3)]
    refused = broker.call("STREAM.PIN.S")
    assert "UNPIN" in refused["error"]["description"]
    broker.call("STREAM.UNPIN.S", pin=pins[0])
    assert "pin" in broker.call("STREAM.PIN.S")
    assert lease_registry.LEASES_MAX == 1000


def test_other_pins_are_not_read(broker: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        pinned(broker, 60)
    read: list[str] = []
    original = SimDisk.read

    def recorded(disk: SimDisk, path: str, offset: int, length: int) -> bytes:
        read.append(path)
        return original(disk, path, offset, length)

    monkeypatch.setattr(SimDisk, "read", recorded)
    broker.call("STREAM.UNPIN.S", pin=pinned(broker, 60))
    assert [path for path in read if path.startswith("pins/")] == []


def test_a_restart_remembers_the_leases(broker: SimBroker) -> None:
    short, long = pinned(broker, 10), pinned(broker, 60)
    broker.jetstream.close()
    broker.clock.advance(11 * SECOND)
    again = SimBroker(broker.disk, SMALL_JOURNAL, broker.clock)
    again.start()
    assert again.disk.list("pins") == [long]
    assert again.call("STREAM.UNPIN.S", pin=short)["success"]
    assert again.call("STREAM.PIN.S", pin=long)["pin"] == long
    again.advance(50 * SECOND)
    assert again.disk.list("pins") == []
