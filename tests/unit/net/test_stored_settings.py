"""Settings stored by a newer version: a server that does not know one names it and does not start."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import headrace
from headrace.clock import SystemClock
from headrace.errors import UnknownFeature
from headrace.storage import FileDisk, open_store


async def fill(folder: Path) -> None:
    import nats

    async with headrace.Server(store_dir=folder) as server:
        connection = await nats.connect(server.url)
        js = connection.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        await js.publish("s", b"kept")
        await js.add_consumer("S", durable_name="c", ack_policy="explicit")
        await connection.close()


async def serve(folder: Path) -> None:
    async with headrace.Server(store_dir=folder) as server:
        assert server.jetstream is not None


def add_setting(folder: Path, prefix: bytes) -> None:
    """Store a setting as a newer version would."""
    disk = FileDisk(folder / "headrace")
    store = open_store(disk, SystemClock())
    [(key, value)] = store.metadata.items(prefix)
    kept = json.loads(value)
    kept["config"]["from_the_future"] = True
    store.metadata.put(key, json.dumps(kept).encode())
    store.commit()
    disk.drain()
    store.close()
    disk.close()


@pytest.mark.parametrize(("prefix", "what"), [(b"stream/", "stream S"), (b"consumer/", "consumer c")])
def test_an_unknown_setting_is_refused_by_name(tmp_path: Path, prefix: bytes, what: str) -> None:
    asyncio.run(fill(tmp_path))
    asyncio.run(serve(tmp_path))
    add_setting(tmp_path, prefix)
    for _ in range(2):  # and the lock is free again
        with pytest.raises(UnknownFeature, match="from_the_future") as refused:
            asyncio.run(serve(tmp_path))
        for word in (what, headrace.__version__, "upgrade", str(tmp_path)):
            assert word in str(refused.value)
