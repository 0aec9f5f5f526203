"""Crashes with stream features (fast batches, counters, schedules): at every disk operation, with every outcome."""

from __future__ import annotations

from random import Random

import pytest

from headrace.jetstream_api import times
from headrace.sim.sim_broker import SimBroker

from .crash_points import Checker
from .test_broker_crash_points import Story, record

SECOND = 1_000_000_000


def fast_batches(broker: SimBroker, rng: Random) -> None:
    """Members that are stored as they come, between other publishes."""
    broker.call("STREAM.CREATE.F", name="F", subjects=["f.>"], allow_batched=True, max_msgs_per_subject=5)
    for turn in range(5):
        size = rng.randrange(2, 12)
        for position in range(1, size + 1):
            operation = 2 if position == size else min(position - 1, 1)
            reply = f"_F.b{turn}.{rng.randrange(1, 5)}.ok.{position}.{operation}.$FI"
            broker.router.publish(b"f.%d" % (position % 3), reply.encode(), b"", b"p" * rng.randrange(900))
            if rng.random() < 0.3:
                broker.publish("f.other", b"o")
            if rng.random() < 0.3:
                broker.run_until_idle()
    broker.run_until_idle()


def counters(broker: SimBroker, rng: Random) -> None:
    """Counters, alone and in batches."""
    broker.call("STREAM.CREATE.C", name="C", subjects=["c.>"], allow_msg_counter=True, allow_atomic=True)
    for turn in range(14):
        batch = {"Nats_Batch_Id": f"b{turn}", "Nats_Batch_Sequence": "1"} if turn % 3 == 0 else {}
        broker.publish(f"c.{turn % 2}", Nats_Incr=str(rng.randrange(-9, 10)), **batch)
        if batch:
            batch |= {"Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
            broker.publish(f"c.{turn % 2}", Nats_Incr=str(10**30), **batch)
        if rng.random() < 0.4:
            broker.advance(rng.randrange(SECOND))
    broker.advance(SECOND)


def schedules(broker: SimBroker, rng: Random) -> None:
    """Schedules that fire once, often, and are replaced."""
    broker.call("STREAM.CREATE.P", name="P", subjects=["p.>"], allow_msg_schedules=True)
    for turn in range(12):
        moment = times.format_time(broker.clock.now_ns() + rng.randrange(3 * SECOND))
        pattern = "@every 1s" if turn % 4 == 0 else f"@at {moment}"
        target = f"p.out.{turn % 3}"
        broker.publish(f"p.plan.{turn % 5}", b"x" * 300, Nats_Schedule=pattern, Nats_Schedule_Target=target)
        if rng.random() < 0.5:
            broker.advance(rng.randrange(SECOND))
    broker.advance(3 * SECOND)


STORIES: dict[str, Story] = {"fast_batches": fast_batches, "counters": counters, "schedules": schedules}


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_a_crash_at_every_operation(name: str) -> None:
    assert Checker(record(name, 0, STORIES)).run().total >= 200
