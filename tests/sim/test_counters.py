"""Counters that sum up others: after a crash nothing is counted twice or left out."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.disk.crash_outcomes import Outcome
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000


def start(disk: SimDisk, clock: SimClock | None = None) -> SimBroker:
    broker = SimBroker(disk, SIZES[0], clock)
    broker.start()
    return broker


def values(broker: SimBroker, name: str) -> dict[bytes, int]:
    log = broker.jetstream.streams[name].log
    found: dict[bytes, int] = {}
    for subject, _ in log.iter_subject_counts(None):
        message: Any = log.get(log.get_last_seq(subject))
        found[subject] = int(json.loads(message[3])["val"])
    return found


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.name)
def test_the_sum_is_right_after_crashes(outcome: Outcome) -> None:
    rng = Random(outcome.name)
    broker = start(SimDisk())
    broker.call("STREAM.CREATE.C", name="C", subjects=["c.>"], allow_msg_counter=True, max_msgs_per_subject=2)
    broker.call("STREAM.CREATE.S", name="S", sources=[{"name": "C"}], allow_msg_counter=True)
    for life in range(4):
        for _ in range(30):
            broker.publish(f"c.{rng.randrange(3)}", Nats_Incr=str(rng.randrange(-50, 50)))
            for _ in range(rng.randrange(6)):
                broker.step()
        if rng.random() < 0.5:
            broker.advance(rng.randrange(3 * SECOND))
        broker = start(broker.disk.crash(outcome, life), broker.clock)
    broker.advance(60 * SECOND)
    assert values(broker, "S") == values(broker, "C")
    assert len(values(broker, "C")) == 3
