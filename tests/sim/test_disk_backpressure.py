"""Publishers wait for a slow disk, and continue when it has caught up."""

from __future__ import annotations

import pytest

from headrace.sim import SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS = SIZES[0]
SECOND = 1_000_000_000


def start(
    disk: SimDisk | None = None, options: StoreOptions = OPTIONS, clock: SimClock | None = None
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.run_until_idle()
    return broker


def test_publishers_go_on_when_the_disk_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.commit.disk_backpressure.PENDING_BYTES_MAX", 20_000)
    broker = start()
    relieved: list[bool] = []
    broker.jetstream.disk_backpressure.on_low(lambda: relieved.append(True))
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    while not broker.jetstream.disk_backpressure.is_high():
        broker.publish("s.a", bytes(1000))
    broker.run_until_idle()
    broker.advance(SECOND)
    assert relieved
