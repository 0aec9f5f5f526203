"""Consumers through an unmodified nats-py: fetch, push, queue, ordered, watch; and a lost connection."""

from __future__ import annotations

import asyncio
import time

import nats
from nats.aio.client import Client as NatsClient
from nats.errors import TimeoutError as FetchTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from conformance.servers import Server


async def filled(nc: NatsClient, name: str, count: int) -> JetStreamContext:
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    await asyncio.gather(*(js.publish(f"{name}.{i % 3}", b"%d" % i) for i in range(count)))
    return js


class TestPull:
    async def test_fetch_and_acknowledge(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 30)
        sub = await js.pull_subscribe(f"{name}.>", "D")
        seen: list[int] = []
        while len(seen) < 30:
            for message in await sub.fetch(7, timeout=60):
                seen.append(message.metadata.sequence.stream)
                await message.ack_sync(timeout=60)
        assert seen == list(range(1, 31))
        info = await sub.consumer_info()
        assert (info.num_pending, info.num_ack_pending, info.ack_floor.stream_seq) == (0, 0, 30)

    async def test_fetch_waits_and_gives_up(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 0)
        sub = await js.pull_subscribe(f"{name}.>", "D")
        try:
            await sub.fetch(1, timeout=0.3)
        except FetchTimeout:
            pass
        else:
            raise AssertionError("nothing was there to fetch")
        asyncio.get_running_loop().call_later(
            0.1, lambda: asyncio.ensure_future(js.publish(f"{name}.x", b"late"))
        )
        assert (await sub.fetch(1, timeout=60))[0].data == b"late"

    async def test_refuse_postpone_terminate(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 3)
        sub = await js.pull_subscribe(f"{name}.>", "D")
        one, two, three = await sub.fetch(3, timeout=60)
        await one.nak()
        await two.in_progress()
        await three.term()
        (again,) = await sub.fetch(1, timeout=60)
        assert (again.metadata.sequence.stream, again.metadata.num_delivered) == (1, 2)


class TestPush:
    async def test_a_durable_push_subscription_delivers_and_acks(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 30)
        sub = await js.subscribe(f"{name}.1", durable="P")
        messages = [await sub.next_msg(timeout=60) for _ in range(10)]
        for message in messages:
            await message.ack()
        assert [message.metadata.sequence.stream for message in messages] == list(range(2, 31, 3))
        await js.publish(f"{name}.1", b"new")
        assert (await sub.next_msg(timeout=60)).data == b"new"

    async def test_a_queue_group_shares_messages(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 30)
        got: list[int] = []
        done = asyncio.Event()

        async def take(message: nats.aio.msg.Msg) -> None:
            got.append(message.metadata.sequence.stream)
            if len(got) == 30:
                done.set()

        for _ in range(3):
            await js.subscribe(f"{name}.>", queue="workers", cb=take)
        await asyncio.wait_for(done.wait(), 30)
        assert sorted(got) == list(range(1, 31))

    async def test_an_ordered_consumer_delivers_in_order(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 200)
        sub = await js.subscribe(f"{name}.>", ordered_consumer=True)
        assert [(await sub.next_msg(timeout=60)).metadata.sequence.stream for _ in range(200)] == list(
            range(1, 201)
        )

    async def test_start_and_headers_only(self, nc: NatsClient, name: str) -> None:
        js = await filled(nc, name, 10)
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=8,
            headers_only=True,
            ack_policy=AckPolicy.NONE,
        )
        sub = await js.subscribe(f"{name}.>", config=config)
        message = await sub.next_msg(timeout=60)
        assert (message.metadata.sequence.stream, message.data, message.headers) == (
            8,
            b"",
            {"Nats-Msg-Size": "1"},
        )


async def test_watch_a_bucket(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    bucket = await js.create_key_value(bucket=name, history=3)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        await bucket.put(key, value)
    assert sorted(await bucket.keys()) == ["a", "b"]
    assert [entry.value for entry in await bucket.history("a")] == [b"1", b"3"]
    watcher = await bucket.watchall()
    initial = [await watcher.updates(timeout=60) for _ in range(3)]
    assert [(entry.key, entry.value) if entry else None for entry in initial] == [
        ("b", b"2"),
        ("a", b"3"),
        None,
    ]
    await bucket.put("c", b"4")
    entry = await watcher.updates(timeout=60)
    assert (entry.key, entry.value) == ("c", b"4")


async def test_a_broken_connection_loses_nothing(fresh_server: Server, name: str) -> None:
    """The server is killed while messages are in flight; the client reconnects by itself and gets the rest."""
    nc = await nats.connect(
        fresh_server.url, connect_timeout=60, reconnect_time_wait=0.1, max_reconnect_attempts=-1
    )
    js = await filled(nc, name, 100)
    sub = await js.pull_subscribe(f"{name}.>", "D", config=ConsumerConfig(ack_wait=1))
    confirmed: set[int] = set()
    started = time.time()
    for message in await sub.fetch(40, timeout=60):
        if message.metadata.sequence.stream % 2:
            await message.ack_sync(timeout=60)
            confirmed.add(message.metadata.sequence.stream)
    await asyncio.to_thread(fresh_server.written_since, started, name, "D")
    fresh_server.restart(crash=True)
    seen: set[int] = set()
    while seen | confirmed != set(range(1, 101)):
        try:
            messages = await sub.fetch(50, timeout=1)
        except (FetchTimeout, nats.errors.Error):
            continue
        for message in messages:
            seen.add(message.metadata.sequence.stream)
            await message.ack_sync(timeout=60)
    assert not seen & confirmed
    await nc.close()


async def test_an_ordered_consumer_survives_a_reset_from_outside(nc: NatsClient, name: str) -> None:
    js = await filled(nc, name, 10)
    sub = await js.subscribe(f"{name}.>", ordered_consumer=True, idle_heartbeat=1)
    seen = [(await sub.next_msg(timeout=60)).metadata.sequence.stream for _ in range(10)]
    info = await sub.consumer_info()
    answer = await nc.request(f"$JS.API.CONSUMER.RESET.{name}.{info.name}", b'{"seq":3}', timeout=60)
    assert b'"reset_seq":3' in answer.data
    await js.publish(f"{name}.0", b"new")
    while seen[-1] < 11:
        seen.append((await sub.next_msg(timeout=60)).metadata.sequence.stream)
    assert seen == list(range(1, 12))
