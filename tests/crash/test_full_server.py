"""A real server on a small file system of its own: filled, killed, started again, purged, used again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.servers import OURS, Server

MIB = 1 << 20
DISK_BYTES = 200 * MIB
#: Large messages go to segments at once, others through the journal.
PAYLOADS = {"large": bytes(100_000), "small": bytes(20_000)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 200 MB for the duration of a test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


def publish_to_full(client: Client, payload: bytes) -> int:
    """Publish until a message is refused for lack of space; return the last acknowledged sequence."""
    last = 0
    for _ in range(10_000):
        answer = client.request("s.x", payload).json
        if "error" in answer:
            assert answer["error"]["err_code"] == 10023, answer  # insufficient resources
            return last
        last = answer["seq"]
    raise AssertionError("the disk never was full")


def fill_up(folder: Path) -> None:
    """Fill the rest of the disk with another file."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(64 * 1024))
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x")


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("nothing_free", [False, True])
@pytest.mark.parametrize("size", PAYLOADS)
def test_filled_and_killed_it_starts_again_and_a_purge_frees_the_disk(
    small_disk: Path, size: str, nothing_free: bool
) -> None:
    payload = PAYLOADS[size]
    with Server(OURS, store_dir=small_disk / "store") as server:
        with Client(server.port) as client:
            assert "error" not in client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
            last = publish_to_full(client, payload)
        for _ in range(3):
            server.kill()
            if nothing_free:
                fill_up(small_disk)
                assert free_bytes(small_disk) == 0
            server.start()
        with Client(server.port) as client:
            state = client.api("STREAM.INFO.S")["state"]
            assert (state["messages"], state["last_seq"]) == (last, last)
            assert client.request("s.x", payload).json["error"]["err_code"] == 10023
            assert client.api("STREAM.PURGE.S")["purged"] == last
            eventually(lambda: free_bytes(small_disk) > 64 * MIB)
            eventually(lambda: "error" not in client.request("s.x", payload).json)
        server.kill()
        server.start()
        with Client(server.port) as client:
            assert client.api("STREAM.INFO.S")["state"]["first_seq"] == last + 1
