"""Streams that commit together do not share their errors."""

from __future__ import annotations

from headrace.sim import SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

OPTIONS = SIZES[0]


def start(
    disk: SimDisk | None = None, options: StoreOptions = OPTIONS, clock: SimClock | None = None
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.run_until_idle()
    return broker


def test_one_streams_trouble_is_not_anothers() -> None:
    broker = start()
    republish = {"src": "a.x", "dest": "$JS.API.INFO"}
    broker.call("STREAM.CREATE.A", name="A", subjects=["a.>"], republish=republish)
    broker.call("STREAM.CREATE.T", name="T", subjects=["t.>"])
    broker.publish("a.x", b"", Nats_Required_Api_Level="9" * 5000)
    numbers = [broker.publish("t.x", b"1")]
    broker.run_until_idle()
    numbers.append(broker.publish("t.x", b"2"))
    broker.run_until_idle()
    assert all(number in broker.replies for number in numbers)
