"""Streams and consumers with headrace.client: publishing with options, full configurations, resets, sourcing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.js import api

from conformance.servers import Server
from headrace.client import (
    ConsumerConfig,
    JetStream,
    PriorityPolicy,
    StreamConfig,
    StreamConsumerSource,
    StreamSource,
    connect,
    errors,
    jetstream,
    source_through,
)


@pytest.fixture
def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


async def test_a_connection_of_our_own(server: Server, name: str) -> None:
    async with await connect(server.url) as nc:
        js = nc.jetstream()
        info = await js.add_stream(name=name, subjects=[f"{name}.>"])
        assert (info.config.name, await js.api_level()) == (name, 5)
        assert (await js.publish(f"{name}.a", b"x")).seq == 1
        assert await js.delete_stream(name)


class TestPublish:
    async def test_publish_options_become_headers(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(allow_msg_ttl=True)
        subject = f"{name}.a"
        assert (
            await js.publish(subject, b"1", expect_last_sequence=0, ttl="1h", headers={"H": "v"})
        ).seq == 1
        assert (await js.get_msg(name, 1)).headers == {
            "H": "v",
            "Nats-Expected-Last-Sequence": "0",
            "Nats-TTL": "1h",
        }
        assert (await js.publish(subject, b"2", expect_last_subject_sequence=1, msg_id="x")).seq == 2
        assert (await js.publish(subject, b"2", msg_id="x")).duplicate
        for wrong in ({"expect_last_sequence": 9}, {"expect_last_subject_sequence": 9}):
            with pytest.raises(errors.WrongLastSequence) as caught:
                await js.publish(subject, b"", **wrong)  # type: ignore[arg-type]
            assert caught.value.actual == 2
        with pytest.raises(nats.js.errors.BadRequestError):
            await js.publish(subject, b"", stream="other")
        with pytest.raises(ValueError, match="at least one second"):
            await js.publish(subject, b"", msg_ttl=0.5)

    async def test_errors_have_names(self, js: JetStream, name: str, make_stream: Callable[..., Any]) -> None:
        make_stream(max_msg_size=100)
        with pytest.raises(errors.MessageTooLarge):
            await js.publish(f"{name}.a", b"x" * 200)
        with pytest.raises(errors.TTLDisabled):
            await js.publish(f"{name}.a", b"", ttl=5)
        with pytest.raises(errors.NoStream, match=f"{name}nowhere"):
            await js.publish(f"{name}nowhere", b"")
        with pytest.raises(errors.StreamNotFound):
            await js.delete_stream(f"{name}x")
        with pytest.raises(errors.ConsumerNotFound):
            await js.consumer_info(name, "nobody")


class TestConfigurations:
    async def test_a_stream_there_and_back(self, js: JetStream, name: str) -> None:
        config = StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            allow_msg_ttl=True,
            subject_delete_marker_ttl=60.0,
            allow_atomic=True,
            allow_rollup_hdrs=True,
            allow_direct=True,
            metadata={"a": "b"},
            consumer_limits=api.StreamConsumerLimits(max_ack_pending=10),
        )
        info = await js.add_stream(config)
        assert info.config.subject_delete_marker_ttl == 60
        assert (info.config.allow_atomic, info.config.allow_msg_ttl) == (True, True)
        assert info.config.consumer_limits == api.StreamConsumerLimits(max_ack_pending=10)
        await js.update_stream(config.evolve(allow_atomic=False))
        assert not (await js.stream_info(name)).config.allow_atomic
        assert name in [each.config.name for each in await js.streams_info()]
        await js.delete_stream(name)
        await js.add_stream(StreamConfig(name=name, subjects=[name], persist_mode=api.PersistMode.ASYNC))
        assert (await js.stream_info(name)).config.persist_mode == "async"
        await js.delete_stream(name)

    async def test_a_consumer_there_and_back(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream()
        config = ConsumerConfig(
            durable_name="C",
            max_batch=10,
            max_expires=1.5,
            max_bytes=1024,
            priority_groups=["g"],
            priority_policy=PriorityPolicy.OVERFLOW,
        )
        await js.add_consumer(name, config)
        back = (await js.consumer_info(name, "C")).config
        assert isinstance(back, ConsumerConfig)
        assert (back.max_batch, back.max_expires, back.max_bytes) == (10, 1.5, 1024)
        assert (back.priority_groups, back.priority_policy) == (["g"], "overflow")

    async def test_many_streams_are_listed_page_by_page(self, js: JetStream, name: str) -> None:
        """The server lists 256 at a time."""
        names = [f"{name}p{number}" for number in range(270)]
        for each in names:
            await js.add_stream(name=each, subjects=[each], storage=api.StorageType.MEMORY)
        listed = {info.config.name for info in await js.streams_info()}
        await asyncio.gather(*map(js.delete_stream, names))
        assert set(names) <= listed


class TestReset:
    async def test_back_to_the_ack_floor_and_to_a_sequence(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream()
        for number in range(10):
            await js.publish(f"{name}.{number}", b"x")
        consumer = await js.pull_subscribe(f"{name}.>", durable="P", stream=name)
        messages = await consumer.fetch(5)
        for number in (0, 1, 3):
            await messages[number].ack_sync()
        reset = await js.reset_consumer(name, "P")
        assert (reset.reset_seq, reset.info.num_pending, reset.info.num_ack_pending) == (3, 8, 0)
        assert reset.info.delivered
        assert (reset.info.delivered.consumer_seq, reset.info.delivered.stream_seq) == (0, 2)
        again = (await consumer.fetch(1))[0].metadata
        assert (again.sequence.stream, again.sequence.consumer, again.num_delivered) == (3, 1, 1)
        reset = await js.reset_consumer(name, "P", 8)
        assert (reset.reset_seq, reset.info.num_pending) == (8, 3)
        assert isinstance(reset, api.ConsumerReset)

    async def test_an_invalid_reset_raises_invalid_reset(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream()
        start = {"deliver_policy": api.DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": 5}
        await js.add_consumer(name, ConsumerConfig(durable_name="P", **start))  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidReset, match="below start seq"):
            await js.reset_consumer(name, "P", 4)
        assert (await js.reset_consumer(name, "P", 6)).reset_seq == 6
        with pytest.raises(ValueError, match="start at 1"):
            await js.reset_consumer(name, "P", 0)
        with pytest.raises(errors.ConsumerNotFound):
            await js.reset_consumer(name, "nobody", timeout=0.5)
        with pytest.raises(errors.StreamNotFound):
            await js.reset_consumer(f"{name}x", "P", timeout=0.5)


class TestSourcing:
    async def test_the_consumer_is_made_rightly(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream(retention="workqueue")
        info = await js.create_sourcing_consumer(
            name, "copy", f"{name}deliver", filter_subjects=[f"{name}.a.>"], max_ack_pending=50
        )
        config = info.config
        assert (config.ack_policy, config.flow_control, config.idle_heartbeat) == ("flow_control", True, 1.0)
        assert (config.max_deliver, config.ack_wait, config.max_ack_pending) == (-1, None, 50)
        assert (config.durable_name, config.deliver_subject) == ("copy", f"{name}deliver")
        assert config.filter_subject == f"{name}.a.>"
        again = await js.create_sourcing_consumer(
            name, "copy", f"{name}deliver", filter_subjects=[f"{name}.a.>"], max_ack_pending=60
        )
        assert again.config.max_ack_pending == 60

    async def test_where_it_starts(self, js: JetStream, name: str, make_stream: Callable[..., Any]) -> None:
        make_stream()
        info = await js.create_sourcing_consumer(name, "late", f"{name}deliver", start_seq=7)
        assert (info.config.deliver_policy, info.config.opt_start_seq) == ("by_start_sequence", 7)
        last = api.DeliverPolicy.LAST_PER_SUBJECT
        info = await js.create_sourcing_consumer(name, "last", f"{name}other", deliver_policy=last)
        assert info.config.deliver_policy == "last_per_subject"
        with pytest.raises(ValueError, match="where to start"):
            await js.create_sourcing_consumer(name, "x", "y", start_seq=7, deliver_policy=last)

    async def test_a_stream_that_reads_through_it(
        self, js: JetStream, name: str, make_stream: Callable[..., Any]
    ) -> None:
        make_stream()
        consumer = await js.create_sourcing_consumer(name, "copy", f"{name}deliver")
        copy = f"{name}copy"
        info = await js.add_stream(StreamConfig(name=copy, sources=[source_through(consumer)]))
        assert info.config.sources
        assert info.config.sources[0].consumer == StreamConsumerSource(
            name="copy", deliver_subject=f"{name}deliver"
        )
        await js.delete_stream(copy)

    async def test_server_managed_consumers_are_accepted_by_ours_only(
        self, js: JetStream, name: str, make_stream: Callable[..., Any], server: Server
    ) -> None:
        """Headrace implements the draft; nats-server rejects the unknown field."""
        make_stream()
        source = StreamSource(name=name, consumer=StreamConsumerSource(name="copy", server_managed=True))
        config = StreamConfig(name=f"{name}copy", sources=[source])
        if not server.is_ours:
            with pytest.raises(errors.BadRequest, match="10025"):
                await js.add_stream(config)
            return
        info = await js.add_stream(config)
        assert info.config.sources
        assert info.config.sources[0].consumer == source.consumer
        await js.delete_stream(f"{name}copy")


async def test_a_stream_with_another_configuration_is_named_as_such(js: JetStream, name: str) -> None:
    await js.add_stream(name=f"{name}x", subjects=[f"{name}x"])
    with pytest.raises(errors.StreamExists, match=r"update_stream\(\)") as info:
        await js.add_stream(name=f"{name}x", subjects=[f"{name}x"], max_msgs=5)
    assert not isinstance(info.value, errors.BucketExists)
    await js.delete_stream(f"{name}x")
