"""The workloads of `make bench`: what is measured, its floor and its goal.

Each takes a port and a scale and returns operations per second; the ratio of Headrace to nats-server is what
counts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from load import (
    CHUNK,
    METER,
    Connection,
    Counter,
    NotYet,
    Refused,
    header,
    median_s,
    publication,
    pump,
    repeat,
)

Run = Callable[[int, float], float]
#: Beginning of an ack subject in a server's output.
ACK = b" $JS.ACK."


@dataclass(frozen=True)
class Workload:
    """A measurement. `against` is the variant of nats-server; a latency workload measures 1/seconds."""

    name: str
    run: Run
    floor: float | None = None
    goal: float | None = None
    against: str = "peer"
    latency: bool = False

    @property
    def title(self) -> str:
        return (self.run.__doc__ or self.name).splitlines()[0].rstrip(".")


WORKLOADS: dict[str, Workload] = {}


def workload(
    name: str, floor: float | None = None, goal: float | None = None, **more: Any
) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        WORKLOADS[name] = Workload(name, run, floor, goal, **more)
        return run

    return register


@workload("core", 0.5, 0.8)
def core(port: int, scale: float) -> float:
    """Core publish to one subscriber on another connection."""
    return _core(port, int(500 * scale), 1)


@workload("fanout", 0.5, 0.8)
def fanout(port: int, scale: float) -> float:
    """Core publish to ten subscribers; deliveries per second."""
    return _core(port, int(100 * scale), 10)


def _core(port: int, chunks: int, subscribers: int) -> float:
    receivers = [Connection(port) for _ in range(subscribers)]
    for receiver in receivers:
        receiver.subscribe(b"core.x")
    deliveries = chunks * CHUNK * subscribers
    with Connection(port) as sender:
        data = repeat(publication(b"core.x", b"x" * 128) * CHUNK, chunks)
        seconds = pump(
            sender,
            data,
            b"MSG core.x 9",
            deliveries,
            receivers=receivers,
            per_chunk=CHUNK * subscribers,
            window=100_000,
        )
    for receiver in receivers:
        receiver.close()
    return deliveries / seconds


@workload("request", 0.5, 0.8, latency=True)
def request(port: int, scale: float) -> float:
    """Request and reply between two connections, one at a time; 1 / median latency."""
    with Connection(port) as caller, Connection(port) as service:
        service.subscribe(b"service")
        ask = publication(b"service", b"x" * 128, caller.inbox + b".1")

        def ask_once() -> None:
            caller.socket.sendall(ask)
            _, reply, _, payload = service.message()
            service.socket.sendall(publication(reply, payload))
            caller.message()

        return 1 / median_s(ask_once, int(2000 * scale))


def publish(
    port: int,
    chunks: int,
    size: int,
    head: bytes = b"",
    subjects: int = 1000,
    stream: str = "B",
    per_chunk: int = CHUNK,
    window: int = 20_000,
    **config: Any,
) -> float:
    """Durable publishes, a window in flight, each acknowledged; messages per second."""
    with Connection(port) as connection:
        connection.stream(stream, **config)
        reply = connection.inbox + b".a"
        chunk = b"".join(
            publication(b"%s.%d" % (stream.encode(), i % subjects), b"x" * size, reply, head)
            for i in range(per_chunk)
        )
        total = chunks * per_chunk
        seconds = pump(
            connection, repeat(chunk, chunks), b"MSG " + reply, total, per_chunk=per_chunk, window=window
        )
    with Connection(port) as connection:
        last = connection.api(f"STREAM.INFO.{stream}")["state"]["last_seq"]
        assert last == total, f"{last} of {total} stored"
    return total / seconds


@workload("pub128", 1.0, 1.5)
def pub128(port: int, scale: float) -> float:
    """Durable publish, 128 bytes."""
    return publish(port, int(300 * scale), 128)


@workload("pub1k", 1.0, 1.5)
def pub1k(port: int, scale: float) -> float:
    """Durable publish, 1 KiB."""
    return publish(port, int(150 * scale), 1024)


@workload("pub16k", 1.0, 1.3)
def pub16k(port: int, scale: float) -> float:
    """Durable publish, 16 KiB."""
    return publish(port, int(20 * scale), 16384)


@workload("pub64k", 1.0, 1.3)
def pub64k(port: int, scale: float) -> float:
    """Durable publish, 64 KiB, about 2,000 in flight."""
    return publish(port, max(1, int(50 * scale)), 65536, per_chunk=100, window=2000)


@workload("pub1m", 1.0, 1.3)
def pub1m(port: int, scale: float) -> float:
    """Durable publish, 1 MiB, about 100 in flight."""
    return publish(port, max(1, int(80 * scale)), 1 << 20, per_chunk=5, window=100)


@workload("async500", 1.0, 1.5)
def async500(port: int, scale: float) -> float:
    """Durable publish, 128 bytes, 500 in flight, then wait for all acks."""
    size, batches = 500, int(400 * scale)
    with Connection(port) as connection:
        connection.stream("B")
        reply = connection.inbox + b".a"
        data = publication(b"B.1", b"x" * 128, reply) * size
        with METER.section(size * batches) as section:
            for _ in range(batches):
                connection.socket.sendall(data)
                connection.skip_acks(size)
    return size * batches / section.seconds


@workload("pub_mem")
def pub_mem(port: int, scale: float) -> float:
    """Publish to a memory stream, 128 bytes."""
    return publish(port, int(300 * scale), 128, storage="memory")


@workload("pub_ttl", 1.0, 1.5)
def pub_ttl(port: int, scale: float) -> float:
    """Durable publish with a TTL."""
    return publish(port, int(300 * scale), 128, header(Nats_TTL="1h"), allow_msg_ttl=True)


@workload("kv_put", 1.0, 1.5)
def kv_put(port: int, scale: float) -> float:
    """Durable put as in a key-value bucket: 1,000 keys, one value each."""
    bucket = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True}
    return publish(port, int(200 * scale), 128, **bucket)


@workload("pub_msgid", 1.0, 1.5)
def pub_msgid(port: int, scale: float) -> float:
    """Durable publish with a message id."""
    with Connection(port) as connection:
        connection.stream("B")
        reply, payload = connection.inbox + b".a", b"x" * 128
        chunks = [
            b"".join(
                publication(b"B.%d" % i, payload, reply, header(Nats_Msg_Id=f"id-{j}-{i}"))
                for i in range(CHUNK)
            )
            for j in range(int(200 * scale))
        ]
        total = len(chunks) * CHUNK
        return total / pump(connection, chunks, b"MSG " + reply, total)


@workload("sync1", latency=True)
def sync1(port: int, scale: float) -> float:
    """Durable publish, one in flight; 1 / median latency."""
    with Connection(port) as connection:
        connection.stream("B")
        payload = b"x" * 128
        return 1 / median_s(lambda: connection.request(b"B.1", payload), int(1500 * scale), warm=100)


@workload("sync1_always", 1.0, 1.3, against="peer_sync", latency=True)
def sync1_always(port: int, scale: float) -> float:
    """Durable publish, one in flight, when nats-server syncs each message too; 1 / median latency."""
    return sync1(port, scale)


@workload("sync_always", 20, 40, against="peer_sync")
def sync_always(port: int, scale: float) -> float:
    """Durable publish, 128 bytes, when nats-server syncs each message too (sync_interval: always)."""
    return publish(port, max(1, int(20 * scale)), 128)


@workload("batch", 2, 3)
def batch(port: int, scale: float) -> float:
    """Atomic batches of 500 messages; messages per second."""
    size, batches = 500, int(400 * scale)
    with Connection(port) as connection:
        connection.stream("B", allow_atomic=True)
        chunks = [_atomic_batch(connection.inbox + b".a", f"b{number}", size) for number in range(batches)]
        seconds = pump(connection, chunks, b'"count":%d' % size, batches, per_chunk=1, window=20)
        METER.last.operations = size * batches
    with Connection(port) as connection:
        stored = connection.api("STREAM.INFO.B")["state"]["messages"]
        assert stored == size * batches, f"{stored} of {size * batches} stored"
    return size * batches / seconds


def _atomic_batch(reply: bytes, name: str, size: int) -> bytes:
    payload = b"x" * 128
    parts = [
        publication(b"B.%d" % i, payload, b"", header(Nats_Batch_Id=name, Nats_Batch_Sequence=i))
        for i in range(1, size)
    ]
    commit = header(Nats_Batch_Id=name, Nats_Batch_Sequence=size, Nats_Batch_Commit=1)
    return b"".join(parts) + publication(b"B.%d" % size, payload, reply, commit)


@workload("push", 1.0, 1.5)
def push(port: int, scale: float) -> float:
    """A push consumer without acknowledgements reads a full stream."""
    total = int(300 * scale) * CHUNK
    publish(port, total // CHUNK, 128)
    return deliver(port, total, 1)


@workload("push100", 1.0, 1.5)
def push100(port: int, scale: float) -> float:
    """A full stream is delivered to 100 push consumers; deliveries per second."""
    total = max(1, int(5 * scale)) * CHUNK
    publish(port, total // CHUNK, 128)
    return deliver(port, total, 100)


def deliver(port: int, messages: int, consumers: int) -> float:
    with Connection(port) as receiver, Connection(port) as control:
        for number in range(consumers):
            receiver.subscribe(b"deliver.%d" % number, 100 + number)
        with METER.section(messages * consumers) as section:
            counter = Counter([receiver], ACK, messages * consumers)
            for number in range(consumers):
                control.consumer("B", deliver_subject=f"deliver.{number}", ack_policy="none")
            counter.wait()
        return messages * consumers / section.seconds


@workload("pull", 1.8, 2.5)
def pull(port: int, scale: float) -> float:
    """A durable pull consumer with explicit acknowledgements, batches of 500."""
    total, size = int(200 * scale) * CHUNK, 500
    publish(port, total // CHUNK, 128)
    body = json.dumps({"batch": size, "expires": 5_000_000_000}).encode()
    with Connection(port) as connection, Connection(port) as control:
        control.consumer("B", "D", ack_policy="explicit", max_ack_pending=5000)
        connection.subscribe(b"pull")
        ask = publication(b"$JS.API.CONSUMER.MSG.NEXT.B.D", body, b"pull")
        with METER.section(total) as section:
            connection.socket.sendall(ask * 2)
            _acknowledge_all(connection, total, size, ask)
            while control.api("CONSUMER.INFO.B.D")["num_ack_pending"]:
                pass
        return total / section.seconds


def _acknowledge_all(connection: Connection, total: int, batch: int, ask: bytes) -> None:
    """Acknowledge deliveries as they arrive, and ask for the next batch after each; two were asked for already."""
    done, asked = 0, 2 * batch
    while done < total:
        replies = connection.ack_subjects()
        if not replies:
            continue
        done += len(replies)
        output = b"PUB " + b" 4\r\n+ACK\r\nPUB ".join(replies) + b" 4\r\n+ACK\r\n"
        while asked < min(total, (done // batch + 2) * batch):
            output += ask
            asked += batch
        connection.socket.sendall(output)


@workload("kv_get", 0.9, 1.3)
def kv_get(port: int, scale: float) -> float:
    """Direct get of the last value of a key."""
    total = int(100 * scale) * CHUNK
    with Connection(port) as connection:
        connection.stream("K", subjects=["$KV.K.>"], max_msgs_per_subject=1, allow_direct=True)
        reply = connection.inbox + b".a"
        puts = b"".join(publication(b"$KV.K.k%d" % i, b"x" * 128, reply) for i in range(CHUNK))
        pump(connection, [puts], b"MSG " + reply, CHUNK)
        gets = b"".join(publication(b"$JS.API.DIRECT.GET.K.$KV.K.k%d" % i, b"", reply) for i in range(CHUNK))
        seconds = pump(connection, repeat(gets, total // CHUNK), b"HMSG " + reply, total, window=2000)
        return total / seconds


@workload("direct_batch")
def direct_batch(port: int, scale: float) -> float:
    """Batched direct get, 1,000 messages per request, as the direct-get reader does it."""
    total = int(200 * scale) * CHUNK
    publish(port, total // CHUNK, 128, allow_direct=True)
    return get_batches(port, total)


def get_batches(port: int, total: int) -> float:
    with Connection(port) as connection:
        reply = connection.inbox + b".a"
        asks = [
            publication(b"$JS.API.DIRECT.GET.B", b'{"seq":%d,"batch":%d}' % (first, CHUNK), reply)
            for first in range(1, total, CHUNK)
        ]
        return total / pump(connection, asks, b"Nats-Time-Stamp:", total, window=4 * CHUNK)


@workload("mirror", 1.0, 1.5)
def mirror(port: int, scale: float) -> float:
    """A mirror on the same server catches up with a full stream."""
    total = int(200 * scale) * CHUNK
    publish(port, total // CHUNK, 128)
    return catch_up(port, total, {"mirror": {"name": "B"}})


@workload("source")
def source(port: int, scale: float) -> float:
    """A stream that sources a full one with an ephemeral consumer catches up."""
    total = int(200 * scale) * CHUNK
    publish(port, total // CHUNK, 128)
    return catch_up(port, total, {"sources": [{"name": "B"}]})


@workload("source_durable")
def source_durable(port: int, scale: float) -> float:
    """The same with a durable consumer; it may be up to a tenth slower than `source`."""
    total = int(200 * scale) * CHUNK
    publish(port, total // CHUNK, 128)
    how = {"deliver_subject": "sourced", "ack_policy": "flow_control", "flow_control": True}
    with Connection(port) as connection:
        connection.consumer("B", "C", **how, idle_heartbeat=1_000_000_000, max_ack_pending=20_000)
    consumer = {"name": "C", "deliver_subject": "sourced"}
    return catch_up(port, total, {"sources": [{"name": "B", "consumer": consumer}]})


def catch_up(port: int, total: int, config: dict[str, Any]) -> float:
    """Return the rate at which stream M copies another stream."""
    with Connection(port) as connection:
        with contextlib.suppress(Refused):
            connection.api("STREAM.DELETE.M")
        with METER.section(total) as section:
            connection.api("STREAM.CREATE.M", {"name": "M", **config})
            _wait_for_copies(connection, total)
        connection.api("STREAM.DELETE.M")
        return total / section.seconds


def _wait_for_copies(connection: Connection, total: int) -> None:
    start = time.perf_counter()
    while (copied := connection.api("STREAM.INFO.M")["state"]["messages"]) < total:
        waited = time.perf_counter() - start
        if not copied and waited > 10:
            raise NotYet("copying")
        if waited > 120:
            raise AssertionError(f"only {copied} of {total} messages were copied in {waited:.0f} s")
        time.sleep(0.005)


@workload("streams1000", 1.0, 2)
def streams1000(port: int, scale: float) -> float:
    """Publish to 1,000 streams in turn; 10 messages/s each are 10,000/s in total."""
    create_streams(port)
    rate = publish_to_streams(port, scale)
    with Connection(port) as connection:
        for i in range(CHUNK):
            connection.api(f"STREAM.DELETE.S{i}")
    return rate


def create_streams(port: int) -> None:
    with Connection(port) as connection:
        for i in range(CHUNK):
            connection.stream(f"S{i}")


def publish_to_streams(port: int, scale: float) -> float:
    rounds = max(1, int(50 * scale))
    with Connection(port) as connection:
        reply = connection.inbox + b".a"
        chunk = b"".join(publication(b"S%d.x" % i, b"x" * 128, reply) for i in range(CHUNK))
        return rounds * CHUNK / pump(connection, repeat(chunk, rounds), b"MSG " + reply, rounds * CHUNK)
