"""Claims on a cluster of three nats-servers: they continue when the node with the registry dies."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import nats
import pytest
from nats.aio.client import Client as Connection

from claims.claims_harness import LARGE, TIMEOUT_S
from headrace.claims import ClaimConfig, ClaimError, Claims, Received, Ttl, open_store
from headrace.claims.audit_trail import STREAM as AUDIT_STREAM
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.registry import STREAM
from headrace.errors import RequestError
from support.cluster import Cluster

pytestmark = pytest.mark.slow
DEADLINE_S = 120.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    made = await nats.connect(
        cluster.urls.split(","), connect_timeout=TIMEOUT_S, max_reconnect_attempts=-1, reconnect_time_wait=0.1
    )
    yield made
    await made.close()


async def retry(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat what fails while there is no leader."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await work()
            except (ClaimError, RequestError, RequestTimeout):
                await asyncio.sleep(0.1)


def make_claims(connection: Connection, store: Any, settings: dict[str, Any], replicas: int) -> Claims:
    config = ClaimConfig("video", threshold=1024, replicas=replicas, ttl=Ttl(3600, True, 0, 300), **settings)
    return Claims(connection, config, store=store, timeout_s=2.0, retry_s=0.1)


async def remove_streams(js: JetStreamClient) -> None:
    """Leave nothing for the next test on this cluster."""
    for stream in ("VIDEO", STREAM, AUDIT_STREAM):
        await retry(lambda stream=stream: js.api_request(f"STREAM.DELETE.{stream}"))  # type: ignore[misc]


async def get_replicas(connection: Connection, stream: str) -> int:
    info = await JetStreamClient(connection).api_request(f"STREAM.INFO.{stream}")
    replicas: int = info["config"]["num_replicas"]
    return replicas


@pytest.mark.parametrize("kind", ["memory", "s3"])
async def test_claims_survive_the_node_that_leads_the_registry(
    cluster: Cluster, connection: Connection, kind: str, settings_of: Callable[[str], dict[str, Any]]
) -> None:
    settings = settings_of(kind) | {"bucket": f"claims-{uuid.uuid4().hex[:12]}"}
    store = open_store(ClaimConfig("video", **settings))
    await store.ensure_bucket()
    single = make_claims(connection, store, settings, 1)
    await retry(single.set_up)
    assert await get_replicas(connection, STREAM) == 1
    claims = make_claims(connection, store, settings, 3)
    await retry(claims.set_up)
    await retry(single.set_up)
    for stream in (STREAM, AUDIT_STREAM):
        assert await get_replicas(connection, stream) == 3, "more are added, and none taken away"
    js = claims.jetstream
    config = {"name": "VIDEO", "subjects": ["video.>"], "num_replicas": 3, "allow_msg_ttl": True}
    await retry(lambda: js.api_request("STREAM.CREATE.VIDEO", config))
    body: dict[str, Any] = {"durable_name": "c", "ack_policy": "explicit"}
    body = {"stream_name": "VIDEO", "config": body}
    await retry(lambda: js.api_request("CONSUMER.DURABLE.CREATE.VIDEO.c", body))
    for item in (
        f"STREAM.INFO.{STREAM}",
        f"CONSUMER.INFO.{STREAM}.collectors-video",
        "CONSUMER.INFO.VIDEO.c",
    ):
        await _await_replicas(cluster, item)
    sent = await retry(lambda: claims.producer.publish("video.a", LARGE, msg_id="1"))

    node = cluster.leader_of(STREAM)
    await asyncio.to_thread(node.kill)
    try:
        cluster.nodes.remove(node)
        received: list[bytes] = []

        async def take(message: Received) -> None:
            received.append(message.data)

        async def read() -> None:
            (message,) = await js.pull("VIDEO", "c", 1, expires_s=2.0) or (None,)
            if message is None or not await claims.consumer.handle(message, take):
                raise RequestTimeout("nothing was read")

        await retry(read)
        await retry(lambda: claims.producer.publish("video.a", LARGE, msg_id="2"))
        await retry(read)
        assert set(received) == {LARGE}
        await retry(claims.collector.collect)
        assert sent.reference
    finally:
        node.start()
        cluster.nodes.append(node)
    await asyncio.to_thread(cluster.await_meta_leader, node)
    await remove_streams(js)
    await claims.close()
    await single.close()


async def _await_replicas(cluster: Cluster, item: str) -> None:
    """Wait until every replica has everything: nats-server adds them in the background."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            info = await asyncio.to_thread(cluster.api, item)
            replicas = info["cluster"].get("replicas") or ()
            if len(replicas) == 2 and all(each.get("current") for each in replicas):
                return
            await asyncio.sleep(0.1)
