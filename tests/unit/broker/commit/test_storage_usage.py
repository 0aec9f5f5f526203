"""Storage usage of an account: always equal to a scan of all streams, without scanning."""

from __future__ import annotations

import gc
import weakref
from random import Random
from typing import Any

import pytest

from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker
from support.small_store import SMALL_JOURNAL

MOST = 20_000


def made(streams: int) -> SimBroker:
    broker = SimBroker(SimDisk(), SMALL_JOURNAL)
    broker.start()
    for number in range(streams):
        storage = "memory" if number % 3 == 2 else "file"
        create(broker, number, storage)
    broker.jetstream.quota.set_limits(JetStreamLimits(max_storage=MOST, max_memory=MOST))
    return broker


def scan(broker: SimBroker, storage: str) -> tuple[int, int]:
    """Return bytes in use and bytes reserved, from a look at every stream."""
    streams = [each for each in broker.jetstream.streams.values() if each.config.storage == storage]
    return sum(each.log.bytes for each in streams), sum(max(each.config.max_bytes, 0) for each in streams)


def create(broker: SimBroker, number: int, storage: str) -> None:
    name = f"S{number}"
    answer = broker.call(
        f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"], storage=storage, max_msgs_per_subject=3
    )
    assert "error" not in answer


@pytest.mark.parametrize("seed", range(8))
def test_as_much_is_taken_as_fits(seed: int) -> None:
    rng, broker = Random(seed), made(5)
    refused = 0
    for _ in range(400):
        number = rng.randrange(5)
        stream = broker.jetstream.streams.get(f"S{number}")
        if stream is None:
            create(broker, number, "file")
        elif (drawn := rng.random()) < 0.9:
            payload = bytes(rng.randrange(2_000))
            subject, storage = f"S{number}.{rng.randrange(4)}", stream.config.storage
            size = stream.compute_stored_size(subject.encode(), b"", payload)
            used = scan(broker, storage)
            assert broker.jetstream.quota.usage(storage) == used
            fits = used[0] + size <= MOST
            request = broker.publish(subject, payload)
            if rng.random() < 0.3:
                broker.run_until_idle()
                said = broker.replies[request].json
                assert ("error" not in said) is fits
                refused += not fits
            else:
                broker.router.publish(f"S{number}.{rng.randrange(4)}".encode(), b"", b"", payload)
        elif drawn < 0.97:
            broker.call(f"STREAM.PURGE.S{number}")
        else:
            broker.call(f"STREAM.DELETE.S{number}")
    assert refused


def test_a_message_does_not_cost_a_look_at_every_stream() -> None:
    broker = made(50)
    looked_at = 0

    class CountedStreams(dict[str, Any]):
        def values(self) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().values()

    broker.jetstream.quota.streams = CountedStreams(broker.jetstream.streams)
    for number in range(100):
        broker.publish(f"S{number % 50}.a", b"x")
        if number % 10 == 9:
            broker.run_until_idle()
            assert broker.jetstream.quota.usage("file") == scan(broker, "file")
    assert not looked_at


def test_deleted_streams_are_not_referred_to() -> None:
    broker = made(3)
    for number in range(3):
        broker.publish(f"S{number}.a", b"x")
    broker.run_until_idle()
    logs = [weakref.ref(stream.log) for stream in broker.jetstream.streams.values()]
    for number in range(3):
        assert "error" not in broker.call(f"STREAM.DELETE.S{number}")
    broker.run_until_idle()
    gc.collect()
    assert not any(log() is not None for log in logs)
    assert broker.jetstream.quota.usage("file") == broker.jetstream.quota.usage("memory") == (0, 0)


@pytest.mark.parametrize("memory", [False, True])
def test_logs_without_a_stream_are_not_referred_to(memory: bool) -> None:
    """As after a restore that failed: the log is deleted, and there never was a stream."""
    broker = made(1)
    store = broker.jetstream.store
    log = store.create("RESTORED", memory=memory)
    broker.publish("S0.a", b"x")
    broker.run_until_idle()
    store.delete(log)
    broker.publish("S0.a", b"x")
    broker.run_until_idle()
    found = weakref.ref(log)
    del log
    gc.collect()
    assert found() is None
