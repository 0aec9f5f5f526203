"""Spark queries continue from their checkpoints after their streams moved to a cluster, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import connect
from headrace.reader.blocking_connection import ServerAddress, drop_connection
from support.cluster_leaf import Pair, start_pair
from support.moves import await_stream, move, publish

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_pair(tmp_path_factory.mktemp("pair")) as joined:
        yield joined
        for url in (joined.ours.url, joined.cluster.urls):
            drop_connection(ServerAddress(servers=tuple(url.split(","))))


def test_a_query_reads_and_writes_moved_streams(spark: Any, pair: Pair, name: str, tmp_path: Path) -> None:
    """Each number is read once and written once, wherever the streams are."""
    source, target = f"{name}_in", f"{name}_out"
    streams = (source, target, f"SPARK_PROGRESS_{target}", f"SPARK_STAGING_{target}")

    def run(url: str) -> None:
        place = {"servers": url}
        feed = spark.readStream.format("headrace").options(**place, stream=source, starting="earliest").load()
        rows = feed.selectExpr(f"concat('{target}.', data) AS subject", "data")
        writer = rows.writeStream.format("headrace").options(**place, stream=target)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(250)

    asyncio.run(_create(pair.ours.url, (source, target)))
    asyncio.run(_publish(pair.ours.url, source, range(10)))
    run(pair.ours.url)
    asyncio.run(_publish(pair.ours.url, source, range(10, 15)))
    move(pair, streams)
    asyncio.run(_publish(pair.ours.url, source, range(15, 20)))
    asyncio.run(await_stream(pair.cluster.urls, f"{target}.0"))
    run(pair.cluster.urls)
    assert asyncio.run(_read(pair.cluster.urls, target)) == list(range(20))
    asyncio.run(_publish(pair.cluster.urls, source, range(20, 25)))
    move(pair, streams, back=True)
    asyncio.run(await_stream(pair.ours.url, f"{target}.0"))
    run(pair.ours.url)
    assert asyncio.run(_read(pair.ours.url, target)) == list(range(25))


async def _create(url: str, streams: tuple[str, ...]) -> None:
    async with await connect(url) as connection:
        for stream in streams:
            config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, "allow_atomic": True}
            await connection.jetstream().api_request(f"STREAM.CREATE.{stream}", config)


async def _publish(url: str, stream: str, numbers: range) -> None:
    async with await connect(url.split(",")) as connection:
        for number in numbers:
            await publish(connection, f"{stream}.{number % 3}", b"%d" % number)


async def _read(url: str, stream: str) -> list[int]:
    """Return the numbers of a stream, in order of their value."""
    async with await connect(url.split(",")) as connection:
        js = connection.jetstream()
        state = (await js.stream_info(stream)).state
        numbers = [int((await js.get_msg(stream, seq)).data) for seq in range(1, state.last_seq + 1)]
        return sorted(numbers)
