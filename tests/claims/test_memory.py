"""Memory stays below 64 MiB for payloads of any size and origin, measured in a separate process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import ClaimsHarness

MIB = 1024 * 1024
LIMIT_MIB = 64

PROGRAM = """
import asyncio, contextlib, json, resource, sys
from pathlib import Path
import nats
from headrace.claims import ClaimConfig, Claims

facts = json.loads(sys.argv[1])
size = facts["size"]

def top():
    with open("/proc/self/status") as file:
        peaks = [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
    return (peaks or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])[0] / 1024

async def pieces():
    block = bytes(range(256)) * 4096
    for _ in range(size // len(block)):
        yield block

async def main():
    connection = await nats.connect(facts["url"], connect_timeout=60)
    config = ClaimConfig(facts["namespace"], threshold=65536, compression=facts["compression"], **facts["backend"])
    async with Claims(connection, config, timeout_s=60) as claims:
        await claims.set_up()
        subject = facts["stream"] + ".a"
        await claims.producer.publish(subject, b"x" * 100_000)  # everything is loaded and warm
        (first,) = await claims.jetstream.pull(facts["stream"], "c", 1, 60)
        await claims.consumer.read(first)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, where the kernel can do that
        before = top()
        payload = Path(facts["path"]) if facts["path"] else pieces()
        sent = await claims.producer.publish(subject, payload)
        (message,) = await claims.jetstream.pull(facts["stream"], "c", 1, 60)
        got = 0
        async for piece in claims.consumer.stream(message):
            got += len(piece)
        assert got == size == sent.reference.original_size, (got, size)
        print(json.dumps({"grown": top() - before}))
    await connection.close()

asyncio.run(main())
"""


async def grown_mib(
    world: ClaimsHarness, backend: dict[str, Any], size: int, path: str, compression: str
) -> float:
    stream = await world.stream()
    await world.consumer(stream, "c")
    facts = {
        "url": world.url,
        "namespace": world.name,
        "stream": stream,
        "backend": backend,
        "size": size,
        "path": path,
        "compression": compression,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, json.dumps(facts), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return float(json.loads(said)["grown"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read as Linux tells it")
@pytest.mark.parametrize(
    ("store", "size_mib", "source", "compression"),
    [
        ("folder", 400, "iterator", "none"),
        ("folder", 200, "file", "none"),
        ("folder", 200, "iterator", "zstd"),
        ("s3", 120, "iterator", "none"),
    ],
)
@pytest.mark.parametrize("world", ["nats-server"], indirect=True)
async def test_memory_does_not_grow_with_the_payload(
    world: ClaimsHarness,
    settings_of: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    store: str,
    size_mib: int,
    source: str,
    compression: str,
) -> None:
    backend = settings_of(store)
    if store == "folder":
        backend["store"]["sync"] = False
    path = ""
    if source == "file":
        path = str(tmp_path / "payload")
        with open(path, "wb") as file:
            for _ in range(size_mib):
                file.write(bytes(range(256)) * 4096)
    grown = await grown_mib(world, backend, size_mib * MIB, path, compression)
    assert grown < LIMIT_MIB, f"{grown:.0f} MiB for a payload of {size_mib} MiB"
