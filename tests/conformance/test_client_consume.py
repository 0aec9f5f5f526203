"""`js.consume`: continuous pulls, through reconnects and restarts, with nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from conformance.conftest import Launch
from conformance.servers import Server, Setup
from headrace.client import ConsumerInfo, DeadLetter, JetStream, connect, errors, jetstream

LIMIT_S = 90


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


async def until_consumer(js: JetStream, name: str, check: Callable[[ConsumerInfo], bool]) -> None:
    """Wait until the consumer's state is as expected: nats-server applies acks with a delay."""
    async with asyncio.timeout(LIMIT_S):
        while not check(await js.consumer_info(name, "worker")):
            await asyncio.sleep(0.02)


async def test_messages_come_in_order_with_more_requests_than_one(js: JetStream, name: str) -> None:
    await publish(js, name, 30)
    async with js.consume(name, "worker", prefetch=4) as messages:
        assert await take(messages, 30) == list(range(30))
        await publish(js, name, 5, 30)
        assert await take(messages, 5) == list(range(30, 35))
    await until_consumer(js, name, lambda info: (info.num_ack_pending, info.num_pending) == (0, 0))


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
    await until_consumer(js, name, lambda info: info.ack_floor.stream_seq == len(seen))


@pytest.mark.slow
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_slow_handler_gets_no_message_twice(js: JetStream, name: str, keep_alive: bool) -> None:
    await publish(js, name, 2)
    async with js.consume(name, "worker", ack_wait=6.0, keep_alive=keep_alive) as messages:
        first = await anext(messages)
        await asyncio.sleep(8)
        await first.ack()
        await (await anext(messages)).ack()
    redelivered = (await js.consumer_info(name, "worker")).delivered.consumer_seq - 2
    assert (redelivered > 0) is not keep_alive


async def test_a_message_that_the_loop_dropped_comes_again(js: JetStream, name: str) -> None:
    await publish(js, name, 2)
    async with js.consume(name, "worker", ack_wait=1.0) as messages, asyncio.timeout(LIMIT_S):
        counts = [(await anext(messages)).metadata.num_delivered]
        while max(counts) < 2:
            counts.append((await anext(messages)).metadata.num_delivered)


async def test_handlers_run_concurrently_and_failed_messages_come_again(
    js: JetStream, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(js, name, 20)
    running = highest = 0
    four = asyncio.Event()  # that many handlers run at a time
    seen: list[tuple[int, int]] = []

    async with js.consume(name, "worker") as messages, asyncio.timeout(LIMIT_S):

        async def handle(message: Msg) -> None:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            if highest < 4:
                await four.wait()
            four.set()
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
    await until_consumer(js, name, lambda info: info.num_ack_pending == 0)


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


async def test_a_closed_connection_ends_the_iteration(js: JetStream, server: Server, name: str) -> None:
    nc = await connect(server.url)
    async with nc.jetstream().consume(name, "worker", heartbeat=0.2) as messages, asyncio.timeout(LIMIT_S):
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await nc.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await waiting


async def test_a_stream_that_is_deleted_ends_the_iteration(js: JetStream, nc: NatsClient) -> None:
    stream = nc.new_inbox().replace(".", "_")
    await js.add_stream(name=stream, subjects=[stream])
    async with js.consume(stream, "worker", heartbeat=0.2) as messages, asyncio.timeout(LIMIT_S):
        waiting = asyncio.ensure_future(anext(messages))
        while not (await js.consumer_info(stream, "worker")).num_waiting:
            await asyncio.sleep(0.01)
        await js.delete_stream(stream)
        with pytest.raises(errors.NotFound):
            await waiting


async def test_a_message_larger_than_a_request_is_an_error(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.x", bytes(5000))
    async with js.consume(name, "worker", max_bytes=1000) as messages, asyncio.timeout(LIMIT_S):
        with pytest.raises(errors.MessageTooLarge, match="max_bytes"):
            await anext(messages)


async def test_a_cancelled_process_returns_its_messages_at_once(js: JetStream, name: str) -> None:
    await publish(js, name, 5)
    started = asyncio.Semaphore(0)

    async def handle(message: Msg) -> None:
        started.release()
        await asyncio.Event().wait()

    async def run() -> None:
        async with js.consume(name, "worker", ack_wait=300) as messages:
            await messages.process(handle, concurrency=2)

    task = asyncio.create_task(run())
    async with asyncio.timeout(LIMIT_S):
        for _ in range(2):
            await started.acquire()
        while (await js.consumer_info(name, "worker")).num_ack_pending < 5:
            await asyncio.sleep(0.01)  # what is on its way returns only after `ack_wait`
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with js.consume(name, "worker") as messages:
            assert sorted(await take(messages, 5)) == [0, 1, 2, 3, 4]


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


async def test_order_per_key_needs_headrace(js: JetStream, name: str, server: Server) -> None:
    """Three workers keep the order of each subject; nats-server refuses it, and the error says why."""
    for number in range(24):
        await js.publish(f"{name}.{number % 4}", b"%d" % number)
    if not server.is_ours:
        with pytest.raises(errors.KeyedUnsupported, match="max_ack_pending_per_subject"):
            async with js.consume(name, "worker", ordered_by_key=True):
                pass
        return
    done: dict[str, list[int]] = {}

    async def work() -> None:
        async with js.consume(name, "worker", ordered_by_key=True) as messages:
            async for message in messages:
                done.setdefault(message.subject, []).append(int(message.data))
                await message.ack()

    workers = [asyncio.create_task(work()) for _ in range(3)]
    async with asyncio.timeout(LIMIT_S):
        while sum(map(len, done.values())) < 24:
            await asyncio.sleep(0.02)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(done.values()) == [list(range(key, 24, 4)) for key in range(4)]


async def test_dead_letters_need_headrace(js: JetStream, name: str, server: Server) -> None:
    letters = f"{name}-dead"
    await js.add_stream(name=letters, subjects=[letters])
    await js.publish(f"{name}.x", b"bad", headers={"Nats-Msg-Id": "1", "Own": "kept"})
    if not server.is_ours:
        with pytest.raises(errors.KeyedUnsupported, match="dead_letter"):
            await js.add_consumer(name, durable_name="worker", dead_letter=letters)
        return
    async with js.consume(name, "worker", dead_letter=DeadLetter(letters, ["term"])) as messages:
        async for message in messages:
            await message.term()
            break
    async with asyncio.timeout(LIMIT_S):
        while not (await js.stream_info(letters)).state.messages:
            await asyncio.sleep(0.02)
    letter = await js.get_msg(letters, 1)
    assert letter.headers is not None
    assert (letter.data, letter.headers["Own"], letter.headers["Nats-DL-Seq"]) == (b"bad", "kept", "1")
    assert letter.headers["Nats-DL-Header-Msg-Id"] == "1"
    assert "Nats-Msg-Id" not in letter.headers
    await js.delete_stream(letters)


class EarlierServer(JetStream):
    """A server that ignores fields which it does not know, as nats-server did before 2.12."""

    async def api_request(
        self, call: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        if body and "config" in body:
            known = {
                key: value for key, value in body["config"].items() if key != "max_ack_pending_per_subject"
            }
            body = {**body, "config": known}
        return await super().api_request(call, body, timeout=timeout)


async def test_a_consumer_without_order_per_key_does_not_stay(js: JetStream, name: str) -> None:
    earlier = EarlierServer(**JetStream.get_options(js))
    with pytest.raises(errors.KeyedUnsupported, match="ignores max_ack_pending_per_subject"):
        await earlier.add_consumer(name, durable_name="new", max_ack_pending_per_subject=1)
    with pytest.raises(errors.ConsumerNotFound):
        await js.consumer_info(name, "new")
