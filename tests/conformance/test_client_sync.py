"""headrace.client.sync on both servers: the same calls without await, in threads, after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.servers import Server
from headrace.client import codecs, errors, sync


@pytest.fixture
def client(server: Server) -> Iterator[sync.Client]:
    with sync.connect(server.url) as connected:
        yield connected


@pytest.fixture
def stream(client: sync.Client, name: str) -> Iterator[str]:
    client.add_stream(name=name, subjects=[f"{name}.>"], allow_atomic=True)
    yield name
    client.delete_stream(name)


@pytest.fixture
def bucket(client: sync.Client, name: str) -> Iterator[sync.KeyValue]:
    yield client.create_kv(name, history=3, limit_markers="1h", allow_atomic=True)
    client.delete_kv(name)


def test_sync_publish_returns_the_ack(client: sync.Client, stream: str) -> None:
    assert client.publish(f"{stream}.a", b"1", msg_id="x").seq == 1
    assert client.publish(f"{stream}.a", b"1", msg_id="x").duplicate
    assert client.publish_batch([(f"{stream}.a", b"2"), (f"{stream}.b", b"3")]).seq == 3
    assert client.get_msg(stream, 3).data == b"3"
    assert client.stream_info(stream).state.messages == 3
    assert client.run(client.js.purge_stream(stream))


def test_sync_publisher_stores_in_order_and_reports_failures(client: sync.Client, stream: str) -> None:
    client.update_stream(client.stream_info(stream).config, allow_batched=True)
    with client.publisher(stream) as publisher:
        assert publisher.uses_fast_ingest
        for number in range(2000):
            publisher.publish(f"{stream}.x", b"%d" % number)
        publisher.flush()
        assert (publisher.stored, publisher.failed, publisher.pending) == (2000, 0, 0)
        publisher.publish_many([(f"{stream}.x", b"2000"), (f"{stream}.x", b"2001")])
    assert client.stream_info(stream).state.messages == 2002
    assert [client.get_msg(stream, seq).data for seq in (1, 1000, 2002)] == [b"0", b"999", b"2001"]
    publisher = client.publisher(stream)
    with publisher:
        publisher.publish(f"{stream}.x", b"bad", expect_last_sequence=7)
        with pytest.raises(errors.MessagesNotStored, match="wrong last sequence"):
            publisher.flush()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(f"{stream}.x", b"late")


def test_limits_hold_for_a_slow_caller(client: sync.Client, name: str) -> None:
    """Nobody replies, so messages are on their way until the timeout."""
    client.run(client.nc.subscribe(name))
    with client.publisher(max_pending=10, timeout=0.2, on_error=lambda failure: None) as publisher:
        for _ in range(30):
            publisher.publish(name, b"x")
            assert publisher.pending <= 10
            client.run(client.nc.flush())  # the event loop takes every message by itself
    with client.publisher(max_bytes=100, timeout=0.2, on_error=lambda failure: None) as publisher:
        for _ in range(6):
            publisher.publish(name, bytes(60))
            assert publisher.pending <= 2
    assert publisher.failed == 6


def test_a_call_that_raises_accepts_no_message(client: sync.Client, stream: str) -> None:
    client.update_stream(client.stream_info(stream).config, max_msg_size=100)
    stored = [number for number in range(3000) if number % 97]
    with (
        contextlib.suppress(errors.MessagesNotStored),  # of the last messages
        client.publisher(stream) as publisher,
    ):
        for number in range(3000):
            while True:
                with contextlib.suppress(errors.MessagesNotStored):
                    publisher.publish(f"{stream}.x", b"%*d" % (1 if number % 97 else 200, number))
                    break
    assert client.stream_info(stream).state.messages == len(stored)


def test_threads_share_a_publisher(client: sync.Client, stream: str) -> None:
    def publish(first: int) -> None:
        for number in range(first, first + 700):
            publisher.publish(f"{stream}.x", b"%d" % number, msg_id=str(number))

    with client.publisher() as publisher, ThreadPoolExecutor() as pool:
        list(pool.map(publish, (0, 1000, 2000)))
        publisher.flush()
        assert publisher.stored == 2100
    assert client.stream_info(stream).state.messages == 2100


def test_sync_codecs_and_readers(client: sync.Client, stream: str, bucket: sync.KeyValue) -> None:
    numbers = codecs.json(list[int])
    client.publish(f"{stream}.x", [1, 2], codec=numbers)
    with client.consume(stream, codec=numbers) as messages:
        message = next(messages)
        assert (message.value, message.data) == ([1, 2], b"[1,2]")
        message.ack()
    typed = client.kv(bucket.bucket, codec=numbers)
    typed.put("a", [3])
    reader = client.kv_reader(bucket.bucket, codec=numbers)
    assert reader.get("a").value == [3]
    assert reader.keys() == ["a"]
    assert reader.status().values == 1
    assert [entry.value for entry in reader.history("a")] == [[3]]
    with reader.watch() as watcher:
        assert [entry.value for entry in watcher.initial()] == [[3]]
    assert not hasattr(reader, "put")


def test_sync_consume_yields_acknowledges_and_drains(client: sync.Client, stream: str) -> None:
    for number in range(5):
        client.publish(f"{stream}.x", b"%d" % number)
    seen = []
    with client.consume(stream, "worker") as messages:
        for message in messages:
            seen.append((message.subject, int(message.data), message.metadata.num_delivered, message.headers))
            message.ack()
            if len(seen) == 5:
                messages.drain()
    assert seen == [(f"{stream}.x", number, 1, None) for number in range(5)]
    deadline_s = time.monotonic() + 90
    while client.consumer_info(stream, "worker").ack_floor.stream_seq != 5:
        assert time.monotonic() < deadline_s


def test_a_sync_batch_commits_or_stores_nothing(client: sync.Client, stream: str) -> None:
    with client.batch() as batch:
        for number in range(250):
            batch.publish(f"{stream}.{number}", b"x")
        assert len(batch) == 250
    assert batch.ack
    assert batch.ack.count == 250

    def break_off() -> None:
        with client.batch() as batch:
            batch.publish(f"{stream}.a", b"x")
            batch.publish(f"{stream}.b", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert client.stream_info(stream).state.last_seq == 250


def test_sync_bucket_operations_match_the_async_ones(
    client: sync.Client, bucket: sync.KeyValue, name: str
) -> None:
    revision = bucket.create("a", b"1", ttl="1h")
    assert bucket.update("a", b"2", last=revision) == 2
    assert bucket.get("a").value == b"2"
    assert bucket.put_many({"b": b"1", "c": b"1"}) == {"b": 3, "c": 4}
    assert bucket.delete("b")
    assert bucket.keys() == ["a", "c"]
    assert [entry.revision for entry in bucket.history("a")] == [1, 2]
    with pytest.raises(errors.KeyNotFound):
        client.kv(name).get("b")
    assert client.update_kv(name, limit_markers="2h").status().limit_marker_ttl == 7200
    assert name in client.kv_names()


def test_a_sync_watcher_iterates_over_changes(bucket: sync.KeyValue) -> None:
    bucket.put("a", b"1")
    with bucket.watch() as watcher:
        first = next(watcher)
        assert first
        assert (first.key, next(watcher)) == ("a", None)
        late = threading.Timer(0.05, bucket.put, ("b", b"1"))
        late.start()
        for entry in watcher:
            assert entry
            assert entry.key == "b"
            break
        late.join()
        with pytest.raises(errors.NoAnswer):
            watcher.updates(timeout=0.01)


def test_threads_share_a_client(client: sync.Client, stream: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        seqs = list(pool.map(lambda n: client.publish(f"{stream}.{n}", b"x").seq, range(200)))
    assert sorted(seqs) == list(range(1, 201))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_worker_connects_anew(client: sync.Client, stream: str, server: Server) -> None:
    client.publish(f"{stream}.a", b"before")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            try:
                client.publish(f"{stream}.a", b"never")
            except sync.WrongProcess:
                with sync.connect(server.url) as own:
                    os.write(writing, b"%d" % own.publish(f"{stream}.a", b"child").seq)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == b"2"
    os.waitpid(child, 0)
    assert client.publish(f"{stream}.a", b"after").seq == 3


def test_sync_connect_times_out_without_a_server() -> None:
    begun = time.monotonic()
    with pytest.raises(errors.NoAnswer, match=r"not connected to nats://127\.0\.0\.1:1 within 0\.3 s"):
        sync.connect("nats://127.0.0.1:1", connect_timeout=0.3)
    assert time.monotonic() - begun < 30


def test_refusals_have_names(client: sync.Client, stream: str, name: str) -> None:
    with pytest.raises(errors.BucketNotFound):
        client.kv(f"{name}x")
    with pytest.raises(errors.WrongLastSequence):
        client.publish(f"{stream}.a", b"", expect_last_sequence=9)
    with pytest.raises(errors.NoStream):
        client.publish(f"{name}nowhere", b"")
