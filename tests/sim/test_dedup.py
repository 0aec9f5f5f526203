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
    assert b"one" not in stream.dedup.encode(0, stream.dedup.saved_position)
    broker.run_until_idle()
    assert b"one" in stream.dedup.encode(0, stream.dedup.saved_position)


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


# Blocks of ids


def stored_keys(broker: SimBroker) -> list[bytes]:
    metadata = broker.store.metadata
    return [*metadata.keys(b"ids/"), *metadata.keys(b"idblocks/")]


@pytest.mark.parametrize("seed", range(12))
def test_blocks_of_ids_survive_crashes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.streams.dedup.BLOCK_BYTES", 200)
    rng, clock, window_ns, sent = Random(seed), SimClock(), 60 * 10**9, 0
    broker = start(SimDisk(seed), clock=clock)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], duplicate_window=window_ns)
    stored_at: dict[int, int] = {}
    for _ in range(6):
        for _ in range(60):
            broker.publish("s.a", b"once", Nats_Msg_Id=f"number-{sent}")
            broker.run_until_idle()
            stored_at[sent], sent = clock.now_ns(), sent + 1
            broker.advance(rng.randrange(10**9))
            if rng.random() < 0.1:
                broker.store.checkpoint()
        disk = broker.disk.crash(rng.choice(OUTCOMES), seed) if rng.random() < 0.5 else broker.disk
        broker = start(disk, clock=clock) if disk is not broker.disk else broker
        number = rng.choice(
            [each for each in stored_at if clock.now_ns() - stored_at[each] < window_ns * 9 // 10]
        )
        request = broker.publish("s.a", b"again", Nats_Msg_Id=f"number-{number}")
        broker.run_until_idle()
        assert broker.replies[request].json["duplicate"]
    assert broker.jetstream.streams["S"].log.messages == sent
    assert 2 < len(stored_keys(broker)) < 60
    broker.call("STREAM.DELETE.S")
    assert not stored_keys(broker)


def test_a_large_window_of_an_older_version_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions had all ids in one value, which is the first block now."""
    monkeypatch.setattr("headrace.broker.streams.dedup.BLOCK_BYTES", 1 << 30)
    clock = SimClock()
    broker = start(clock=clock)
    broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], duplicate_window=60 * 10**9)
    for number in range(50):
        broker.publish("s.a", b"once", Nats_Msg_Id=f"old-{number}")
    broker.run_until_idle()
    ident = broker.jetstream.streams["S"].log.ident
    assert stored_keys(broker) == [b"ids/%d" % ident]
    assert not broker.store.checkpointer.features
    monkeypatch.setattr("headrace.broker.streams.dedup.BLOCK_BYTES", 200)
    broker = start(broker.disk.crash(OUTCOMES[0]), clock=clock)
    for message_id in ("new", "old-0", "other", "old-49", "new", "more"):
        broker.publish("s.a", b"once", Nats_Msg_Id=message_id)
        broker.run_until_idle()
    assert broker.jetstream.streams["S"].log.messages == 53
    assert broker.store.checkpointer.features == {"facts/id-blocks"}
    assert stored_keys(broker) == [b"ids/%d" % ident, b"ids/%d/1" % ident, b"idblocks/%d" % ident]
    broker.advance(61 * 10**9)
    for number in range(20):
        broker.publish("s.a", b"once", Nats_Msg_Id=f"late-{number}")
        broker.run_until_idle()
    assert b"ids/%d" % ident not in stored_keys(broker)
