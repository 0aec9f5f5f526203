"""Publishes, purges and new streams with excessive numbers are rejected."""

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


@pytest.mark.parametrize("seq", [2**64 - 1, 2**62 + 1])
def test_a_sequence_beyond_counting_is_refused(seq: int) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    assert broker.call("STREAM.PURGE.S", seq=seq)["error"]["err_code"] == 10003
    assert (
        broker.call("STREAM.CREATE.F", name="F", subjects=["f"], first_seq=seq)["error"]["err_code"] == 10052
    )
    number = broker.publish("s.a", b"x")
    broker.run_until_idle()
    assert broker.replies[number].json["seq"] == 1


def test_long_digits_are_no_number() -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_atomic=True)
    long = "1" * 5000
    codes = []
    for fields in (
        {"Nats_Expected_Last_Sequence": long},
        {"Nats_Expected_Last_Subject_Sequence": long},
        {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": long},
    ):
        number = broker.publish("s.a", b"x", **fields)
        broker.run_until_idle()
        codes.append(broker.replies[number].json["error"]["err_code"])
    assert codes == [10071, 10071, 10175]


@pytest.mark.parametrize("text", ["9" * 5000 + "s", "1s" * 30_000])
def test_a_lifetime_beyond_reason_is_refused(text: str) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_msg_ttl=True, allow_msg_schedules=True)
    number = broker.publish("s.a", b"", Nats_TTL=text)
    other = broker.publish("s.b", b"", Nats_Schedule=f"@every {text}", Nats_Schedule_Target="s.c")
    broker.run_until_idle()
    assert broker.replies[number].json["error"]["err_code"] == 10165
    assert broker.replies[other].json["error"]["err_code"] == 10189
