"""The storage limit of an account holds for a batch as a whole."""

from __future__ import annotations

from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES


def start() -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    broker.run_until_idle()
    return broker


def test_a_batch_stays_within_what_its_account_may_keep() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True)
    broker.jetstream.quota.set_limits(JetStreamLimits(max_storage=5000))
    fields = {"Nats_Batch_Id": "b"}
    for position in (1, 2):
        broker.publish("s.a", bytes(2000), Nats_Batch_Sequence=f"{position}", **fields)
    number = broker.publish("s.a", bytes(2000), Nats_Batch_Sequence="3", Nats_Batch_Commit="1", **fields)
    broker.run_until_idle()
    assert broker.replies[number].json["error"]["err_code"] == 10002
    assert broker.jetstream.streams["S"].log.messages == 0
