"""An unmodified nats-py client: core messaging, managing streams, publishing, a key-value bucket."""

from __future__ import annotations

import asyncio

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, KeyValueConfig, StorageType, StreamConfig

from conformance.servers import Server


class TestCore:
    async def test_publish_and_subscribe(self, nc: NatsClient, name: str) -> None:
        subscription = await nc.subscribe(f"{name}.*")
        for i in range(100):
            await nc.publish(f"{name}.{i}", b"%d" % i, headers={"N": str(i)})
        messages = [await subscription.next_msg(timeout=60) for _ in range(100)]
        assert [int(m.data) for m in messages] == list(range(100))
        assert [m.headers["N"] for m in messages] == [str(i) for i in range(100)]

    async def test_requests_are_answered_in_both_styles(self, nc: NatsClient, name: str) -> None:
        async def answer(message: Msg) -> None:
            await message.respond(message.data[::-1])

        await nc.subscribe(name, queue="workers", cb=answer)
        assert (await nc.request(name, b"abc", timeout=60)).data == b"cba"
        assert (await nc.request(name, b"abc", timeout=60, old_style=True)).data == b"cba"

    async def test_a_request_without_responders_raises(self, nc: NatsClient, name: str) -> None:
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request(name, timeout=60)

    async def test_auto_unsubscribe_ends_after_its_limit(self, nc: NatsClient, name: str) -> None:
        received: list[bytes] = []

        async def keep(message: Msg) -> None:
            received.append(message.data)

        subscription = await nc.subscribe(name, cb=keep)
        await subscription.unsubscribe(limit=2)
        for i in range(5):
            await nc.publish(name, b"%d" % i)
        answered = await nc.subscribe(f"{name}.end")
        await nc.publish(f"{name}.end")
        await answered.next_msg(timeout=60)
        while len(received) < 2:
            await asyncio.sleep(0)
        assert received == [b"0", b"1"]

    async def test_drain_delivers_what_was_published(self, server: Server, name: str) -> None:
        connection = await nats.connect(server.url, allow_reconnect=False, connect_timeout=60)
        received: list[bytes] = []

        async def keep(message: Msg) -> None:
            received.append(message.data)

        await connection.subscribe(name, cb=keep)
        for _ in range(50):
            await connection.publish(name, b"x")
        await connection.drain()
        assert len(received) == 50

    async def test_a_client_reconnects_after_a_restart(self, fresh_server: Server) -> None:
        back = asyncio.Event()

        async def reconnected() -> None:
            back.set()

        async def ignore(_: Exception) -> None:
            """Ignore errors while the server is down."""

        connection = await nats.connect(
            fresh_server.url,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
            reconnected_cb=reconnected,
            error_cb=ignore,
        )
        subscription = await connection.subscribe("a")
        await connection.flush()
        await asyncio.to_thread(fresh_server.restart)
        await asyncio.wait_for(back.wait(), 60)
        await connection.publish("a", b"again")
        assert (await subscription.next_msg(timeout=60)).data == b"again"
        await connection.close()


class TestStreams:
    async def test_life_of_a_stream(self, nc: NatsClient, name: str) -> None:
        js = nc.jetstream()
        config = StreamConfig(name=name, subjects=[f"{name}.>"], discard=DiscardPolicy.NEW, max_msgs=5)
        info = await js.add_stream(config)
        assert (info.config.name, info.config.max_msgs, info.did_create) == (name, 5, True)
        for i in range(5):
            assert (await js.publish(f"{name}.{i}", b"x")).seq == i + 1
        with pytest.raises(nats.js.errors.ServiceUnavailableError):
            await js.publish(f"{name}.6", b"x")
        updated = await js.update_stream(StreamConfig(name=name, subjects=[f"{name}.>"], max_msgs=3))
        assert updated.state.messages == 3
        assert await js.find_stream_name_by_subject(f"{name}.x") == name
        assert name in [stream.config.name for stream in await js.streams_info()]
        assert await js.delete_msg(name, 4)
        assert await js.purge_stream(name)
        assert (await js.stream_info(name)).state.messages == 0
        assert await js.delete_stream(name)
        with pytest.raises(nats.js.errors.NotFoundError):
            await js.stream_info(name)

    @pytest.mark.parametrize("storage", [StorageType.FILE, StorageType.MEMORY])
    async def test_messages_are_published_and_read_back(
        self, nc: NatsClient, name: str, storage: StorageType
    ) -> None:
        js = nc.jetstream()
        await js.add_stream(
            StreamConfig(name=name, subjects=[f"{name}.*"], storage=storage, allow_direct=True)
        )
        for i in range(4):
            await js.publish(f"{name}.{i % 2}", b"%d" % i, headers={"H": "v"})
        assert (await js.get_msg(name, 2)).data == b"1"
        assert (await js.get_msg(name, 2, direct=True)).headers["H"] == "v"
        assert (await js.get_last_msg(name, f"{name}.0")).data == b"2"
        assert (await js.get_msg(name, subject=f"{name}.1", seq=3, next=True)).data == b"3"
        with pytest.raises(nats.js.errors.NotFoundError):
            await js.get_msg(name, 99)
        await js.delete_stream(name)

    async def test_many_publishes_at_once(self, nc: NatsClient, name: str) -> None:
        js = nc.jetstream()
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.*"]))
        acks = await asyncio.gather(*(js.publish(f"{name}.{i}", b"x") for i in range(500)))
        assert sorted(ack.seq for ack in acks) == list(range(1, 501))
        await js.delete_stream(name)

    async def test_account_info_shows_the_limits(self, nc: NatsClient) -> None:
        info = await nc.jetstream().account_info()
        assert (info.limits.max_streams, info.api.errors >= 0) == (-1, True)


async def test_a_bucket_puts_gets_and_updates_keys(nc: NatsClient, name: str) -> None:
    """Operations without a consumer; watching is tested with consumers."""
    js = nc.jetstream()
    bucket = await js.create_key_value(config=KeyValueConfig(bucket=name, history=5))
    assert await bucket.put("k", b"1") == 1
    assert (await bucket.get("k")).value == b"1"
    assert await bucket.update("k", b"2", last=1) == 2
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await bucket.update("k", b"3", last=1)
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await bucket.create("k", b"3")
    assert await bucket.delete("k")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await bucket.get("k")
    assert await bucket.create("k", b"4") == 4
    assert (await bucket.status()).values == 4
    assert await js.delete_key_value(name)
