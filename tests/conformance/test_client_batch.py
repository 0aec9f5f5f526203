"""Atomic batches with headrace.client: all or nothing, and an error that names the message and the reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from conformance.conftest import Launch
from conformance.servers import OURS, Server, Setup
from headrace.client import JetStream, Message, connect, errors, jetstream
from headrace.testing import HostedServer


@pytest.fixture
def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
def stream(make_stream: Callable[..., dict[str, Any]], name: str) -> str:
    make_stream(allow_atomic=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    return name


async def last_seq(js: JetStream, stream: str) -> int:
    return (await js.stream_info(stream)).state.last_seq


async def streamed(js: JetStream, *messages: Message, **options: Any) -> None:
    """Publish one message after the other, as an application would."""
    async with js.batch(**options) as batch:
        for message in messages:
            await batch.add(message)


class TestCommit:
    async def test_the_end_of_the_block_stores_everything(self, js: JetStream, stream: str) -> None:
        async with js.batch() as batch:
            for number in range(3):
                assert await batch.publish(f"{stream}.{number}", b"%d" % number, {"H": "v"}) == number + 1
            assert await last_seq(js, stream) == 0
        assert batch.ack
        assert (batch.ack.stream, batch.ack.seq, batch.ack.batch, batch.ack.count) == (stream, 3, batch.id, 3)
        stored = [await js.get_msg(stream, seq) for seq in (1, 2, 3)]
        assert [message.data for message in stored] == [b"0", b"1", b"2"]
        assert [message.headers["Nats-Batch-Sequence"] for message in stored] == ["1", "2", "3"]  # type: ignore[index]
        assert [message.headers["H"] for message in stored] == ["v"] * 3  # type: ignore[index]

    async def test_a_batch_of_one_message_is_acked(self, js: JetStream, stream: str) -> None:
        async with js.batch() as batch:
            await batch.publish(f"{stream}.a", b"x")
        assert batch.ack
        assert (batch.ack.seq, batch.ack.count, batch.ack.first_seq) == (1, 1, 1)

    async def test_an_empty_batch_is_nothing(self, js: JetStream, stream: str) -> None:
        async with js.batch() as batch:
            pass
        assert batch.ack is None
        with pytest.raises(ValueError, match="at least one"):
            await js.publish_batch([])

    @pytest.mark.parametrize("ack_every", [1, 7, 1000])
    async def test_as_many_as_a_batch_takes(self, js: JetStream, stream: str, ack_every: int) -> None:
        async with js.batch(ack_every=ack_every) as batch:
            for number in range(1000):
                await batch.publish(f"{stream}.{number % 10}", b"x")
        assert batch.ack
        assert (batch.ack.seq, batch.ack.count) == (1000, 1000)

    async def test_a_list_at_once(self, js: JetStream, stream: str) -> None:
        small = await js.publish_batch([(f"{stream}.{n}", b"x") for n in range(10)])
        large = await js.publish_batch([Message(f"{stream}.{n}", b"x" * 500) for n in range(300)])
        assert (small.first_seq, small.seq, large.first_seq, large.seq) == (1, 10, 11, 310)

    async def test_batches_side_by_side(self, js: JetStream, stream: str) -> None:
        lists = [[(f"{stream}.{who}", b"%d" % n) for n in range(20)] for who in range(10)]
        acks = await asyncio.gather(*(js.publish_batch(messages) for messages in lists))
        assert sorted(ack.first_seq for ack in acks) == list(range(1, 200, 20))

    async def test_publishing_from_several_tasks(self, js: JetStream, stream: str) -> None:
        async with js.batch(ack_every=3) as batch:
            await asyncio.gather(*(batch.publish(f"{stream}.{n}", b"x") for n in range(50)))
        assert batch.ack
        assert batch.ack.count == 50

    async def test_other_writers_may_come_between(self, js: JetStream, stream: str) -> None:
        async with js.batch() as batch:
            await batch.publish(f"{stream}.a", b"x")
            await batch.publish(f"{stream}.a", b"y")
            assert (await js.publish(f"{stream}.other", b"z")).seq == 1
        assert batch.ack
        assert (batch.ack.first_seq, batch.ack.seq) == (2, 3)


class TestAbandon:
    async def test_an_exception_stores_nothing(self, js: JetStream, stream: str) -> None:
        batch = js.batch()

        async def break_off() -> None:
            async with batch:
                for number in range(5):
                    await batch.publish(f"{stream}.{number}", b"x")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await break_off()
        assert await last_seq(js, stream) == 0
        with pytest.raises(errors.BatchClosed):
            await batch.publish(f"{stream}.a", b"x")

    async def test_the_server_gives_the_place_free_at_once(self, js: JetStream, stream: str) -> None:
        """A stream allows 50 open batches; this test starts and abandons more than that, one after the other."""
        for _ in range(60):
            batch = js.batch()
            await batch.publish(f"{stream}.a", b"x")
            await batch.publish(f"{stream}.a", b"x")
            await batch.abandon()
        assert (await js.publish_batch([(f"{stream}.a", b"x")] * 2)).seq == 2

    async def test_a_swallowed_error_does_not_commit_the_rest(self, js: JetStream, stream: str) -> None:
        async def swallow() -> None:
            async with js.batch() as batch:
                await batch.publish(f"{stream}.a", b"x")
                with pytest.raises(ValueError, match="at least one second"):
                    await batch.publish(f"{stream}.a", b"x", ttl=0.1)

        with pytest.raises(errors.BatchClosed, match="nothing was stored"):
            await swallow()
        assert await last_seq(js, stream) == 0

    async def test_committing_by_hand(self, js: JetStream, stream: str) -> None:
        batch = js.batch()
        await batch.publish(f"{stream}.a", b"x")
        ack = await batch.commit()
        assert ack
        assert ack.count == 1
        await batch.abandon()
        with pytest.raises(errors.BatchClosed):
            await batch.commit()

    async def test_too_many_open_batches(self, js: JetStream, stream: str) -> None:
        opened = [js.batch() for _ in range(50)]
        for batch in opened:
            await batch.publish(f"{stream}.a", b"x")
            await batch.publish(f"{stream}.a", b"x")
        with pytest.raises(errors.TooManyBatches) as caught:
            await js.publish_batch([(f"{stream}.a", b"x")] * 3)
        assert caught.value.member == (1, f"{stream}.a")
        await opened[0].commit()
        assert (await js.publish_batch([(f"{stream}.a", b"x")] * 3)).count == 3
        for batch in opened[1:]:
            await batch.abandon()


class TestRejectedBatches:
    """The server has dropped a batch that it rejected; nothing more is sent about it, and there is no advisory."""

    async def first_advisory(self, js: JetStream, stream: str, gone: Any) -> str:
        """Abandon a batch by a gap; return the batch that the first advisory is about."""
        for position in ("1", "5"):
            headers = {"Nats-Batch-Id": "gap", "Nats-Batch-Sequence": position}
            await js.connection.request(f"{stream}.a", b"x", headers=headers, timeout=90)
        found: str = json.loads((await gone.next_msg(timeout=90)).data)["batch"]
        return found

    @pytest.mark.parametrize("large", [False, True])
    async def test_at_its_commit(self, js: JetStream, stream: str, large: bool) -> None:
        gone = await js.connection.subscribe(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}")
        messages = [
            Message(f"{stream}.a", b"x", expect_last_sequence=77),
            Message(f"{stream}.b", b"x" * (200_000 if large else 1)),
        ]
        with pytest.raises(errors.WrongLastSequence):
            await js.publish_batch(messages)
        assert await self.first_advisory(js, stream, gone) == "gap"

    async def test_at_its_first_message(self, js: JetStream, stream: str) -> None:
        gone = await js.connection.subscribe(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}")
        opened = [js.batch() for _ in range(50)]
        for batch in opened:
            await batch.publish(f"{stream}.a", b"x")
            await batch.publish(f"{stream}.a", b"x")
        refused = js.batch()
        await refused.publish(f"{stream}.a", b"x")
        with pytest.raises(errors.TooManyBatches):
            await refused.publish(f"{stream}.a", b"x")
        for batch in [refused, *opened]:
            await batch.abandon()
        assert await self.first_advisory(js, stream, gone) == "gap"


@pytest.mark.slow
class TestInterruptions:
    async def test_a_pause_that_is_too_long(
        self, kind: str, launch: Launch, headrace_factory: Callable[..., HostedServer]
    ) -> None:
        """Headrace waits its 10 s in virtual time; nats-server is configured with a shorter timeout."""
        hosted = headrace_factory(clock="virtual") if kind == OURS else None
        short = 'jetstream { limits { batch { timeout: "1s" } } }'
        async with await connect(hosted.url if hosted else launch(Setup(config=short)).url) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s.>"], allow_atomic=True)
            gone = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")
            batch = js.batch()
            await batch.publish("s.1", b"x")
            await batch.publish("s.2", b"x")
            if hosted:
                await asyncio.to_thread(hosted.advance, "10s")
            advisory = json.loads((await gone.next_msg(timeout=90)).data)
            assert (advisory["batch"], advisory["reason"]) == (batch.id, "timeout")
            with pytest.raises(errors.BatchIncomplete, match="send the whole batch again"):
                await batch.commit()
            assert await last_seq(js, "S") == 0

    @pytest.mark.single_server("A batch survives the restart of a node that does not lead its stream")
    async def test_a_server_that_restarts(self, fresh_server: Server) -> None:
        back = asyncio.Event()

        async def reconnected() -> None:
            back.set()

        async def ignore(_: Exception) -> None:
            """Ignore errors while the server is down."""

        forever = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
        async with await connect(
            fresh_server.url, reconnected_cb=reconnected, error_cb=ignore, **forever
        ) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s.>"], allow_atomic=True)
            batch = js.batch()
            await batch.publish("s.1", b"x")
            await batch.publish("s.2", b"x")
            await asyncio.to_thread(fresh_server.restart, crash=True)
            await asyncio.wait_for(back.wait(), 30)
            with pytest.raises(errors.BatchIncomplete):
                await batch.commit()
            assert await last_seq(js, "S") == 0
            assert (await js.publish_batch([("s.1", b"x"), ("s.2", b"x")])).seq == 2


class TestRefusals:
    async def test_more_than_a_thousand_before_anything_is_sent(self, js: JetStream, stream: str) -> None:
        with pytest.raises(errors.BatchTooLarge, match="1000"):
            await js.publish_batch([(f"{stream}.a", b"x")] * 1001)
        with pytest.raises(errors.BatchTooLarge):
            await streamed(js, *[Message(f"{stream}.a", b"x")] * 1001)
        assert await last_seq(js, stream) == 0

    async def test_a_stream_without_batches(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream()
        with pytest.raises(errors.AtomicDisabled, match="allow_atomic") as caught:
            await streamed(js, Message(f"{name}.a", b"x"), Message(f"{name}.b", b"x"))
        assert caught.value.member == (1, f"{name}.a")
        with pytest.raises(errors.AtomicDisabled):
            await js.publish_batch([(f"{name}.a", b"x")] * 5)
        assert await last_seq(js, name) == 0

    async def test_no_stream_at_all(self, js: JetStream, name: str) -> None:
        with pytest.raises(errors.NoStream, match=name):
            await js.publish_batch([(f"{name}.a", b"x")] * 5)
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await js.publish_batch([(f"{name}.a", b"x")])

    async def test_a_member_of_another_stream(
        self, js: JetStream, stream: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(f"{stream}other")
        with pytest.raises(errors.AtomicDisabled) as caught:
            await js.publish_batch([(f"{stream}.a", b"x"), (f"{stream}other.a", b"x")])
        assert caught.value.member == (2, f"{stream}other.a")
        with pytest.raises(errors.BatchIncomplete):
            await js.publish_batch([(f"{stream}.a", b"x"), (f"{stream}other.a", b"x"), (f"{stream}.a", b"x")])
        assert await last_seq(js, stream) == 0

    async def test_a_wrong_last_sequence(self, js: JetStream, stream: str) -> None:
        first = Message(f"{stream}.a", b"1", expect_last_sequence=0)
        assert (await js.publish_batch([first, (f"{stream}.b", b"2")])).seq == 2
        with pytest.raises(errors.WrongLastSequence) as caught:
            await js.publish_batch([first, (f"{stream}.b", b"2")])
        assert (caught.value.actual, caught.value.member) == (2, (1, f"{stream}.a"))
        assert isinstance(caught.value, nats.js.errors.BadRequestError)
        assert await last_seq(js, stream) == 2

    async def test_a_wrong_subject_sequence_names_its_member(self, js: JetStream, stream: str) -> None:
        await js.publish_batch([(f"{stream}.{n}", b"x") for n in range(3)])
        right = Message(f"{stream}.0", b"y", expect_last_subject_sequence=1)
        wrong = Message(f"{stream}.1", b"y", expect_last_subject_sequence=7)
        with pytest.raises(errors.WrongLastSequence) as caught:
            await js.publish_batch([(f"{stream}.2", b"y"), wrong, (f"{stream}.2", b"y")])
        assert caught.value.member == (2, f"{stream}.1")
        with pytest.raises(errors.WrongLastSequence) as caught:
            await js.publish_batch([right, wrong])
        assert (2, f"{stream}.1") in caught.value.candidates
        assert await last_seq(js, stream) == 3
        other = Message(
            f"{stream}.9", b"y", expect_last_subject_sequence=2, expect_last_subject=f"{stream}.1"
        )
        assert (await js.publish_batch([right, other])).seq == 5

    async def test_a_ttl_where_none_is_allowed(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(allow_atomic=True)
        messages = [Message(f"{name}.a", b"x"), Message(f"{name}.b", b"x", ttl="1h")]
        with pytest.raises(errors.TTLDisabled) as caught:
            await js.publish_batch(messages)
        assert caught.value.member == (2, f"{name}.b")

    async def test_a_ttl_is_stored_with_its_message(self, js: JetStream, stream: str) -> None:
        ack = await js.publish_batch([Message(f"{stream}.a", b"x", ttl=5400)])
        assert (await js.get_msg(stream, ack.seq)).headers["Nats-TTL"] == "1h30m"  # type: ignore[index]

    async def test_a_message_id_twice(self, js: JetStream, stream: str) -> None:
        message = Message(f"{stream}.a", b"x", msg_id="once")
        with pytest.raises(errors.DuplicateInBatch) as caught:
            await js.publish_batch([message, message])
        assert [member.position for member in caught.value.candidates] == [1, 2]
        assert (await js.publish_batch([message])).seq == 1
        with pytest.raises(errors.DuplicateInBatch):
            await js.publish_batch([message])

    async def test_a_message_that_is_too_large(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(allow_atomic=True, max_msg_size=300)
        large = (f"{name}.large", b"x" * 400)
        small = (f"{name}.small", b"x")
        with pytest.raises(errors.MessageTooLarge) as caught:
            await js.publish_batch([small, small, large])
        assert caught.value.member == (3, f"{name}.large")
        with pytest.raises(errors.MessageTooLarge) as caught:
            await streamed(js, *(Message(*each) for each in (small, large, small, small)), ack_every=1)
        assert caught.value.member == (2, f"{name}.large")
        with pytest.raises(errors.BatchIncomplete):
            await js.publish_batch([small, large, small])
        assert await last_seq(js, name) == 0

    async def test_a_full_stream_raises_stream_full(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(allow_atomic=True, max_msgs=3, discard="new")
        await js.publish_batch([(f"{name}.a", b"x")] * 2)
        with pytest.raises(errors.StreamFull):
            await js.publish_batch([(f"{name}.a", b"x")] * 2)
        assert await last_seq(js, name) == 2

    async def test_a_wrong_expected_stream_names_the_member(self, js: JetStream, stream: str) -> None:
        with pytest.raises(errors.StreamMismatch) as caught:
            await streamed(js, Message(f"{stream}.a", stream=stream), Message(f"{stream}.b", stream="other"))
        assert (2, f"{stream}.b") in caught.value.candidates

    async def test_an_older_server_gets_nothing(self, nc: NatsClient, stream: str, name: str) -> None:
        """An older server would store the first message like any other; its API level shows that it is old."""

        async def level_one(message: Msg) -> None:
            limits = dict.fromkeys(
                ["max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"], 0
            )
            limits |= {"memory_max_stream_bytes": 0, "storage_max_stream_bytes": 0, "max_bytes_required": 0}
            counts = {"memory": 0, "storage": 0, "streams": 0, "consumers": 0}
            answer = {**counts, "limits": limits, "api": {"level": 1, "total": 0, "errors": 0}}
            await message.respond(json.dumps(answer).encode())

        await nc.subscribe(f"{name}old.INFO", cb=level_one)
        old = jetstream(nc, prefix=f"{name}old")
        with pytest.raises(errors.LevelTooLow, match="API level 2, the server has 1"):
            await old.publish_batch([(f"{stream}.a", b"x")])
        assert await last_seq(jetstream(nc), stream) == 0

    async def test_a_commit_without_an_answer(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(allow_atomic=True, no_ack=True)
        with pytest.raises(errors.OutcomeUnknown, match="no reply to the commit"):
            await js.publish_batch([(f"{name}.a", b"x")] * 2, timeout=0.3)
        async with asyncio.timeout(20):
            while await last_seq(js, name) < 2:
                await asyncio.sleep(0.01)
        assert await last_seq(js, name) == 2
