"""Pull requests that wait when a server stops end with a status, so that clients ask another server."""

from __future__ import annotations

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND_NS = 1_000_000_000


def test_waiting_pulls_end_with_what_they_wait_for() -> None:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s"])
    broker.call(
        "CONSUMER.CREATE.S.C", stream_name="S", config={"durable_name": "C", "ack_policy": "explicit"}
    )
    limits = ({"batch": 7, "max_bytes": 1000}, {"batch": 1})
    numbers = [
        broker.call_nowait("CONSUMER.MSG.NEXT.S.C", expires=600 * SECOND_NS, **limit) for limit in limits
    ]
    broker.run_until_idle()
    assert not any(number in broker.replies for number in numbers)
    broker.jetstream.close()
    assert [broker.replies[number].header for number in numbers if number in broker.replies] == [
        b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 7\r\nNats-Pending-Bytes: 1000\r\n\r\n",
        b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0\r\n\r\n",
    ]
