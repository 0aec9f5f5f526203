"""`js.publisher` with servers that are slow, silent or stop reading: it never hangs, and reports what has failed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import pytest
from nats.js.api import Header

from headrace.client import (
    Client,
    FailedMessage,
    MessagesNotStored,
    codecs,
    connect,
    errors,
    fast_ingest,
    publish_retry,
)
from headrace.client.publish_sender import SingleSender
from support.scripted_server import ACK, NO_RESPONDERS, Published, ScriptedServer

LIMIT_S = 90
LARGE = bytes(900_000)
IN_PROCESS = b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}'
DUPLICATE = b'{"stream":"S","seq":1,"duplicate":true}'
REFUSED = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
UNKNOWN_BATCH = b'{"error":{"code":400,"err_code":10208,"description":"unknown batch id"}}'
WRONG_SEQUENCE = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}'


def encode_stream_info(name: str, **config: Any) -> bytes:
    info = {
        "type": "io.nats.jetstream.api.v1.stream_info_response",
        "config": {"name": name, "subjects": [name.lower()], "retention": "limits", **config},
        "created": "2026-01-01T00:00:00Z",
        "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
    }
    return json.dumps(info).encode()


SINGLE_STREAM = encode_stream_info("S")
FAST_STREAM = encode_stream_info("F", allow_batched=True)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer().serve() as serving:
        yield serving


async def ignore_error(error: Exception) -> None:
    """Connections break in these tests."""


@pytest.fixture
async def nc(server: ScriptedServer) -> AsyncIterator[Client]:
    connected = await connect(server.url, error_cb=ignore_error, reconnect_time_wait=0.01)
    yield connected
    await connected.close()


def stay_silent(message: Published) -> None:
    """Send no reply."""


def get_payloads(server: ScriptedServer, subject: str) -> list[bytes]:
    return [each.payload for each in server.published if each.subject == subject]


class TextCodec:
    """A mistake: its payloads are not bytes."""

    content_type = "text/plain"

    def encode(self, value: Any) -> Any:
        return str(value)

    def decode(self, data: bytes) -> Any:
        return {}["nothing"]


async def test_what_cannot_be_written_is_refused(nc: Client) -> None:
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(codec=TextCodec()) as publisher:
        with pytest.raises(TypeError, match="encodes to str, not bytes"):
            await publisher.publish("a", 1)
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        with pytest.raises(errors.InvalidSubject, match="Unicode"):
            await publisher.publish("caf\udce9", b"1")
        await publisher.publish("café", b"2")
    assert publisher.stored == 1


async def test_an_error_of_the_writer_fails_everything(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(*args: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(SingleSender, "encode", encode)
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        await publisher.publish("a", b"1")
        with pytest.raises(MessagesNotStored, match="ZeroDivisionError"):
            await publisher.flush()
        assert not publisher.is_open
        with pytest.raises(ZeroDivisionError):
            await publisher.publish("a", b"2")


async def test_an_exception_ends_the_context_while_the_server_reads_nothing(
    server: ScriptedServer, nc: Client
) -> None:
    async def publish_and_fail() -> None:
        async with nc.jetstream().publisher(timeout=0.2, max_bytes=10**9) as publisher:
            for _ in range(30):
                await publisher.publish("a", LARGE)
            raise ZeroDivisionError

    with server.stalled():
        task = asyncio.create_task(publish_and_fail())
        done, _ = await asyncio.wait([task], timeout=LIMIT_S)
        assert done
    with pytest.raises(ZeroDivisionError):
        await task


async def test_the_timeout_applies_while_the_server_reads_nothing(server: ScriptedServer, nc: Client) -> None:
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(timeout=0.2, on_error=failures.append) as p:
        with server.stalled():
            for _ in range(40):  # more than the limit on bytes, so some must fail before others are accepted
                await p.publish("a", LARGE)
    assert failures
    assert all(isinstance(failure.error, errors.NoAnswer) for failure in failures)


def refuse_batches(message: Published) -> None:
    if message.subject.startswith("$JS.API"):
        message.respond(FAST_STREAM)
    elif message.reply.endswith(".1.0.$FI"):  # the first message of a batch
        message.respond(b"", NO_RESPONDERS)


async def test_messages_of_a_deleted_stream_fail_together(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    server.on_publish = refuse_batches
    failures: list[FailedMessage] = []
    options: Any = {"retry_for": 0.3, "on_error": failures.append}
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher("F", **options) as publisher:
        assert publisher.uses_fast_ingest
        await publisher.publish_many([("f", b"1"), ("f", b"2"), ("f", b"3")])
    assert [failure.message.payload for failure in failures] == [b"1", b"2", b"3"]
    starts = [each.payload for each in server.published if each.reply.endswith(".1.0.$FI")]
    assert starts.count(b"1") > 1
    assert (starts.count(b"2"), starts.count(b"3")) == (1, 1)


async def test_a_repeated_id_waits_until_the_first_message_is_replicated(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster refuses a message whose id belongs to one that not enough nodes have yet."""
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    replies = iter([ACK, IN_PROCESS, IN_PROCESS, DUPLICATE])
    server.on_publish = lambda message: message.respond(next(replies))
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        for _ in range(2):
            await publisher.publish("a", b"1", msg_id="1")
    assert (publisher.stored, len(server.published)) == (2, 4)


async def test_only_refused_messages_are_sent_again(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    waiting: list[Published] = []

    def on_publish(message: Published) -> None:
        if message.subject == "nowhere":
            message.respond(b"", NO_RESPONDERS)
        else:
            waiting.append(message)

    def on_error(failure: FailedMessage) -> None:
        assert failure.message.subject == "nowhere"
        for message in waiting:
            message.respond()

    server.on_publish = on_publish
    async with (
        asyncio.timeout(LIMIT_S),
        nc.jetstream().publisher(retry_for=0.2, on_error=on_error) as publisher,
    ):
        await publisher.publish("nowhere", b"x")
        await publisher.publish_many(("slow", b"%d" % number) for number in range(20))
    assert len(get_payloads(server, "nowhere")) > 1
    assert get_payloads(server, "slow") == [b"%d" % number for number in range(20)]
    assert (publisher.stored, publisher.failed) == (20, 1)


class PausedStream:
    """Refuses messages until it opens, and stores them in order from then on."""

    def __init__(self, refusals: int) -> None:
        self.stored: list[bytes] = []
        self._refusals = refusals

    def on_publish(self, message: Published) -> None:
        if self._refusals > 0:
            self._refusals -= 1
            message.respond(b"", NO_RESPONDERS)
        else:
            self.stored.append(message.payload)
            message.respond()


@pytest.mark.parametrize("stream", ["S", None])
@pytest.mark.parametrize("refusals", [1, 7, 100, 103])
async def test_refused_messages_keep_their_order_when_the_stream_is_back(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch, stream: str | None, refusals: int
) -> None:
    """A hundred messages are in flight when the stream closes; others are accepted meanwhile."""
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    paused = PausedStream(refusals)
    server.on_publish = lambda message: message.respond(SINGLE_STREAM) if "API" in message.subject else None
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(stream) as publisher:
        server.on_publish = paused.on_publish
        await publisher.publish_many(("s", b"%d" % number) for number in range(100))
        await asyncio.sleep(0.05)
        await publisher.publish_many(("s", b"%d" % number) for number in range(100, 200))
    # Messages in flight while the stream opens are stored before those that were refused a moment ago.
    in_flight = paused.stored[: 100 - refusals] if refusals < 100 else []
    assert sorted(paused.stored, key=int) == [b"%d" % number for number in range(200)]
    rest = paused.stored[len(in_flight) :]
    assert rest == sorted(rest, key=int)
    assert (publisher.stored, publisher.failed) == (200, 0)


async def test_after_a_refusal_one_message_is_sent_alone(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the moment in which a stream opens is never between two messages on their way."""
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    paused = PausedStream(50 + 10)
    server.on_publish = paused.on_publish
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        await publisher.publish_many(("s", b"%d" % number) for number in range(50))
    sent = get_payloads(server, "s")
    assert sent[50:61] == [b"0"] * 11
    assert paused.stored == sent[60:] == [b"%d" % number for number in range(50)]


async def test_other_subjects_do_not_wait_for_one_without_a_stream(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    server.on_publish = lambda message: (
        message.respond(b"", NO_RESPONDERS) if message.subject == "nowhere" else message.respond()
    )
    failures: list[FailedMessage] = []
    options: Any = {"retry_for": 2, "on_error": failures.append}
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(**options) as publisher:
        await publisher.publish("nowhere", b"x")
        for number in range(20):
            await publisher.publish("a", b"%d" % number)
            await publisher.publish("nowhere", b"%d" % number)
        while publisher.stored < 20:
            await asyncio.sleep(0.01)
        assert not failures
    assert get_payloads(server, "a") == [b"%d" % number for number in range(20)]
    assert len(failures) == 21


async def test_messages_are_refused_for_as_long_as_the_timeout(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    server.on_publish = lambda message: message.respond(b"", NO_RESPONDERS)
    failures: list[FailedMessage] = []
    started_s = time.monotonic()
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(timeout=0.3, on_error=failures.append) as p:
        await p.publish_many(("s", b"%d" % number) for number in range(300))
    assert time.monotonic() - started_s >= 0.3
    assert [int(failure.message.payload) for failure in failures] == list(range(300))
    assert all(isinstance(failure.error, errors.NoStream) for failure in failures)
    failures.clear()
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(retry_for=0, on_error=failures.append) as p:
        await p.publish("s", b"once")
    assert get_payloads(server, "s").count(b"once") == len(failures) == 1
    with pytest.raises(ValueError, match="retry_for=-1 is negative"):
        nc.jetstream().publisher(retry_for=-1)


async def test_a_reconnect_while_messages_wait_keeps_their_order(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    paused = PausedStream(30 + 5)

    def on_publish(message: Published) -> None:
        if len(server.published) == 32:
            server.cut()
        else:
            paused.on_publish(message)

    server.on_publish = on_publish
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        await publisher.publish_many(("s", b"%d" % number) for number in range(30))
    assert paused.stored == [b"%d" % number for number in range(30)]


class MovingStream:
    """A stream with fast ingest that closes after some messages, and opens elsewhere with what it has.

    Its last batch is known at the reserved subject only, and to nobody if `is_permitted` is False.
    """

    def __init__(self, closes_after: int, *, is_permitted: bool) -> None:
        self.stored: list[bytes] = []
        self._closes_after, self._is_permitted = closes_after, is_permitted
        self._batch, self._batch_count, self._refusals = "", 0, 0

    @property
    def _is_closed(self) -> bool:
        return len(self.stored) >= self._closes_after and self._refusals < 40

    def on_publish(self, message: Published) -> None:
        if message.subject.startswith("$JS.API"):
            message.respond(FAST_STREAM)
        elif message.subject == "$HEADRACE.closed.F":
            if self._is_permitted:
                message.respond(b'{"stream":"F","seq":1,"batch":"b","count":%d}' % self._batch_count)
        elif self._is_closed:
            self._refusals += 1
            message.respond(b"", NO_RESPONDERS)
        elif message.reply.endswith(".$FI"):
            self._on_member(message)
        else:
            self.stored.append(message.payload)
            message.respond()

    def _on_member(self, message: Published) -> None:
        batch, _, _, position, operation = message.reply.split(".")[-6:-1]
        if operation == "0":
            self._batch = batch
            message.respond(b'{"type":"ack","seq":0,"msgs":500}')
        if batch != self._batch:
            message.respond(UNKNOWN_BATCH)
        elif operation == "3":
            message.respond(b'{"stream":"F","seq":1,"batch":"b","count":%d}' % self._batch_count)
        else:
            self._batch_count = int(position)
            self.stored.append(message.payload)


@pytest.mark.parametrize("accepted", [30, 60])
async def test_a_batch_of_a_stream_that_moves_is_not_stored_again(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch, accepted: int
) -> None:
    """The server stored 30 messages of a batch and acknowledged none when the stream closed."""
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    moving = MovingStream(30, is_permitted=True)
    server.on_publish = moving.on_publish
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher("F") as publisher:
        await publisher.publish_many(("f", b"%d" % number) for number in range(accepted))
    assert moving.stored == [b"%d" % number for number in range(accepted)]
    assert (publisher.stored, publisher.failed) == (accepted, 0)


async def test_without_the_permission_a_moving_stream_is_not_waited_for(
    server: ScriptedServer, nc: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_retry, "RETRY_PAUSE_S", 0.02)
    monkeypatch.setattr(fast_ingest, "_MOVING_WAIT_S", 0.1)
    moving = MovingStream(30, is_permitted=False)
    server.on_publish = moving.on_publish
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher("F") as publisher:
        await publisher.publish_many(("f", b"%d" % number) for number in range(60))
    assert publisher.failed == 0
    assert set(moving.stored) >= {b"%d" % number for number in range(60)}


async def test_a_lost_reply_to_the_end_of_a_batch_is_not_waited_for(
    server: ScriptedServer, nc: Client
) -> None:
    def on_publish(message: Published) -> None:
        if message.subject.startswith("$JS.API"):
            message.respond(FAST_STREAM)
            return
        position, operation = message.reply.split(".")[-3:-1]
        if operation != "3":
            message.respond(json.dumps({"type": "ack", "seq": int(position), "msgs": 1}).encode())

    server.on_publish = on_publish
    async with (
        asyncio.timeout(LIMIT_S),
        nc.jetstream().publisher("F", timeout=0.2, max_pending=2) as publisher,
    ):
        for _ in range(3):
            await publisher.publish("f", b"1")
            await publisher.flush()
            while not any(each.reply.endswith(".3.$FI") for each in server.published):
                await asyncio.sleep(0.01)
    assert (publisher.stored, publisher.failed) == (3, 0)


async def test_names_of_headers_may_be_an_enumeration(server: ScriptedServer, nc: Client) -> None:
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        await publisher.publish("a", b"1", {Header.MSG_ID: "one"})
    assert server.published[-1].header == b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"


async def test_a_busy_program_fails_no_message(server: ScriptedServer, nc: Client) -> None:
    def on_publish(message: Published) -> None:
        time.sleep(0.6)
        message.respond()

    server.on_publish = on_publish
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(timeout=0.4) as publisher:
        await publisher.publish("a", b"1")
    assert publisher.stored == 1


async def test_a_message_without_reply_fails_while_others_are_stored(
    server: ScriptedServer, nc: Client
) -> None:
    server.on_publish = lambda message: None if message.subject == "denied" else message.respond()
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(timeout=0.3, on_error=failures.append) as p:
        await p.publish("denied", b"1")
        while not failures:
            await p.publish("a", b"2")
            await asyncio.sleep(0.01)
    assert [failure.message.subject for failure in failures] == ["denied"]


async def test_failures_are_logged_when_the_exit_is_cancelled(
    server: ScriptedServer, nc: Client, caplog: pytest.LogCaptureFixture
) -> None:
    sent = asyncio.Event()
    server.on_publish = lambda message: sent.set()

    async def publish() -> None:
        async with nc.jetstream().publisher(timeout=LIMIT_S) as publisher:
            await publisher.publish("a", b"1")

    task = asyncio.create_task(publish())
    await sent.wait()
    task.cancel()
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        await task
    assert "not stored: a message on a" in caplog.text


async def test_messages_that_are_added_after_the_connection_closed_fail(nc: Client) -> None:
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(on_error=failures.append) as publisher:
        record = publisher.make_record("a", b"1")
        await nc.close()
        publisher.add_nowait(record)
    assert [type(failure.error) for failure in failures] == [nats.errors.ConnectionClosedError]


async def test_a_message_that_is_added_after_the_end_is_logged(
    nc: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher() as publisher:
        record = publisher.make_record("a", b"1")
    publisher.add_nowait(record)
    assert publisher.pending == 0
    assert "not stored: a message on a: the publisher was closed" in caplog.text


async def test_a_client_that_connects_again_still_notifies_publishers(server: ScriptedServer) -> None:
    nc = Client()
    closed: list[int] = []

    async def on_close() -> None:
        closed.append(1)

    for _ in range(2):
        await nc.connect(server.url, error_cb=ignore_error, closed_cb=on_close)
        failures: list[FailedMessage] = []
        server.on_publish = stay_silent
        async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(on_error=failures.append) as publisher:
            await publisher.publish("a", b"1")
            await nc.close()
            assert publisher.pending == 0
        assert [type(failure.error) for failure in failures] == [nats.errors.ConnectionClosedError]
    assert closed == [1, 1]


@pytest.mark.parametrize(("msg_id", "kind"), [(None, errors.NoAnswer), ("one", errors.WrongLastSequence)])
async def test_an_expectation_that_the_first_copy_broke_has_an_unknown_outcome(
    server: ScriptedServer, nc: Client, msg_id: str | None, kind: type[Exception]
) -> None:
    def on_publish(message: Published) -> None:
        if len(get_payloads(server, "a")) == 1:
            server.cut()
        else:
            message.respond(WRONG_SEQUENCE)

    server.on_publish = on_publish
    failures: list[FailedMessage] = []
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(on_error=failures.append) as publisher:
        await publisher.publish("a", b"1", expect_last_subject_sequence=0, msg_id=msg_id)
    assert [type(failure.error) for failure in failures] == [kind]


async def test_a_failed_message_is_encoded_once(server: ScriptedServer, nc: Client) -> None:
    replies = [REFUSED, ACK]
    server.on_publish = lambda message: message.respond(replies.pop(0))
    failures: list[FailedMessage] = []
    publisher = nc.jetstream().publisher(on_error=failures.append, codec=codecs.json())
    async with asyncio.timeout(LIMIT_S), publisher:
        await publisher.publish("a", {"pear": 3})
        await publisher.flush()
        await publisher.publish_many([failure.message for failure in failures])
    assert get_payloads(server, "a") == [b'{"pear":3}'] * 2
    assert server.published[-1].header == server.published[-2].header


async def test_a_content_type_is_sent_once(server: ScriptedServer, nc: Client) -> None:
    async with asyncio.timeout(LIMIT_S), nc.jetstream().publisher(codec=codecs.json()) as publisher:
        await publisher.publish("a", 1, {"content-type": "application/vnd.pear+json"})
    assert server.published[-1].header == b"NATS/1.0\r\ncontent-type: application/vnd.pear+json\r\n\r\n"


def test_any_error_of_a_codec_means_that_a_payload_does_not_decode() -> None:
    for codec, data in ((TextCodec(), b"1"), (codecs.json(), b"[" * 100_000)):
        with pytest.raises(errors.DecodeFailed, match="the message does not decode"):
            codecs.decode_value(data, codec, "the message")
