"""Claims in the image: `--claims` collects them, in a folder and in an S3 bucket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from unittest import mock

from claims.object_stores import Weed
from headrace.claims import Claims, load
from headrace.client import connect
from image.build import Image
from image.container import HOST_ADDRESS, Container, Mount, RunOptions, running

READY = "Server is ready"
CONFIG = """
namespace: scans
claim_check:
  backend: {backend}
  threshold: 65536
  ttl:
    max_age: 600
    retention_after_read: 0
    grace_period: 60
  store: {store}
"""
#: Publishes and reads one claim in the container, with what the image has installed.
PROGRAM = """
import asyncio
from headrace.claims import Claims, load
from headrace.client import connect

async def main():
    async with await connect("nats://127.0.0.1:4222") as nc:
        plain = nc.jetstream()
        await plain.add_stream(name="SCANS", subjects=["scans.>"], allow_msg_ttl=True)
        async with await Claims.open(nc, load("/etc/headrace/claims.yaml")) as claims:
            js = claims.wrap(plain)
            await js.publish("scans.1", b"pixel" * 100_000)
            async with js.consume("SCANS", "viewer") as messages:
                async for message in messages:
                    print(len(message.data))
                    await message.ack()
                    break

asyncio.run(main())
"""


def run_with_claims(volume: str, config: Path, **environment: str) -> RunOptions:
    return RunOptions(
        arguments=["-c", "/etc/headrace/headrace.conf", "--claims", "/etc/headrace/claims.yaml"],
        mounts=[Mount(volume, "/data"), Mount(str(config), "/etc/headrace/claims.yaml", "ro")],
        environment=environment,
        read_only=True,
    )


def write_config(folder: Path, backend: str, store: str) -> Path:
    path = folder / "claims.yaml"
    path.write_text(CONFIG.format(backend=backend, store=store))
    return path


async def publish_and_read(container: Container, config: Path) -> int:
    """Publish and read one claim from outside the container; return the size of its payload."""
    async with await connect(container.url) as nc:
        plain = nc.jetstream()
        await plain.add_stream(name="SCANS", subjects=["scans.>"], allow_msg_ttl=True)
        async with await Claims.open(nc, load(config)) as claims:
            js = claims.wrap(plain)
            await js.publish("scans.1", b"pixel" * 100_000)
            async with js.consume("SCANS", "viewer") as messages:
                async for message in messages:
                    await message.ack()
                    return len(message.data)
    raise AssertionError("no message")


async def wait_until_collects(container: Container) -> None:
    async with asyncio.timeout(30):
        while 'claim_check_live_claims{namespace="scans"}' not in container.get("/metrics")[1]:
            await asyncio.sleep(0.05)


async def test_claims_in_a_folder_of_the_volume(image: Image, volume: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, "folder", "{ path: /data/claims }")
    with running(image, tmp_path, run_with_claims(volume, config)) as container:
        container.wait_for(READY)
        done = container.execute("python", "-c", PROGRAM)
        assert (done.stdout, done.returncode) == ("500000\n", 0), done.stderr
        assert (Path(volume) / "claims").is_dir()
        await wait_until_collects(container)
        assert container.execute("headrace", "claims", "stats").returncode == 0
        assert container.stop() == 0


async def test_claims_in_a_bucket(image: Image, volume: str, tmp_path: Path, weed: Weed) -> None:
    endpoint = f"http://{HOST_ADDRESS}:{weed.ports['s3.port']}"
    config = write_config(tmp_path, "s3", f"{{ endpoint: '{endpoint}' }}")
    keys = {f"AWS_{name.upper()}": value for name, value in weed.KEYS.items()}
    with running(image, tmp_path, run_with_claims(volume, config, **keys)) as container:
        container.wait_for(READY)
        with mock.patch.dict(os.environ, keys):
            assert await publish_and_read(container, config) == 500_000
        await wait_until_collects(container)
        done = container.execute("headrace", "claims", "stats", "--json")
        assert '"namespace": "scans"' in done.stdout, done.stderr
        assert container.stop() == 0
