"""Direct gets with unusual times and keys are answered."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_any_time_is_answered(time: str) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True)
    broker.publish("s.a", b"x")
    broker.run_until_idle()
    number = broker.call_nowait("DIRECT.GET.S", start_time=time, batch=10)
    got = broker.call("STREAM.MSG.GET.S", start_time=time)
    broker.run_until_idle()
    early = time.startswith("0001")
    assert broker.replies[number].header.startswith(b"NATS/1.0 404") != early
    assert ("message" in got) == early


def test_a_key_of_any_bytes_is_answered() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True)
    broker.router.publish(b"s.\xff", b"_SIM.900", b"", b"x")
    broker.router.publish(b"$JS.API.DIRECT.GET.S.s.\xff", b"_SIM.901", b"", b'{"no_hdr":true}')
    broker.run_until_idle()
    assert broker.replies[901].payload == b"x"
