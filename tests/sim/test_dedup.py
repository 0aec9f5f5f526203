"""Message ids and checkpoints: an id is recovered with its message or not at all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.sim import OUTCOMES, SimClock, SimDisk
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


def test_an_id_is_remembered_only_with_its_message() -> None:
    """A checkpoint taken while a message is being committed must not contain its id yet."""
    options = replace(OPTIONS, checkpoint_bytes=1 << 30)
    broker = start(options=options)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"0", Nats_Msg_Id="0")
    broker.run_until_idle()
    broker.publish("s.a", b"precious", Nats_Msg_Id="one")
    stream = broker.jetstream.streams["S"]
    assert stream.dedup is not None
    assert b"one" not in stream.dedup.snapshot()
    broker.run_until_idle()
    assert b"one" in stream.dedup.snapshot()


@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_between_ticks(seed: int) -> None:
    """A message and its id become durable together, even if a checkpoint is taken in between."""
    broker = start(SimDisk(seed))
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"])
    broker.publish("s.a", b"0")
    broker.run_until_idle()
    broker.store.checkpoint()
    rng = Random(seed)
    for turn in range(12):
        broker.publish("s.a", b"once", Nats_Msg_Id=f"id{turn}")
        for _ in range(rng.randrange(4)):
            broker.disk.step()
        if rng.random() < 0.5:
            broker.step()
    after = start(broker.disk.crash(rng.choice(OUTCOMES), seed), clock=broker.clock)
    for turn in range(12):
        after.publish("s.a", b"once", Nats_Msg_Id=f"id{turn}")
    after.run_until_idle()
    log = after.jetstream.streams["S"].log
    assert log.messages == 13
