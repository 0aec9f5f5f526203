"""`js.consume`: continuous pulls, through reconnects and restarts, with nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from conformance.conftest import Launch
from conformance.servers import Setup
from headrace.client import JetStream, connect, errors, jetstream

LIMIT_S = 30


@pytest.fixture
async def js(nc: NatsClient, name: str) -> AsyncIterator[JetStream]:
    js = jetstream(nc)
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    yield js
    await js.delete_stream(name)


async def publish(js: JetStream, name: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await js.publish(f"{name}.x", b"%d" % number)


async def take(messages: AsyncIterator[Msg], count: int) -> list[int]:
    """Take and acknowledge messages; return their numbers."""
    numbers = []
    async with asyncio.timeout(LIMIT_S):
        async for message in messages:
            numbers.append(int(message.data))
            await message.ack()
            if len(numbers) == count:
                break
    return numbers


async def test_messages_come_in_order_with_more_requests_than_one(js: JetStream, name: str) -> None:
    await publish(js, name, 30)
    async with js.consume(name, "worker", prefetch=4) as messages:
        assert await take(messages, 30) == list(range(30))
        await publish(js, name, 5, 30)
        assert await take(messages, 5) == list(range(30, 35))
    info = await js.consumer_info(name, "worker")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_an_existing_consumer_is_used_as_it_is(js: JetStream, name: str) -> None:
    await js.add_consumer(name, durable_name="worker", ack_policy="explicit", ack_wait=7, max_batch=3)
    await publish(js, name, 10)
    async with js.consume(name, "worker") as messages:
        assert messages.consumer == "worker"
        assert await take(messages, 10) == list(range(10))
    assert (await js.consumer_info(name, "worker")).config.ack_wait == 7


async def test_options_create_or_update_the_consumer(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.a", b"1")
    await js.publish(f"{name}.b", b"2")
    async with js.consume(name, "worker", filter_subject=f"{name}.b", max_ack_pending=5) as messages:
        assert await take(messages, 1) == [2]
    assert (await js.consumer_info(name, "worker")).config.max_ack_pending == 5


async def test_without_a_name_there_is_a_consumer_of_its_own(js: JetStream, name: str) -> None:
    await publish(js, name, 3)
    async with js.consume(name) as first, js.consume(name) as second:
        assert first.consumer != second.consumer
        assert await take(first, 3) == await take(second, 3) == [0, 1, 2]


async def test_what_was_received_and_not_wanted_is_returned_at_once(js: JetStream, name: str) -> None:
    await publish(js, name, 10)
    async with js.consume(name, "worker") as messages:
        assert await take(messages, 4) == [0, 1, 2, 3]
    async with js.consume(name, "worker") as messages:
        assert sorted(await take(messages, 6)) == [4, 5, 6, 7, 8, 9]


async def test_an_exception_returns_the_message_in_hand(js: JetStream, name: str) -> None:
    await publish(js, name, 1)

    async def fail() -> None:
        async with js.consume(name, "worker") as messages:
            async for message in messages:
                assert message.metadata.num_delivered == 1
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with js.consume(name, "worker") as messages, asyncio.timeout(LIMIT_S):
        async for message in messages:
            assert message.metadata.num_delivered == 2
            await message.ack()
            break


async def test_draining_ends_after_what_was_received(js: JetStream, name: str) -> None:
    await publish(js, name, 10)
    seen = []
    async with js.consume(name, "worker", prefetch=10) as messages, asyncio.timeout(LIMIT_S):
        async for message in messages:
            seen.append(int(message.data))
            await message.ack()
            messages.drain()
    assert seen == list(range(len(seen)))
    assert (await js.consumer_info(name, "worker")).ack_floor.stream_seq == len(seen)


async def test_a_slow_handler_gets_no_message_twice(js: JetStream, name: str) -> None:
    await publish(js, name, 3)
    seen = []
    async with js.consume(name, "worker", ack_wait=1.0) as messages, asyncio.timeout(LIMIT_S):
        async for message in messages:
            seen.append((int(message.data), message.metadata.num_delivered))
            await asyncio.sleep(1.5)
            await message.ack()
            if len(seen) == 3:
                break
    assert seen == [(0, 1), (1, 1), (2, 1)]


async def test_handlers_run_concurrently_and_failed_messages_come_again(
    js: JetStream, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(js, name, 20)
    running = highest = 0
    seen: list[tuple[int, int]] = []

    async with js.consume(name, "worker") as messages, asyncio.timeout(LIMIT_S):

        async def handle(message: Msg) -> None:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0.01)
            running -= 1
            number, delivered = int(message.data), message.metadata.num_delivered
            if number == 7 and delivered == 1:
                raise ValueError("not today")
            seen.append((number, delivered))
            if len(seen) == 20:
                messages.drain()

        await messages.process(handle, concurrency=4)
    assert highest == 4
    assert sorted(seen) == sorted([(number, 1) for number in range(20) if number != 7] + [(7, 2)])
    assert "not today" in caplog.text
    assert (await js.consumer_info(name, "worker")).num_ack_pending == 0


async def test_a_consumer_that_is_deleted_ends_the_iteration(js: JetStream, name: str) -> None:
    async with js.consume(name, "worker") as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        while not (await js.consumer_info(name, "worker")).num_waiting:
            await asyncio.sleep(0.01)
        await js.delete_consumer(name, "worker")
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(errors.ConsumerNotFound):
                await waiting


async def test_mistakes_are_refused(js: JetStream, name: str) -> None:
    await js.add_consumer(name, durable_name="push", deliver_subject="somewhere", ack_policy="explicit")
    with pytest.raises(errors.BadRequest, match="push consumer"):
        async with js.consume(name, "push"):
            pass
    with pytest.raises(errors.StreamNotFound):
        async with js.consume("nowhere", "worker"):
            pass
    with pytest.raises(ValueError, match="prefetch"):
        js.consume(name, prefetch=0)
    with pytest.raises(ValueError, match="heartbeat"):
        js.consume(name, heartbeat=20)
    with pytest.raises(RuntimeError, match="async with"):
        await anext(js.consume(name))


@pytest.mark.slow
async def test_a_killed_server_loses_nothing(launch: Launch, name: str) -> None:
    server = launch(Setup())
    nc = await connect(f"nats://127.0.0.1:{server.port}", reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"])
    await publish(js, name, 100)
    seen: set[int] = set()
    async with js.consume(name, "worker", ack_wait=2.0, prefetch=10) as messages, asyncio.timeout(90):
        for _ in range(3):
            seen |= set(await take(messages, 20))
            server.kill()
            await asyncio.to_thread(server.start)
        while seen != set(range(100)):
            seen |= set(await take(messages, 1))
    await nc.close()
