"""Claims in figures: offload and resolve against raw obstore, memory, collection, and nats-py's object store.

    python bench/claims.py [--sizes 1,16,256,1024] [--store folder|s3|both] [--collect 10000]

Every pair is measured in turn in one process, repeated, and the best of each counts, because the machine is shared.
nats-server is started on a free port; SeaweedFS (`weed`) for s3.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import nats
import obstore
import uvloop
from obstore.store import LocalStore

from claims.objects import Weed
from claims.world import reference_server
from headrace.claims import ClaimConfig, Claims, FakeClock, Ttl
from headrace.claims.registry import Entry, claim_subject, due_subject
from headrace.claims.stores import Plain
from headrace.claims.stores.s3 import s3_store

MIB = 1024 * 1024
PIECE = 4 * MIB


def payload(size: int) -> AsyncIterator[bytes]:
    """Bytes that cannot be compressed, from a block that is there already: the source costs nothing."""
    block = memoryview(_BLOCK)

    async def pieces() -> AsyncIterator[bytes]:
        left = size
        while left:
            count = min(PIECE, left)
            yield block[:count]  # type: ignore[misc]
            left -= count

    return pieces()


_BLOCK = bytes(bytearray(__import__("random").Random(7).randbytes(PIECE)))


class Peak:
    """The most memory in use while it runs, above what was in use before."""

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


async def transfer(claims: Claims, raw: Any, size: int, repeats: int, world: Any) -> dict[str, float]:
    """Best rates in MB/s of raw obstore and of claims, both ways, and the memory that claims took."""
    best = dict.fromkeys(("raw put", "claim put", "raw get", "claim get"), 0.0)
    memory = 0.0
    for number in range(repeats):
        key = f"raw/{number}"

        async def raw_put(key: str = key) -> None:
            await obstore.put_async(raw, key, payload(size), chunk_size=5 * MIB)

        async def raw_get(key: str = key) -> None:
            async for _ in (await obstore.get_async(raw, key)).stream(min_chunk_size=MIB):
                pass

        async def claim_put() -> None:
            await claims.producer.publish(f"{world}.a", payload(size))

        async def claim_get(message: Any) -> None:
            async for _ in claims.consumer.stream(message):
                pass

        with Peak() as peak:
            best["claim put"] = max(best["claim put"], size / 1e6 / await timed(claim_put))
            (message,) = await claims.wire.pull(world, "bench", 1, 2)
            best["claim get"] = max(
                best["claim get"], size / 1e6 / await timed(lambda got=message: claim_get(got))
            )
        await claims.consumer.ack(message)
        memory = max(memory, peak.mib)
        for name, work in (("raw put", raw_put), ("raw get", raw_get)):
            best[name] = max(best[name], size / 1e6 / await timed(work))
        await obstore.delete_async(raw, key)
    return {**best, "memory MiB": memory}


async def bench_transfer(
    connection: Any, store: Any, raw: Any, name: str, sizes: list[int], repeats: int
) -> None:
    config = ClaimConfig(
        f"bench{name}", bucket=store.bucket, backend="memory", ttl=Ttl(3600, True, 0, 300), threshold=0
    )
    claims = await Claims.open(connection, config, store=store)
    stream = f"BENCH{name}"
    await claims.wire.api(
        f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "allow_msg_ttl": True}
    )
    consumer = {"durable_name": "bench", "ack_policy": "explicit", "ack_wait": 600 * 10**9}
    await claims.wire.api(
        f"CONSUMER.DURABLE.CREATE.{stream}.bench", {"stream_name": stream, "config": consumer}
    )
    for size in sizes:
        times = max(2, min(repeats * 8, 512 // size)) if size < 512 else 2
        got = await transfer(claims, raw, size * MIB, times, stream)
        print(
            f"{name:12} {size:5} MiB  offload {got['claim put']:6.0f} MB/s ({got['claim put'] / got['raw put']:.2f} of raw)"
            f"  resolve {got['claim get']:6.0f} MB/s ({got['claim get'] / got['raw get']:.2f} of raw)"
            f"  memory +{got['memory MiB']:.0f} MiB",
            flush=True,
        )
    await claims.close()


async def bench_object_store(connection: Any, store: Any, repeats: int) -> None:
    """1 MiB payloads, one after the other: claims on a folder against nats-py's object store.

    Neither syncs here: the object store lives in nats-server, which syncs every two minutes.
    """
    data = _BLOCK[:MIB]
    config = ClaimConfig(
        "benchobj", backend="folder", bucket=store.bucket, ttl=Ttl(3600, True, 0, 300), threshold=0
    )
    claims = await Claims.open(connection, config, store=store)
    js = connection.jetstream()
    bucket = await js.create_object_store("bench")
    stream = "BENCHOBJ"
    await claims.wire.api(
        f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "allow_msg_ttl": True}
    )
    consumer = {"durable_name": "bench", "ack_policy": "explicit"}
    await claims.wire.api(
        f"CONSUMER.DURABLE.CREATE.{stream}.bench", {"stream_name": stream, "config": consumer}
    )
    best = dict.fromkeys(("claims put", "theirs put", "claims get", "theirs get"), 0.0)
    count = 20

    async def put() -> None:
        for _ in range(count):
            await claims.producer.publish(f"{stream}.a", data)

    async def get() -> None:
        for message in await claims.wire.pull(stream, "bench", count, 5):
            assert len((await claims.consumer.read(message)).data) == MIB
            held.append(message)

    async def their_put() -> None:
        for number in range(count):
            await bucket.put(f"o{number}", data)

    async def their_get() -> None:
        for number in range(count):
            assert len((await bucket.get(f"o{number}")).data or b"") == MIB

    for _ in range(repeats):
        held: list[Any] = []
        works = {"claims put": put, "theirs put": their_put, "claims get": get, "theirs get": their_get}
        for name, work in works.items():
            best[name] = max(best[name], count / await timed(work))
        for message in held:
            await claims.consumer.ack(message)
    for verb in ("put", "get"):
        ours, theirs = best[f"claims {verb}"], best[f"theirs {verb}"]
        print(
            f"1 MiB {verb}: claims {ours:.0f}/s, nats-py's object store {theirs:.0f}/s: {ours / theirs:.1f} times",
            flush=True,
        )
    await claims.close()


async def bench_collect(connection: Any, folder: Path, count: int) -> None:
    """Small claims whose timers have run out, collected from a folder; and as many orphans, swept."""
    clock = FakeClock()
    config = ClaimConfig(
        "benchgc", ttl=Ttl(3600, True, 0, 60), store={"path": str(folder / "gc"), "sync": False}
    )
    claims = await Claims.open(connection, config, clock=clock)
    now_ns = clock.now_ns()
    expires_at = now_ns // 10**9 - 7200
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
    for start in range(0, count, 1000):
        entries = [
            Entry(
                f"c{number}",
                "benchgc",
                "a",
                "claims",
                f"benchgc/a/2026010100/c{number}",
                100,
                100,
                now_ns - 7200 * 10**9,
                expires_at,
                "live",
            )
            for number in range(start, min(start + 1000, count))
        ]
        await asyncio.gather(*(claims.store.put(entry.object_key, b"x" * 100, Plain()) for entry in entries))
        messages = [(claim_subject("benchgc", entry.claim_id), _facts(entry), {}) for entry in entries]
        messages += [(due_subject("benchgc", entry.claim_id), b"", marker) for entry in entries]
        await claims.wire.publish_all(messages)
    await _timed_removal("collected", lambda: claims.collector.collect(sweep=False))
    for start in range(0, count, 1000):
        keys = [f"benchgc/b/2026010100/o{number}" for number in range(start, min(start + 1000, count))]
        await asyncio.gather(*(claims.store.put(key, b"x" * 100, Plain()) for key in keys))
    clock.advance(7200)
    await _timed_removal("swept", claims.collector.collect)
    await claims.close()


async def _timed_removal(verb: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Rates by the wall clock, and by this process's own time, which a busy machine does not change as much."""
    started, busy = time.perf_counter(), time.process_time()
    report = await work()
    spent, busy = time.perf_counter() - started, time.process_time() - busy
    print(
        f"{verb} {report.removed} small claims from a folder: {report.removed / spent:,.0f}/s "
        f"({report.removed / busy:,.0f} a second of processor time)",
        flush=True,
    )


def _facts(entry: Entry) -> bytes:
    import json
    from dataclasses import asdict

    return json.dumps({key: value for key, value in asdict(entry).items() if key != "revision"}).encode()


async def main(options: argparse.Namespace, url: str, folder: Path, weed: Weed | None) -> None:
    from headrace.claims import FolderStore

    connection = await nats.connect(url)
    sizes = [int(text) for text in options.sizes.split(",")]
    if options.collect:
        await bench_collect(connection, folder, options.collect)
    if not options.only_collect:
        store = FolderStore(folder, "objects", sync=False)
        await bench_object_store(connection, store, options.repeats)
        if options.store in ("folder", "both"):
            (folder / "raw").mkdir()
            for sync in (False, True):
                store = FolderStore(folder, "objects", sync=sync)
                name = "folder" if sync else "folder-nosync"
                await bench_transfer(
                    connection, store, LocalStore(folder / "raw"), name, sizes, options.repeats
                )
        if weed is not None:
            made = s3_store("bench", weed.settings)
            await made.ensure_bucket()
            await bench_transfer(connection, made, made._client, "s3", sizes, options.repeats)
    await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1,16,256,1024", help="MiB")
    parser.add_argument("--store", default="both", choices=("folder", "s3", "both"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--collect", type=int, default=10_000)
    parser.add_argument("--only-collect", action="store_true")
    parser.add_argument(
        "--folder", default=None, help="Where the folder store lies; a temporary folder otherwise"
    )
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="claims-bench-", dir=chosen.folder))
    running = Weed() if chosen.store != "folder" and not chosen.only_collect else None
    try:
        with reference_server() as address:
            uvloop.run(main(chosen, address, place, running))
    finally:
        if running:
            running.close()
        shutil.rmtree(place, ignore_errors=True)
