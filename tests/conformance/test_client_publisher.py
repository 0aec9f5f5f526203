"""`js.publisher`: many messages in order, with fast-ingest batches and without, through errors and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats.errors
import pytest
from nats.aio.client import Client as NatsClient

from conformance.conftest import Launch
from conformance.servers import Server, Setup
from headrace.client import Client, FailedMessage, JetStream, MessagesNotStored, connect, errors, jetstream

LIMIT_S = 60
FAST = pytest.mark.parametrize("fast", [True, False], ids=["fast ingest", "single messages"])


@pytest.fixture
async def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
async def stream(js: JetStream, name: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A stream; `fast` of the test says whether it accepts fast-ingest batches."""
    fast = request.node.callspec.params.get("fast", True)
    await js.add_stream(name=name, subjects=[f"{name}.>"], allow_batched=fast or None, allow_direct=True)
    yield name
    await js.delete_stream(name)


async def read_numbers(js: JetStream, stream: str) -> list[int]:
    """Return the payloads of the whole stream, in its order."""
    count = (await js.stream_info(stream)).state.messages
    numbers: list[int] = []
    async with js.consume(stream, ack_policy="none") as messages, asyncio.timeout(LIMIT_S):
        while len(numbers) < count:
            numbers.append(int((await anext(messages)).data))
    return numbers


@FAST
async def test_all_messages_are_stored_in_order(js: JetStream, stream: str, fast: bool) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
        assert publisher.uses_fast_ingest is fast
        for number in range(3000):
            await publisher.publish(f"{stream}.x", b"%d" % number)
        await publisher.flush()
        assert (publisher.stored, publisher.pending, publisher.failed) == (3000, 0, 0)
        await publisher.publish_many((f"{stream}.y", b"%d" % number) for number in range(3000, 3010))
    assert publisher.stored == 3010
    assert await read_numbers(js, stream) == list(range(3010))


@FAST
async def test_the_last_messages_are_stored_without_a_flush(js: JetStream, stream: str, fast: bool) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
        for number in range(3):
            await publisher.publish(f"{stream}.x", b"%d" % number)
        while publisher.stored < 3:
            await asyncio.sleep(0.01)


@FAST
async def test_limits_bound_what_is_on_its_way(js: JetStream, stream: str, fast: bool) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream, max_pending=7, max_bytes=1000) as publisher:
        for number in range(50):
            await publisher.publish(f"{stream}.x", b"%d" % number)
            assert publisher.pending <= 7
        for number in range(50, 70):
            await publisher.publish(f"{stream}.x", b"%400d" % number)
            assert publisher.pending <= 7
    assert await read_numbers(js, stream) == list(range(70))


@FAST
async def test_rejected_messages_are_reported_and_the_others_stored_in_order(
    js: JetStream, stream: str, fast: bool
) -> None:
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), js.publisher(stream, on_error=failures.append) as publisher:
        for number in range(1000):
            expected = None if number % 300 else 1_000_000
            await publisher.publish(
                f"{stream}.x", b"%d" % number, msg_id=f"id {number}", expect_last_sequence=expected
            )
    assert [int(failure.message.payload) for failure in failures] == [0, 300, 600, 900]
    assert [failure.message.msg_id for failure in failures] == ["id 0", "id 300", "id 600", "id 900"]
    assert all(isinstance(failure.error, errors.WrongLastSequence) for failure in failures)
    assert await read_numbers(js, stream) == [number for number in range(1000) if number % 300]
    assert (publisher.stored, publisher.failed) == (996, 4)


@FAST
async def test_messages_that_are_too_large_for_the_stream_are_reported(
    js: JetStream, stream: str, fast: bool
) -> None:
    await js.update_stream((await js.stream_info(stream)).config, max_msg_size=1000)
    failures: list[int] = []

    async def on_error(failure: FailedMessage) -> None:
        assert isinstance(failure.error, errors.MessageTooLarge)
        await asyncio.sleep(0)
        failures.append(int(failure.message.payload))

    sizes = [2000 if number in (0, 1, 10, 19) else 10 for number in range(20)]
    async with asyncio.timeout(LIMIT_S), js.publisher(stream, on_error=on_error) as publisher:
        for number, size in enumerate(sizes):
            await publisher.publish(f"{stream}.x", b"%*d" % (size, number))
    assert failures == [0, 1, 10, 19]
    assert await read_numbers(js, stream) == [number for number in range(20) if sizes[number] == 10]


@FAST
async def test_without_a_callback_failures_are_raised(js: JetStream, stream: str, fast: bool) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
        await publisher.publish(f"{stream}.x", b"1", expect_last_sequence=7)
        await publisher.publish(f"{stream}.x", b"2")
        with pytest.raises(
            MessagesNotStored, match=r"1 message was not stored; the first on .*wrong last sequence"
        ) as info:
            await publisher.flush()
        assert [failure.message.payload for failure in info.value.failures] == [b"1"]
        await publisher.flush()  # reported once
    with pytest.raises(MessagesNotStored):
        async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
            await publisher.publish(f"{stream}.x", b"3", expect_last_sequence=7)
    assert await read_numbers(js, stream) == [2]


@FAST
async def test_a_message_for_no_stream_fails_and_the_others_are_stored(
    js: JetStream, stream: str, fast: bool
) -> None:
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), js.publisher(stream, on_error=failures.append) as publisher:
        for number in range(10):
            await publisher.publish(f"{'nowhere' if number in (0, 4, 9) else stream}.x", b"%d" % number)
    assert [int(failure.message.payload) for failure in failures] == [0, 4, 9]
    assert all("no stream stores 'nowhere.x'" in str(failure.error) for failure in failures)
    assert sorted(await read_numbers(js, stream)) == [1, 2, 3, 5, 6, 7, 8]


@FAST
async def test_message_ids_are_stored_once(js: JetStream, stream: str, fast: bool) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
        for number in (0, 1, 0, 2, 1, 3):
            await publisher.publish(f"{stream}.x", b"%d" % number, msg_id=str(number))
    assert publisher.stored == 6
    assert await read_numbers(js, stream) == [0, 1, 2, 3]


async def test_a_stream_that_allows_no_more_batches_gets_single_messages(js: JetStream, stream: str) -> None:
    async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
        for number in range(100):
            await publisher.publish(f"{stream}.x", b"%d" % number, msg_id=str(number))
        await publisher.flush()
        await js.update_stream((await js.stream_info(stream)).config, allow_batched=False)
        for number in range(100, 200):
            await publisher.publish(f"{stream}.x", b"%d" % number, msg_id=str(number))
        await publisher.flush()
        assert not publisher.uses_fast_ingest
    assert await read_numbers(js, stream) == list(range(200))


async def test_several_publishers_share_a_stream(js: JetStream, stream: str) -> None:
    async def publish(first: int) -> None:
        async with js.publisher(stream) as publisher:
            for number in range(first, first + 1000):
                await publisher.publish(f"{stream}.{first}", b"%d" % number)
                if number % 100 == 0:
                    await asyncio.sleep(0)

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(publish(first) for first in (0, 1000, 2000)))
    numbers = await read_numbers(js, stream)
    for first in (0, 1000, 2000):
        assert [each for each in numbers if first <= each < first + 1000] == list(range(first, first + 1000))


async def test_without_a_stream_subjects_of_any_stream_are_published(js: JetStream, stream: str) -> None:
    other = f"{stream}B"
    await js.add_stream(name=other, subjects=[other])
    async with asyncio.timeout(LIMIT_S), js.publisher() as publisher:
        for number in range(10):
            await publisher.publish(other if number % 2 else f"{stream}.x", b"%d" % number)
    assert await read_numbers(js, stream) == [0, 2, 4, 6, 8]
    assert await read_numbers(js, other) == [1, 3, 5, 7, 9]
    await js.delete_stream(other)


@FAST
async def test_an_exception_in_the_context_still_stores_what_was_accepted(
    js: JetStream, stream: str, fast: bool
) -> None:
    async def publish_and_fail() -> None:
        async with asyncio.timeout(LIMIT_S), js.publisher(stream) as publisher:
            for number in range(10):
                await publisher.publish(f"{stream}.x", b"%d" % number)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await publish_and_fail()
    assert await read_numbers(js, stream) == list(range(10))


async def test_mistakes_are_refused(js: JetStream, stream: str) -> None:
    with pytest.raises(errors.StreamNotFound):
        async with js.publisher("nowhere"):
            pass
    with pytest.raises(ValueError, match="max_pending"):
        js.publisher(stream, max_pending=0)
    with pytest.raises(RuntimeError, match="async with"):
        await js.publisher(stream).publish(f"{stream}.x")
    async with js.publisher(stream) as publisher:
        with pytest.raises(nats.errors.BadSubjectError, match="white space"):
            await publisher.publish(f"{stream}.x 5\r\nPING")
        with pytest.raises(nats.errors.BadHeaderError):
            await publisher.publish(f"{stream}.x", b"", {"a b": "c"})
        with pytest.raises(nats.errors.MaxPayloadError):
            await publisher.publish(f"{stream}.x", bytes(2 * 1024 * 1024))
        with pytest.raises(TypeError, match="msgid"):
            await publisher.publish(f"{stream}.x", msgid="typo")  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="closed"):
        await publisher.publish(f"{stream}.x")
    with pytest.raises(RuntimeError, match="once"):
        await publisher.__aenter__()


@FAST
async def test_a_closed_connection_fails_what_was_not_stored(
    js: JetStream, server: Server, stream: str, fast: bool
) -> None:
    nc = await connect(server.url)
    failures: list[FailedMessage] = []
    publisher = nc.jetstream().publisher(stream, on_error=failures.append)
    async with asyncio.timeout(LIMIT_S), publisher:
        await publisher.publish(f"{stream}.x", b"0")
        await nc.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await publisher.publish(f"{stream}.x", b"1")
    assert [type(failure.error) for failure in failures] == [nats.errors.ConnectionClosedError]


def cut(nc: NatsClient) -> None:
    """Break the connection as a network does."""
    nc._transport._io_writer.transport.abort()  # type: ignore[union-attr]


@FAST
async def test_a_broken_connection_loses_nothing(
    js: JetStream, server: Server, stream: str, fast: bool
) -> None:
    """A fast-ingest batch is continued where it was, so there are no duplicates even without ids.

    This holds unless the reply to the end of a batch is lost: the connection is not broken while one is expected.
    """
    nc = await connect(server.url, reconnect_time_wait=0.01, error_cb=ignore_error)
    number = 0
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(stream) as publisher:
        for reconnects in range(1, 6):
            cut_at, is_cut = number + 300, False
            while nc.stats["reconnects"] < reconnects or not nc.is_connected or number < cut_at + 300:
                msg_id = None if fast else str(number)
                await publisher.publish(f"{stream}.x", b"%d" % number, msg_id=msg_id)
                if number >= cut_at and not is_cut and not publisher._sender.is_paused:
                    cut(nc)
                    is_cut, cut_at = True, number
                number += 1
                await asyncio.sleep(0)  # messages are also accepted at the moment of the reconnect
    await nc.close()
    assert await read_numbers(js, stream) == list(range(number))


async def test_a_lost_reply_to_the_end_of_a_batch_loses_nothing(
    js: JetStream, server: Server, stream: str
) -> None:
    """Without ids messages may then be stored twice, as documented: the server does not know the batch any more."""
    nc = await connect(server.url, reconnect_time_wait=0.01, error_cb=ignore_error)
    number = 0
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(stream) as publisher:
        for reconnects in range(1, 4):
            for _ in range(50):
                await publisher.publish(f"{stream}.x", b"%d" % number)
                number += 1
            flushed = asyncio.ensure_future(publisher.flush())
            while not (publisher._sender.is_paused or flushed.done()):
                await asyncio.sleep(0)
            cut(nc)
            await flushed
            while nc.stats["reconnects"] < reconnects or not nc.is_connected:
                await asyncio.sleep(0.001)
    await nc.close()
    assert list(dict.fromkeys(await read_numbers(js, stream))) == list(range(number))


async def ignore_error(error: Exception) -> None:
    """Connections break in these tests."""


async def connect_again_and_again(server: Server) -> Client:
    return await connect(
        server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1, error_cb=ignore_error
    )


@pytest.mark.slow
@FAST
@pytest.mark.single_server("Without a leader, publishes get no responders")
async def test_a_killed_server_loses_nothing(launch: Launch, name: str, fast: bool) -> None:
    server = launch(Setup())
    nc = await connect_again_and_again(server)
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[name], allow_batched=fast or None)
    number = 0
    async with asyncio.timeout(90), js.publisher(name, max_pending=300) as publisher:

        async def publish_until(restarted: asyncio.Task[None]) -> None:
            nonlocal number
            while not restarted.done():
                await publisher.publish(name, b"%d" % number, msg_id=str(number))
                number += 1

        for _ in range(3):
            await publish_until(asyncio.create_task(asyncio.sleep(0.3)))
            server.kill()
            await publish_until(asyncio.create_task(asyncio.to_thread(server.start)))
    assert publisher.stored == number > 600
    assert await read_numbers(js, name) == list(range(number))
    await nc.close()


USERS = """
authorization {
  users: [
    {user: all, password: x}
    {user: some, password: x, permissions: {publish: {deny: "S.denied"}}}
  ]
}
"""


@FAST
async def test_a_user_without_permission_gets_an_error(launch: Launch, fast: bool) -> None:
    server = launch(Setup(config=USERS))
    async with (
        await connect(server.url, user="all", password="x") as admin,
        await connect(server.url, user="some", password="x", error_cb=ignore_error) as nc,
    ):
        await admin.jetstream().add_stream(name="S", subjects=["S.>"], allow_batched=fast or None)
        failures: list[FailedMessage] = []
        async with (
            asyncio.timeout(LIMIT_S),
            nc.jetstream().publisher("S", timeout=5.0, on_error=failures.append) as publisher,
        ):
            for number in range(10):
                await publisher.publish("S.denied" if number == 5 else "S.x", b"%d" % number)
        assert [int(failure.message.payload) for failure in failures] == [5]
        assert isinstance(failures[0].error, errors.NoAnswer)
        assert "permissions" in str(failures[0].error)
        assert await read_numbers(admin.jetstream(), "S") == [0, 1, 2, 3, 4, 6, 7, 8, 9]
