"""A claim namespace moves to a cluster and back: references, records and timers go along, objects stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import nats
import pytest
from nats.aio.client import Client as Connection

from claims.claims_harness import LARGE, TIMEOUT_S
from headrace.claims import ClaimConfig, Claims, MemoryStore, Received, Ttl
from support.cluster_leaf import Pair, start_pair
from support.moves import move_streams

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]
STREAMS = ("VIDEO", "CLAIMS", "CLAIMS_AUDIT")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with start_pair(tmp_path_factory.mktemp("pair")) as joined:
        yield joined


async def open_claims(url: str, store: MemoryStore) -> tuple[Connection, Claims]:
    connection = await nats.connect(url.split(","), connect_timeout=TIMEOUT_S)
    config = ClaimConfig("video", threshold=1024, backend="memory", ttl=Ttl(2, True, 0, 0))
    claims = Claims(connection, config, store=store, timeout_s=TIMEOUT_S, retry_s=0.1)
    await claims.set_up()
    return connection, claims


async def read_next(claims: Claims) -> bytes:
    received: list[bytes] = []

    async def take(message: Received) -> None:
        received.append(message.data)

    (message,) = await claims.jetstream.pull("VIDEO", "c", 1, expires_s=TIMEOUT_S)
    assert await claims.consumer.handle(message, take)
    return received[0]


async def test_a_namespace_moves_with_its_claims_and_timers(pair: Pair) -> None:
    store = MemoryStore()
    connection, claims = await open_claims(pair.ours.url, store)
    js = claims.jetstream
    stream = {"name": "VIDEO", "subjects": ["video.>"], "allow_msg_ttl": True}
    await js.api_request("STREAM.CREATE.VIDEO", stream)
    consumer = {"stream_name": "VIDEO", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await js.api_request("CONSUMER.DURABLE.CREATE.VIDEO.c", consumer)
    payloads = [bytes([number]) + LARGE for number in range(4)]
    for payload in payloads[:2]:
        await claims.producer.publish("video.a", payload)
    assert await read_next(claims) == payloads[0]
    await claims.close()
    await connection.close()

    await move_streams(pair, STREAMS)
    connection, claims = await open_claims(pair.cluster.urls, store)
    assert await read_next(claims) == payloads[1]
    for payload in payloads[2:]:
        await claims.producer.publish("video.a", payload)
    assert await read_next(claims) == payloads[2]
    await claims.close()
    await connection.close()

    await move_streams(pair, STREAMS, back=True)
    connection, claims = await open_claims(pair.ours.url, store)
    assert await read_next(claims) == payloads[3]
    async with asyncio.timeout(TIMEOUT_S):
        # Every claim was read, so its timer ends it, wherever the timer was set.
        while [each async for page in store.list("") for each in page]:
            await claims.collector.collect()
            await asyncio.sleep(0.2)
    await claims.close()
    await connection.close()
