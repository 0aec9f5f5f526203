"""Measures payloads of 1 MiB: publish and read as claims, beside plain puts and gets of the same bytes.

    python bench/claims_payloads.py [--stores folder,s3] [--in-flight 1,4,8] [--rounds 10]

The plain side is what a careful program does without claims. On S3 that is one put and one get of obstore, which returns
bytes as claims do, and boto3 is measured too. In a folder it writes a temporary file, syncs it, renames it and syncs the
folder, and it reads the file; each in one call of a thread. "hashed" is the plain side plus SHA-256 of each payload,
which claims require. All sides move the same number of payloads with the same number in flight, in turn and in one
process. Best and median of all rounds are printed, with the CPU time for each payload in this process, the store and
nats-server. `--compression` measures compressors instead, beside their libraries.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import nats
import obstore
import uvloop
import zstandard

from claims.claims_harness import run_nats_server
from claims.object_stores import Weed
from headrace.claims import ClaimConfig, Claims, FolderStore, MemoryStore, Ttl
from headrace.claims.payload_fetch import fetch
from headrace.claims.reference import Reference
from headrace.claims.stores import StaticAttributes
from headrace.claims.stores.s3 import make_s3_store
from headrace.claims.streaming_upload import PayloadEncoder, iter_chunks

MIB = 1024 * 1024
DATA = __import__("random").Random(7).randbytes(MIB)
AT_ACK = Ttl(3600, True, 0, 300)


class PlainS3:
    """One request of obstore for each payload."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def put(self, key: str) -> None:
        await obstore.put_async(self._client, key, DATA, use_multipart=False)

    async def get(self, key: str) -> Any:
        return (await (await obstore.get_async(self._client, key)).bytes_async()).to_bytes()

    async def delete(self, keys: list[str]) -> None:
        await obstore.delete_async(self._client, keys)


class PlainBoto3:
    """One request of boto3 for each payload, in a thread."""

    def __init__(self, store: Any) -> None:
        self._client = store._get_admin_client()
        self._bucket = store.bucket

    async def put(self, key: str) -> None:
        await asyncio.to_thread(self._client.put_object, Bucket=self._bucket, Key=key, Body=DATA)

    async def get(self, key: str) -> Any:
        return await asyncio.to_thread(self._read, key)

    def _read(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    async def delete(self, keys: list[str]) -> None:
        names = {"Objects": [{"Key": key} for key in keys]}
        await asyncio.to_thread(self._client.delete_objects, Bucket=self._bucket, Delete=names)


class PlainFolder:
    """Files that are complete or absent, and durable if `sync`."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder = folder
        self._sync = sync
        folder.mkdir(parents=True)

    async def put(self, key: str) -> None:
        await asyncio.to_thread(self._put, self._folder / key)

    def _put(self, path: Path) -> None:
        temporary = path.with_suffix(".part")
        with temporary.open("xb", buffering=0) as file:
            file.write(DATA)
            if self._sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if self._sync:
            descriptor = os.open(path.parent, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    async def get(self, key: str) -> Any:
        return await asyncio.to_thread((self._folder / key).read_bytes)

    async def delete(self, keys: list[str]) -> None:
        for key in keys:
            (self._folder / key).unlink()


class Hashed:
    """A plain side that also computes SHA-256 of each payload, once for a put and once for a get."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    async def put(self, key: str) -> None:
        await asyncio.to_thread(hashlib.sha256, DATA)
        await self._plain.put(key)

    async def get(self, key: str) -> Any:
        data = await self._plain.get(key)
        await asyncio.to_thread(hashlib.sha256, data)
        return data

    async def delete(self, keys: list[str]) -> None:
        await self._plain.delete(keys)


class ClaimSide:
    """Publish and read of claims; reading includes neither the pull before nor the ack after it."""

    def __init__(self, claims: Claims, stream: str) -> None:
        self._claims = claims
        self._stream = stream
        self._messages: dict[str, Any] = {}

    async def put(self, key: str) -> None:
        await self._claims.producer.publish(f"{self._stream}.a", DATA)

    async def pull(self, keys: list[str]) -> None:
        got: list[Any] = []
        while len(got) < len(keys):
            got += await self._claims.jetstream.pull(self._stream, "bench", len(keys) - len(got), 2)
        self._messages = dict(zip(keys, got, strict=True))

    async def get(self, key: str) -> Any:
        return (await self._claims.consumer.read(self._messages[key])).data

    async def delete(self, keys: list[str]) -> None:
        """Acknowledge, which deletes the objects."""
        for message in self._messages.values():
            await self._claims.consumer.ack(message)


async def run_in_flight(work: Callable[[str], Awaitable[Any]], keys: list[str], in_flight: int) -> None:
    """Process all keys, so many at a time."""
    remaining = iter(keys)

    async def run() -> None:
        for key in remaining:
            data = await work(key)
            assert data is None or len(data) == MIB

    await asyncio.gather(*(run() for _ in range(in_flight)))


def read_children_cpu() -> dict[str, float]:
    """Return the CPU seconds of this process's children, by name."""
    found: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[1]) == os.getpid():
            ticks = int(fields[11]) + int(fields[12])
            found[name] = found.get(name, 0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


class Samples:
    """Times of one side in one direction."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._cpu: dict[str, float] = {}

    async def add(self, work: Callable[[], Awaitable[None]]) -> None:
        children, busy, started = read_children_cpu(), time.process_time(), time.perf_counter()
        await work()
        self.times.append(time.perf_counter() - started)
        spent = {"client": time.process_time() - busy}
        spent |= {name: total - children.get(name, 0) for name, total in read_children_cpu().items()}
        for name, seconds in spent.items():
            self._cpu[name] = self._cpu.get(name, 0) + seconds

    def describe_cpu(self, count: int) -> str:
        each = 1e3 / count / len(self.times)
        return ", ".join(f"{name} {total * each:.2f}" for name, total in sorted(self._cpu.items()))


async def compare(name: str, sides: dict[str, Any], in_flight: int, options: argparse.Namespace) -> None:
    """Measure all sides in turn, in changing order, and print each relative to the plain one."""
    samples = {(verb, side): Samples() for verb in ("put", "get") for side in sides}
    for number in range(options.rounds + 1):
        order = sorted(sides, reverse=bool(number % 2))
        keys = [f"{in_flight}-{number}-{item}" for item in range(options.count)]
        for verb in ("put", "get"):
            for side in order:
                work = getattr(sides[side], verb)
                measured = samples[verb, side] if number else Samples()  # the first round warms up
                own = [f"{side}-{key}" for key in keys]
                await measured.add(partial(run_in_flight, work, own, in_flight))
            if verb == "put":
                await sides["claims"].pull([f"claims-{key}" for key in keys])
        for side in sides:
            await sides[side].delete([f"{side}-{key}" for key in keys])
    for (verb, side), found in samples.items():
        plain = samples[verb, "plain"].times
        rates = [options.count * MIB / 1e6 / choose(found.times) for choose in (min, statistics.median)]
        ratios = [choose(plain) / choose(found.times) for choose in (min, statistics.median)]
        print(
            f"{name:13} {verb} x{in_flight} {side:6}: best {rates[0]:5.0f} MB/s ({ratios[0]:.2f} of plain), median "
            f"{rates[1]:5.0f} ({ratios[1]:.2f}); CPU ms for each: {found.describe_cpu(options.count)}",
            flush=True,
        )


async def set_up(connection: Any, store: Any, name: str) -> tuple[Claims, str]:
    """Open claims on a store, with a stream and a consumer."""
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


class LibraryCodec:
    """A compressor used directly, in a thread: whole payloads, at the level that claims use."""

    def __init__(self, name: str) -> None:
        packer, unpacker = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
        self._compress, self._decompress = {
            "zstd": (packer.compress, partial(unpacker.decompress, max_output_size=2**31)),
            "gzip": (partial(gzip.compress, compresslevel=6), gzip.decompress),
        }[name]

    async def put(self, data: bytes) -> Any:
        return await asyncio.to_thread(self._compress, data)

    async def get(self, stored: bytes) -> Any:
        return await asyncio.to_thread(self._decompress, stored)


class ClaimCodec:
    """The same as a claim does it: with the checksums of the original and of the stored bytes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._store = MemoryStore("b")

    async def put(self, data: bytes) -> Any:
        await self._store.ensure_bucket()
        self._encoder = encoder = PayloadEncoder(self._name)
        return b"".join([chunk async for chunk in encoder.encode(iter_chunks(data))])

    async def get(self, stored: bytes) -> Any:
        await self._store.put("key", stored, StaticAttributes(), replace=True)
        made = self._encoder
        sizes = (made.original_size, self._name, made.checksum, made.stored_size, made.stored_checksum)
        reference = Reference("id", "b", "key", *sizes, 0, 2**40, "")
        return b"".join([chunk async for chunk in fetch(self._store, reference)])


async def compare_codecs(rounds: int) -> None:
    """Print the speed of compression and decompression, in original bytes, beside that of the libraries."""
    lines = "".join(
        f'{{"id":{n},"user":"u{n * 7919 % 9973}","amount":{n * 31 % 1009},"note":"{n * 2654435761 % 2**32:x}"}}\n'
        for n in range(1_000_000)
    ).encode()
    for size in (MIB, 64 * MIB):
        data, count = lines[:size], max(1, 32 * MIB // size)
        for name in ("zstd", "gzip"):
            sides = {"claims": ClaimCodec(name), "library": LibraryCodec(name)}
            times: dict[tuple[str, str], list[float]] = {}
            for _ in range(rounds):
                for side, codec in sides.items():
                    stored = await codec.put(data)
                    for verb, work in (
                        ("compress", partial(codec.put, data)),
                        ("decompress", partial(codec.get, stored)),
                    ):
                        started = time.perf_counter()
                        for _ in range(count):
                            result = await work()
                        times.setdefault((verb, side), []).append(time.perf_counter() - started)
                    assert result == data
            for verb in ("compress", "decompress"):
                ours, theirs = (min(times[verb, side]) for side in sides)
                rates = [count * size / 1e6 / each for each in (ours, theirs)]
                print(
                    f"{name} {verb} {size // MIB} MiB: {rates[0]:.0f} MB/s, {rates[0] / rates[1]:.2f} of the library's "
                    f"{rates[1]:.0f}",
                    flush=True,
                )


async def make_sides(
    name: str, connection: Any, folder: Path, weed: Weed | None
) -> tuple[Claims, dict[str, Any]]:
    sides: dict[str, Any] = {}
    if name == "s3" and weed is not None:
        store: Any = make_s3_store("bench", weed.settings)
        plain_store = make_s3_store("plain", weed.settings)
        for each in (store, plain_store):
            await each.ensure_bucket()
        plain: Any = PlainS3(plain_store._client)
        sides["boto3"] = PlainBoto3(plain_store)
    else:
        sync = name == "folder"
        store = FolderStore(folder, f"objects-{name}", sync=sync)
        plain = PlainFolder(folder / f"plain-{name}", sync=sync)
    claims, stream = await set_up(connection, store, name)
    return claims, {"claims": ClaimSide(claims, stream), "plain": plain, "hashed": Hashed(plain), **sides}


async def main(options: argparse.Namespace, url: str, folder: Path, weed: Weed | None) -> None:
    connection = await nats.connect(url)
    for name in options.stores.split(","):
        claims, sides = await make_sides(name, connection, folder, weed)
        for in_flight in map(int, options.in_flight.split(",")):
            await compare(name, sides, in_flight, options)
        await claims.close()
    await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stores", default="folder,s3", help="of folder, folder-nosync, s3")
    parser.add_argument("--in-flight", default="1,4,8", help="payloads at a time")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=48, help="payloads of each round")
    parser.add_argument("--folder", default=None, help="where the folders are (default: a temporary folder)")
    parser.add_argument("--compression", action="store_true", help="measure compressors instead of stores")
    chosen = parser.parse_args()
    if chosen.compression:
        uvloop.run(compare_codecs(chosen.rounds))
        sys.exit()
    place = Path(tempfile.mkdtemp(prefix="claims-bench-", dir=chosen.folder))
    running = Weed() if "s3" in chosen.stores else None
    try:
        with run_nats_server() as address:
            uvloop.run(main(chosen, address, place, running))
    finally:
        if running:
            running.close()
        shutil.rmtree(place, ignore_errors=True)
