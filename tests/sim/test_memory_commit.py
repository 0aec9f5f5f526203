"""Streams in memory: their acks and deliveries wait for no disk, and a failed store acknowledges nothing for them either."""

from __future__ import annotations

from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL


class Collector:
    """Collects the payloads that it receives."""

    announced = False

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self._payloads.append(payload)


def start() -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    broker.call("STREAM.CREATE.M", name="M", subjects=["m.>"], storage="memory", allow_direct=True)
    broker.call("STREAM.CREATE.F", name="F", subjects=["f.>"])
    broker.run_until_idle()
    return broker


def test_an_ack_of_a_memory_stream_waits_for_no_disk() -> None:
    broker = start()
    durable = broker.publish("f.a", b"durable")
    broker.step()  # its frame is being written
    assert broker.store.in_flight
    volatile = broker.publish("m.a", b"volatile", Nats_Msg_Id="one")
    again = broker.publish("m.a", b"volatile", Nats_Msg_Id="one")
    broker.step()
    assert broker.store.in_flight
    assert broker.replies[volatile].json["seq"] == 1
    assert broker.replies[again].json["duplicate"]
    assert durable not in broker.replies
    broker.run_until_idle()
    assert broker.replies[durable].json["seq"] == 1


def test_a_consumer_of_a_memory_stream_waits_for_no_disk() -> None:
    broker = start()
    config = {"durable_name": "c", "ack_policy": "explicit", "deliver_subject": "out"}
    broker.call("CONSUMER.CREATE.M.c", stream_name="M", config=config)
    delivered: list[bytes] = []
    broker.router.subscribe_internal(b"out", Collector(delivered))
    broker.publish("f.a", b"durable")
    broker.step()
    broker.publish("m.a", b"volatile")
    while broker._pending_calls:
        broker.step()
    assert broker.store.in_flight
    assert delivered == [b"volatile"]


def test_a_direct_get_of_a_memory_stream_waits_for_no_disk() -> None:
    broker = start()
    broker.publish("f.a", b"durable")
    broker.step()
    broker.publish("m.a", b"volatile")
    request = broker.publish("$JS.API.DIRECT.GET.M.m.a")
    while broker._pending_calls:
        broker.step()
    assert broker.store.in_flight
    assert broker.replies[request].payload == b"volatile"


def test_a_failed_store_acknowledges_nothing_for_memory_streams() -> None:
    broker = start()
    request = broker.publish("m.a", b"before the failure")
    broker.store.fail(OSError("broken disk"))
    refused = broker.publish("m.a", b"after the failure")
    broker.run_until_idle()
    assert request not in broker.replies
    assert broker.replies[refused].json["error"]["err_code"] == 10023


def test_a_memory_stream_is_deleted_with_changes_that_are_not_committed() -> None:
    broker = start()
    broker.publish("m.a", b"volatile")
    broker.call_nowait("STREAM.DELETE.M")
    broker.run_until_idle()
    assert "M" not in broker.store.logs
    assert not broker.store.memory_frames.dirty
