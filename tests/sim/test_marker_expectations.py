"""Expected sequences while messages expire: a delete marker counts, even if the publish itself makes the server place it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.streams import retention
from headrace.protocol import headers
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

SECOND = 1_000_000_000


def start(options: StoreOptions = SIZES[1], **config: Any) -> SimBroker:
    broker = SimBroker(SimDisk(), options)
    broker.start()
    broker.run_until_idle()
    answer = broker.call(
        "STREAM.CREATE.S",
        name="S",
        subjects=["s.>"],
        allow_atomic=True,
        subject_delete_marker_ttl=60 * SECOND,
        max_msgs_per_subject=1,
        **config,
    )
    assert "error" not in answer, answer
    return broker


def commit(broker: SimBroker, **fields: str) -> Any:
    """Commit a batch of two; both members have these headers."""
    broker.publish("s.x", b"1", Nats_Batch_Id="B", Nats_Batch_Sequence="1", **fields)
    number = broker.publish(
        "s.y", b"2", Nats_Batch_Id="B", Nats_Batch_Sequence="2", Nats_Batch_Commit="1", **fields
    )
    broker.run_until_idle()
    return broker.replies[number].json


@pytest.mark.parametrize("config", [{}, {"discard": "new", "max_msgs": 100}])
def test_a_batch_sees_the_marker_of_its_own_commit(config: dict[str, Any]) -> None:
    broker = start(**config)
    broker.publish("s.a", b"x", Nats_TTL="1")
    broker.run_until_idle()
    broker.clock.advance(SECOND + 1_000_000)  # no timer is run: the sweep is late
    answer = commit(broker, Nats_Expected_Last_Sequence="1")
    assert answer["error"]["description"] == "wrong last sequence: 2"
    assert broker.jetstream.streams["S"].log.last_seq == 2
    assert commit(broker, Nats_Expected_Last_Sequence="2")["seq"] == 4


@pytest.mark.parametrize("by_batch", [False, True])
def test_no_marker_between_check_and_message(by_batch: bool) -> None:
    """More messages have expired than are removed at once, and discard new has to make room."""
    broker = start(StoreOptions(), discard="new", max_msgs=10_000)
    block = headers.build([(b"Nats-TTL", b"1")])
    for number in range(1_000):
        broker.router.publish(b"s.%d" % number, b"", block, b"v")
    broker.run_until_idle()
    log = broker.jetstream.streams["S"].log
    broker.clock.advance(2 * SECOND)
    end = log.last_seq
    expected = str(end + retention._MARKED_SLICE)  # one slice of markers, then the message
    if by_batch:
        broker.publish(
            "s.y",
            b"2",
            Nats_Batch_Id="B",
            Nats_Batch_Sequence="1",
            Nats_Batch_Commit="1",
            Nats_Expected_Last_Sequence=expected,
        )
    else:
        broker.publish("s.y", b"2", Nats_Expected_Last_Sequence=expected)
    assert log.last_seq == end + retention._MARKED_SLICE + 1
    assert log.get_last_seq(b"s.y") == log.last_seq
