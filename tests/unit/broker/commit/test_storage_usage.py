"""Storage usage of an account: always equal to a scan of all streams, without scanning."""

from __future__ import annotations

from random import Random

import pytest

from headrace.broker.commit.storage_usage import StorageUsage
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
            fits = broker.jetstream.quota.usage(storage)[0] + size <= MOST
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


def test_a_message_does_not_cost_a_look_at_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, looks = made(50), 0
    count_all = StorageUsage._recount_all

    def counted(self: StorageUsage, storage: str) -> None:
        nonlocal looks
        looks += 1
        count_all(self, storage)

    monkeypatch.setattr(StorageUsage, "_recount_all", counted)
    for number in range(100):
        broker.publish(f"S{number % 50}.a", b"x")
        if number % 10 == 9:
            broker.run_until_idle()
    assert looks <= 2
