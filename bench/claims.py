"""Measures claims: offload and resolve compared with raw obstore and nats-py's object store; memory; collection.

    python bench/claims.py [--sizes 1,16,256,1024] [--store folder|s3|both] [--collect 10000]

Every pair is measured in turn in one process, repeated, and the best of each counts, because the machine is shared.
nats-server is started on a free port; SeaweedFS (`weed`) for s3. A folder store with sync is compared with obstore plus
a sync of its files, one without sync with obstore as it is. SHA-256 alone is measured too: no upload of one payload can
be faster than that.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import nats
import obstore
import uvloop
from obstore.store import LocalStore

from claims.claims_harness import run_nats_server
from claims.object_stores import Weed
from headrace.claims import ClaimConfig, Claims, FakeClock, FolderStore, Ttl
from headrace.claims.jetstream_client import encode_json
from headrace.claims.reference import make_key
from headrace.claims.registry import ClaimEntry, claim_subject, due_subject
from headrace.claims.stores import StaticAttributes
from headrace.claims.stores.s3 import make_s3_store

MIB = 1024 * 1024
PIECE = 4 * MIB
#: Payloads up to this size are also moved four at a time.
SMALL = 8
LANES = 4
_BLOCK = bytes(bytearray(__import__("random").Random(7).randbytes(PIECE)))
AT_ACK = Ttl(3600, True, 0, 300)


def payload(size: int) -> AsyncIterator[bytes]:
    """Incompressible bytes, repeated from one block that is generated beforehand, so that the source costs nothing."""
    block = memoryview(_BLOCK)

    async def pieces() -> AsyncIterator[bytes]:
        left = size
        while left:
            count = min(PIECE, left)
            yield block[:count]  # type: ignore[misc]
            left -= count

    return pieces()


class Peak:
    """The peak memory while it runs, minus the memory in use before."""

    def __enter__(self) -> Peak:
        gc.collect()
        self._base = self._top = _rss()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self._top = max(self._top, _rss())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.mib = (self._top - self._base) / MIB


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def sha256_rate() -> float:
    """Return the MB/s of the checksum alone."""
    best = 0.0
    for _ in range(10):
        digest, started = hashlib.sha256(), time.perf_counter()
        for _ in range(8):
            digest.update(_BLOCK)
        best = max(best, 8 * PIECE / 1e6 / (time.perf_counter() - started))
    return best


class Raw:
    """obstore as it is; with `folder`, its files there are synced, as our folder store does."""

    def __init__(self, client: Any, folder: Path | None = None) -> None:
        self._client = client
        self._folder = folder

    async def put(self, key: str, size: int) -> None:
        await obstore.put_async(self._client, key, payload(size), chunk_size=5 * MIB)
        if self._folder is not None:
            await asyncio.to_thread(self._sync, self._folder / key)

    @staticmethod
    def _sync(path: Path) -> None:
        for item, sync in ((path, os.fdatasync), (path.parent, os.fsync)):
            descriptor = os.open(item, os.O_RDONLY)
            sync(descriptor)
            os.close(descriptor)

    async def get(self, key: str) -> None:
        async for _ in (await obstore.get_async(self._client, key)).stream(min_chunk_size=4 * MIB):
            pass

    async def delete(self, keys: list[str]) -> None:
        await obstore.delete_async(self._client, keys)


async def at_once(work: Callable[[int], Awaitable[Any]], lanes: int) -> float:
    return await timed(lambda: asyncio.gather(*(work(lane) for lane in range(lanes))))


async def transfer(
    claims: Claims, raw: Raw, size: int, repeats: int, stream: str, lanes: int
) -> dict[str, float]:
    """Return the best rates in MB/s of raw obstore and of claims, in both directions, and the memory of claims."""
    best = dict.fromkeys(("raw put", "claim put", "raw get", "claim get"), 0.0)
    memory = 0.0
    moved = size * lanes / 1e6

    async def claim_get(message: Any) -> None:
        async for _ in claims.consumer.stream(message):
            pass

    for number in range(repeats):
        keys = [f"raw/{number}-{lane}" for lane in range(lanes)]
        with Peak() as peak:
            put_s = await at_once(lambda _: claims.producer.publish(f"{stream}.a", payload(size)), lanes)
            got: list[Any] = []
            while len(got) < lanes:
                got += await claims.jetstream.pull(stream, "bench", lanes - len(got), 2)
            get_s = await at_once(lambda lane, got=got: claim_get(got[lane]), lanes)
        for message in got:
            await claims.consumer.ack(message)
        memory = max(memory, peak.mib)
        raw_put_s = await at_once(lambda lane, keys=keys: raw.put(keys[lane], size), lanes)
        raw_get_s = await at_once(lambda lane, keys=keys: raw.get(keys[lane]), lanes)
        await raw.delete(keys)
        for name, spent in zip(best, (raw_put_s, put_s, raw_get_s, get_s), strict=True):
            best[name] = max(best[name], moved / spent)
    return {**best, "memory MiB": memory}


async def set_up(connection: Any, store: Any, name: str) -> tuple[Claims, str]:
    """Set up claims on a separate store, with a stream and a consumer."""
    config = ClaimConfig(f"bench{name}", bucket=store.bucket, backend="memory", ttl=AT_ACK, threshold=0)
    claims = await Claims.open(connection, config, store=store)
    stream = f"BENCH{name}"
    await claims.jetstream.api_request(
        f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "allow_msg_ttl": True}
    )
    consumer = {"durable_name": "bench", "ack_policy": "explicit", "ack_wait": 600 * 10**9}
    await claims.jetstream.api_request(
        f"CONSUMER.DURABLE.CREATE.{stream}.bench", {"stream_name": stream, "config": consumer}
    )
    return claims, stream


async def bench_transfer(
    connection: Any, store: Any, raw: Raw, name: str, sizes: list[int], repeats: int
) -> None:
    claims, stream = await set_up(connection, store, name)
    for size in sizes:
        times = repeats if size >= 256 else max(repeats, min(repeats * 8, 512 // size))
        for lanes in (1, LANES) if size <= SMALL else (1,):
            got = await transfer(claims, raw, size * MIB, times, stream, lanes)
            print(
                f"{name:13} {size:5} MiB x{lanes}  offload {got['claim put']:5.0f} MB/s "
                f"({got['claim put'] / got['raw put']:.2f} of raw {got['raw put']:.0f})  "
                f"resolve {got['claim get']:5.0f} MB/s ({got['claim get'] / got['raw get']:.2f} of raw "
                f"{got['raw get']:.0f})  memory +{got['memory MiB']:.0f} MiB",
                flush=True,
            )
    await claims.close()


async def bench_object_store(connection: Any, store: Any, repeats: int, name: str) -> None:
    """Measure 1 MiB payloads, one after the other: claims on a folder, and nats-py's object store."""
    data, count = _BLOCK[:MIB], 20
    claims, stream = await set_up(connection, store, f"obj{name}")
    bucket = await connection.jetstream().create_object_store(f"bench{name}")
    best = dict.fromkeys(("claims put", "theirs put", "claims get", "theirs get", "claims ack"), 0.0)
    held: list[Any] = []

    async def put() -> None:
        for _ in range(count):
            await claims.producer.publish(f"{stream}.a", data)

    async def get() -> None:
        while len(held) < count:
            for message in await claims.jetstream.pull(stream, "bench", count, 5):
                assert len((await claims.consumer.read(message)).data) == MIB
                held.append(message)

    async def ack() -> None:
        for message in held:
            await claims.consumer.ack(message)

    async def their_put() -> None:
        for number in range(count):
            await bucket.put(f"o{number}", data)

    async def their_get() -> None:
        for number in range(count):
            assert len((await bucket.get(f"o{number}")).data or b"") == MIB

    works = {
        "claims put": put,
        "theirs put": their_put,
        "claims get": get,
        "theirs get": their_get,
        "claims ack": ack,
    }
    for _ in range(repeats * 2):
        held.clear()
        for key, work in works.items():
            best[key] = max(best[key], count / await timed(work))
    for verb in ("put", "get"):
        ours, theirs = best[f"claims {verb}"], best[f"theirs {verb}"]
        print(
            f"1 MiB {verb}, {name}: claims {ours:.0f}/s, nats-py's object store {theirs:.0f}/s: "
            f"{ours / theirs:.1f} times",
            flush=True,
        )
    theirs = 1 / (1 / best["theirs put"] + 1 / best["theirs get"])
    ours = 1 / sum(1 / best[f"claims {verb}"] for verb in ("put", "get", "ack"))
    print(
        f"1 MiB round trip, {name}: claims {ours:.0f}/s (ack, release and deletion included), "
        f"nats-py {theirs:.0f}/s (nothing deleted): {ours / theirs:.1f} times",
        flush=True,
    )
    await claims.close()


async def bench_collect(connection: Any, folder: Path, count: int, repeats: int) -> None:
    """Measure collecting small, fully read claims with expired timers from a folder, and sweeping orphans."""
    clock = FakeClock()
    settings = {"path": str(folder / "gc"), "sync": False}
    config = ClaimConfig("benchgc", ttl=Ttl(3600, True, 0, 60), store=settings)
    claims = await Claims.open(connection, config, clock=clock)
    stream = "BENCHGC"
    await claims.jetstream.api_request(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream]})
    await claims.jetstream.publish(stream, b"x")
    body = {"stream_name": stream, "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await claims.jetstream.api_request(f"CONSUMER.DURABLE.CREATE.{stream}.c", body)
    (message,) = await claims.jetstream.pull(stream, "c", 1, 5)
    await message.ack_sync()
    for _ in range(repeats):
        for start in range(0, count, 1000):
            await _released(claims, stream, range(start, min(start + 1000, count)))
        await _timed_removal("collected", count, lambda: claims.collector.collect(sweep=False))
    for start in range(0, count, 1000):
        keys = [f"benchgc/b/2026010100/o{number}" for number in range(start, min(start + 1000, count))]
        await asyncio.gather(*(claims.store.put(key, b"x" * 100, StaticAttributes()) for key in keys))
    clock.advance(7200)
    await _timed_removal("swept", count, claims.collector.collect)
    await claims.close()


async def _released(claims: Claims, stream: str, numbers: range) -> None:
    """Create claims that were released a minute ago, with the markers of their timers."""
    now_ns = int(time.time() * 1e9)
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
    expires_at = now_ns // 10**9 + 3000
    entries = [
        ClaimEntry(
            f"c{number}",
            "benchgc",
            stream,
            "claims",
            make_key("benchgc", stream, expires_at, f"c{number}"),
            100,
            100,
            now_ns - 120 * 10**9,
            expires_at,
            "released",
            now_ns - 60 * 10**9,
            {stream: (1, stream)},
        )
        for number in numbers
    ]
    await asyncio.gather(
        *(claims.store.put(entry.object_key, b"x" * 100, StaticAttributes()) for entry in entries)
    )
    messages: list[Any] = [(claim_subject("benchgc", item.claim_id), _facts(item), {}) for item in entries]
    messages += [(due_subject("benchgc", item.claim_id), b"", marker) for item in entries]
    await claims.jetstream.publish_all(messages)


def _facts(entry: ClaimEntry) -> bytes:
    return encode_json({key: value for key, value in asdict(entry).items() if key != "revision"})


async def _timed_removal(verb: str, count: int, work: Callable[[], Awaitable[Any]]) -> None:
    """Print rates by wall-clock time, and by this process's CPU time, which depends less on other load.

    nats-server delivers new messages to consumers with a delay, so one pass may not find all.
    """
    started, busy = time.perf_counter(), time.process_time()
    report = await work()
    while report.removed < count:
        report.add(await work())
    spent, busy = time.perf_counter() - started, time.process_time() - busy
    print(
        f"{verb} {report.removed} small claims from a folder: {report.removed / spent:,.0f}/s "
        f"({report.removed / busy:,.0f} per second of CPU time)",
        flush=True,
    )


async def bench_floors(connection: Any, folder: Path, count: int) -> None:
    """Measure a sweep of claims that nobody has read, in a stream with all messages and in one that lacks one."""
    clock = FakeClock()
    settings = {"path": str(folder / "floors"), "sync": False}
    config = ClaimConfig("benchfloors", ttl=Ttl(86400, True, 0, 60), store=settings)
    claims = await Claims.open(connection, config, clock=clock)
    stream = "BENCHFLOORS"
    await claims.jetstream.api_request(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream]})
    body = {"stream_name": stream, "config": {"durable_name": "down", "ack_policy": "explicit"}}
    await claims.jetstream.api_request(f"CONSUMER.DURABLE.CREATE.{stream}.down", body)
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        await claims.jetstream.publish_all((stream, b"x" * 400, {}) for _ in numbers)
        await _unread(claims, stream, numbers)
    clock.advance(3600)
    for name in ("all messages", "one message deleted"):
        if name != "all messages":
            await claims.jetstream.api_request(f"STREAM.MSG.DELETE.{stream}", {"seq": count // 2})
        started, busy = time.perf_counter(), time.process_time()
        report = await claims.collector.collect()
        spent, busy = time.perf_counter() - started, time.process_time() - busy
        print(
            f"swept {report.live} unread claims ({name}) in {spent:.2f} s: {report.live / spent:,.0f}/s "
            f"({report.live / busy:,.0f} per second of CPU time)",
            flush=True,
        )
    await claims.close()


async def _unread(claims: Claims, stream: str, numbers: range) -> None:
    """Create the records of live claims."""
    now_ns = int(time.time() * 1e9)
    expires_at = now_ns // 10**9 + 80000
    entries = [
        ClaimEntry(
            f"u{number}",
            "benchfloors",
            stream,
            "claims",
            make_key("benchfloors", stream, expires_at, f"u{number}"),
            100,
            100,
            now_ns,
            expires_at,
            state="live",
            places={stream: (number + 1, stream)},
        )
        for number in numbers
    ]
    await claims.jetstream.publish_all(
        (claim_subject(entry.namespace, entry.claim_id), encode_json(_record(entry)), {}) for entry in entries
    )


def _record(entry: ClaimEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name not in ("revision", "updated_ns")}


async def main(options: argparse.Namespace, url: str, folder: Path, weed: Weed | None) -> None:
    connection = await nats.connect(url)
    sizes = [int(text) for text in options.sizes.split(",")]
    if "collect" in options.parts:
        await bench_collect(connection, folder, options.collect, options.repeats)
    if "floors" in options.parts:
        await bench_floors(connection, folder, options.collect)
    if "object-store" in options.parts:
        store = FolderStore(folder, "objects", sync=False)
        await bench_object_store(connection, store, options.repeats, "unsynced")
    if "transfer" in options.parts:
        print(f"SHA-256 alone: {sha256_rate():.0f} MB/s", flush=True)
        if options.store in ("folder", "both"):
            place = folder / "raw"
            (place / "raw").mkdir(parents=True)
            for sync in (False, True):
                store = FolderStore(folder, "objects", sync=sync)
                raw = Raw(LocalStore(place), place if sync else None)
                name = "folder" if sync else "folder-nosync"
                await bench_transfer(connection, store, raw, name, sizes, options.repeats)
        if weed is not None:
            made = make_s3_store("bench", weed.settings)
            await made.ensure_bucket()
            await bench_transfer(connection, made, Raw(made._client), "s3", sizes, options.repeats)
    await connection.close()


async def synced(options: argparse.Namespace, url: str, folder: Path) -> None:
    """Measure the same with a sync before each reply, on both sides."""
    connection = await nats.connect(url)
    await bench_object_store(connection, FolderStore(folder, "objects"), options.repeats, "synced")
    await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1,16,256,1024", help="MiB")
    parser.add_argument("--store", default="both", choices=("folder", "s3", "both"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--collect", type=int, default=10_000)
    parser.add_argument("--parts", default="collect,object-store,transfer", help="what to measure")
    parser.add_argument(
        "--folder", default=None, help="folder of the folder store (default: a temporary folder)"
    )
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="claims-bench-", dir=chosen.folder))
    running = Weed() if chosen.store != "folder" and "transfer" in chosen.parts else None
    try:
        with run_nats_server() as address:
            uvloop.run(main(chosen, address, place, running))
        if "object-store" in chosen.parts:
            with run_nats_server(sync_always=True) as address:
                uvloop.run(synced(chosen, address, place))
    finally:
        if running:
            running.close()
        shutil.rmtree(place, ignore_errors=True)
