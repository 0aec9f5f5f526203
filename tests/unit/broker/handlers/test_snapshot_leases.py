"""Pins that are granted to readers: each ends with its lease, or when it is let go."""

from __future__ import annotations

import pytest

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

SECOND = 1_000_000_000


@pytest.fixture
def broker() -> SimBroker:
    broker = SimBroker(SimDisk(), StoreOptions())
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
    before = len(broker.timers)
    long, short, gone = pinned(broker, 60), pinned(broker, 10), pinned(broker, 20)
    broker.call("STREAM.UNPIN.S", pin=gone)
    assert broker.disk.list("pins") == sorted([long, short])
    broker.advance(11 * SECOND)
    assert broker.disk.list("pins") == [long]
    broker.advance(50 * SECOND)
    assert broker.disk.list("pins") == []
    assert len(broker.timers) == before
    assert not broker.jetstream.pin_leases


def test_one_that_is_swept_with_the_next_leaves_no_timer(broker: SimBroker) -> None:
    before = len(broker.timers)
    pinned(broker, 10)
    broker.clock.set_by(11 * SECOND)
    last = pinned(broker, 10)
    assert broker.disk.list("pins") == [last]
    assert len(broker.timers) == before + 1
