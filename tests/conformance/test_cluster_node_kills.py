"""A node of a cluster of three nats-servers is killed in the middle of batches, of expiring keys, and of copying from a
Headrace at the edge. Claims are in claims/test_cluster.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import nats.errors
import pytest

from headrace.client import Client, JetStream, connect, errors
from headrace.errors import HeadraceError
from support.cluster import Cluster, Node
from support.cluster_leaf import LEAF, Pair, start_pair

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]

REPLICAS = 3
DEADLINE_S = 90.0
FAILURES = (HeadraceError, nats.errors.Error, OSError, TimeoutError)
T = TypeVar("T")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_pair(tmp_path_factory.mktemp("pair")) as made:
        yield made


@pytest.fixture
async def nc(pair: Pair) -> AsyncIterator[Client]:
    async def ignore(_: Exception) -> None:
        """Ignore errors while a node is down."""

    made = await connect(
        pair.cluster.urls.split(","), max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore
    )
    yield made
    await made.close()


@pytest.fixture
def js(nc: Client) -> JetStream:
    return nc.jetstream()


async def retry(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat what fails while there is no leader."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await work()
            except FAILURES:
                await asyncio.sleep(0.1)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not await retry(condition):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)


async def kill_leader(cluster: Cluster, stream: str) -> Node:
    node = await asyncio.to_thread(cluster.leader_of, stream)
    await asyncio.to_thread(node.kill)
    return node


async def start_again(cluster: Cluster, node: Node) -> None:
    node.start()
    await asyncio.to_thread(cluster.await_meta_leader, node)


async def read_all(js: JetStream, stream: str) -> list[str]:
    """Return the payloads of a stream in order."""
    state = (await js.stream_info(stream)).state
    return [(await js.get_msg(stream, seq)).data.decode() for seq in range(1, state.last_seq + 1)]


async def test_batches_are_whole_or_absent(js: JetStream, pair: Pair) -> None:
    size, stored, unknown = 5, [], []
    await js.add_stream(name="BATCHES", subjects=["batches"], allow_atomic=True, num_replicas=REPLICAS)
    node: Node | None = None
    for number in range(20):
        if number == 8:
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(kill_leader(pair.cluster, "BATCHES"))
                group.create_task(publish_batch(js, number, size, stored, unknown))
            node = killing.result()
        else:
            await publish_batch(js, number, size, stored, unknown)
    assert node is not None
    await start_again(pair.cluster, node)
    assert len(stored) > 10
    found = await retry(lambda: read_all(js, "BATCHES"))
    assert found == [text for text in found[::size] for _ in range(size)], "in parts, or mixed"
    assert sorted(set(found) - set(unknown)) == sorted(stored)


async def publish_batch(js: JetStream, number: int, size: int, stored: list[str], unknown: list[str]) -> None:
    """Publish a batch until it is stored; one without a reply may be stored, and is not repeated."""
    async with asyncio.timeout(DEADLINE_S):
        for attempt in range(1000):
            text = f"{number}-{attempt}"
            try:
                await js.publish_batch([("batches", text.encode())] * size, timeout=2)
            except FAILURES:
                unknown.append(text)
                await asyncio.sleep(0.1)
            else:
                stored.append(text)
                return


async def test_keys_expire_once_and_no_other_key_does(nc: Client, js: JetStream, pair: Pair) -> None:
    # A request without a reply is repeated before the key expires; otherwise it would be created twice.
    ttl_s, count = 10, 20
    bucket = await retry(
        lambda: js.create_key_value(bucket="EXPIRING", limit_markers="1h", replicas=REPLICAS, history=1)
    )
    writer = await retry(lambda: nc.jetstream(timeout=1).key_value("EXPIRING"))
    for number in range(count):
        await create(writer, f"short{number}", ttl=ttl_s)
        await create(writer, f"long{number}")
    node = await kill_leader(pair.cluster, "KV_EXPIRING")
    await create(writer, "during", ttl=ttl_s)
    await start_again(pair.cluster, node)
    await create(writer, "after", ttl=ttl_s)
    left = {f"long{number}" for number in range(count)}

    async def only_long_ones_are_left() -> bool:
        return set(await bucket.keys()) == left

    async def count_messages() -> int:
        return (await js.stream_info("KV_EXPIRING")).state.messages

    async def all_markers_are_stored() -> bool:
        return await count_messages() >= count + count + 2

    await until(only_long_ones_are_left)
    # Each expired key leaves one marker, however often the leader changed. The keys are those of one replica, and the
    # number of messages is that of the leader.
    await until(all_markers_are_stored)
    assert await retry(count_messages) == count + count + 2


async def create(bucket: Any, key: str, **options: Any) -> None:
    """Create a key; without a leader the first attempt may be stored although there is no reply."""

    async def attempt() -> None:
        try:
            await bucket.create(key, b"x", **options)
        except errors.KeyExists:
            return

    await retry(attempt)


async def test_a_work_queue_at_the_edge_is_copied(js: JetStream, pair: Pair) -> None:
    acked: list[str] = []
    async with await connect(pair.ours.url) as edge_nc:
        edge = edge_nc.jetstream()
        await edge.add_stream(name="EDGE_JOBS", subjects=["edge.jobs"], retention="workqueue")
        await edge.add_stream(name="EDGE_EVENTS", subjects=["edge.events"])
        await edge.create_sourcing_consumer("EDGE_JOBS", "hub", "deliver.edge.jobs")
        external = {"api": f"$JS.{LEAF}.API", "deliver": ""}
        durable = {"name": "hub", "deliver_subject": "deliver.edge.jobs"}
        sources = [
            {"name": "EDGE_JOBS", "external": external, "consumer": durable},
            {"name": "EDGE_EVENTS", "external": external},
        ]
        body = {"name": "COPIED", "num_replicas": REPLICAS, "sources": sources}
        await retry(lambda: js.api_request("STREAM.CREATE.COPIED", body))
        node: Node | None = None
        for number in range(300):
            for subject in ("edge.jobs", "edge.events"):
                await edge.publish(subject, f"{subject} {number}".encode())
                acked.append(f"{subject} {number}")
            if number == 100:
                node = await kill_leader(pair.cluster, "COPIED")
        assert node is not None
        await start_again(pair.cluster, node)

        async def is_copied() -> bool:
            return (await js.stream_info("COPIED")).state.messages >= len(acked)

        await until(is_copied)
        await asyncio.sleep(1)
        found = await retry(lambda: read_all(js, "COPIED"))
        for subject in ("edge.jobs", "edge.events"):
            expected = [text for text in acked if text.startswith(subject)]
            assert [text for text in found if text.startswith(subject)] == expected
        await until(lambda: is_empty(edge))


async def is_empty(edge: JetStream) -> bool:
    return (await edge.stream_info("EDGE_JOBS")).state.messages == 0
