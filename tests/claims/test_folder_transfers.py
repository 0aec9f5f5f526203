"""A folder store hashes payloads in its threads: what was promised is durable, and failures leave nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness
from headrace.claims import ChecksumMismatch, FolderStore, StoreUnavailable
from headrace.claims.stores import StaticAttributes, folder
from headrace.claims.stores.synced_folders import FolderHandle

NO_SPACE = OSError(28, "No space left on device")


class PatchedOs:
    """The module `os` for the folder store only, because the server may run in this process."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


async def count_messages(world: ClaimsHarness, stream: str) -> int:
    return int((await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"])


async def test_a_reference_is_published_only_after_its_object_is_durable(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await world.stream()
    claims = await world.claims(objects=FolderStore(world.folder, "claims", sync=True))
    may_sync = threading.Event()

    def sync_when_allowed(descriptor: int) -> None:
        assert may_sync.wait(TIMEOUT_S)
        os.fdatasync(descriptor)

    monkeypatch.setattr(folder, "sync_data", sync_when_allowed)
    publishing = asyncio.create_task(claims.producer.publish(f"{stream}.a", LARGE))
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := [entry async for page in claims.registry.scan(world.name) for entry in page]):
            await asyncio.sleep(0.01)
    assert not await claims.store.exists(found[0].object_key)
    assert await count_messages(world, stream) == 0
    may_sync.set()
    published = await publishing
    assert published.reference is not None
    assert published.reference.checksum == hashlib.sha256(LARGE).hexdigest()
    info = await claims.store.head(found[0].object_key)
    assert info.metadata["prism-checksum"] == published.reference.checksum
    assert info.metadata["prism-original-size"] == str(len(LARGE))
    assert await count_messages(world, stream) == 1


async def test_a_name_appears_after_its_content_is_durable_and_is_durable_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that makes an object complete or absent after a power loss."""
    steps: list[str] = []
    store = FolderStore(tmp_path, "b", sync=True)
    await store.ensure_bucket()
    sync_folder = FolderHandle.sync

    def record(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def work(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            steps.append(name)
            return result

        return work

    replaced = {name: record(name, getattr(os, name)) for name in ("write", "setxattr", "link")}
    monkeypatch.setattr(folder, "os", PatchedOs(**replaced))
    monkeypatch.setattr(folder, "sync_data", record("sync_data", folder.sync_data))
    monkeypatch.setattr(FolderHandle, "sync", record("sync_folder", sync_folder))
    await store.put("ns/topic/2026013112/one", b"one", StaticAttributes())
    assert steps == ["write", "setxattr", "sync_data", "link", *["sync_folder"] * 4]
    steps.clear()
    await store.put("ns/topic/2026013112/two", b"two", StaticAttributes())
    assert steps == ["write", "setxattr", "sync_data", "link", "sync_folder"]


async def test_an_upload_needs_only_one_thread(world: ClaimsHarness) -> None:
    """The thread that writes waits for the checksum, but never for a thread that cannot start."""
    stream = await world.stream()
    await world.consumer(stream, "c")
    claims = await world.claims(objects=FolderStore(world.folder, "claims", sync=True))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as single:
        loop.set_default_executor(single)
        async with asyncio.timeout(TIMEOUT_S):
            uploads = [claims.producer.publish(f"{stream}.a", LARGE) for _ in range(4)]
            published = await asyncio.gather(*uploads)
            assert {each.reference.checksum for each in published if each.reference} == {
                hashlib.sha256(LARGE).hexdigest()
            }
            assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE
        loop.set_default_executor(ThreadPoolExecutor())


class SecondJobFirst(ThreadPoolExecutor):
    """Starts its first job after the second one has ended, as a busy machine may do."""

    def __init__(self) -> None:
        super().__init__(2)
        self._jobs = 0
        self._second_ended = threading.Event()

    def submit(self, job: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self._jobs += 1
        number = self._jobs

        def run() -> Any:
            if number == 1:
                assert self._second_ended.wait(TIMEOUT_S)
            try:
                return job(*arguments, **options)
            finally:
                if number == 2:
                    self._second_ended.set()

        return super().submit(run)


async def test_an_upload_whose_writer_hashes_is_registered(world: ClaimsHarness) -> None:
    """The thread that should hash comes too late: the one that writes hashes, and ends first."""
    stream = await world.stream()
    claims = await world.claims(objects=FolderStore(world.folder, "claims", sync=False))
    await claims.producer.publish(f"{stream}.a", LARGE)  # makes folders and connections
    loop = asyncio.get_running_loop()
    with SecondJobFirst() as executor:
        loop.set_default_executor(executor)
        async with asyncio.timeout(TIMEOUT_S):
            published = await claims.producer.publish(f"{stream}.a", LARGE)
        loop.set_default_executor(ThreadPoolExecutor())
    assert published.reference is not None
    assert published.reference.checksum == hashlib.sha256(LARGE).hexdigest()
    assert len([entry async for page in claims.registry.scan(world.name) for entry in page]) == 2


async def test_a_cancelled_upload_leaves_no_thread_waiting(world: ClaimsHarness) -> None:
    """Neither its hashing nor its writing has started when it is cancelled."""
    stream = await world.stream()
    claims = await world.claims(objects=FolderStore(world.folder, "claims", sync=True))
    loop, may_go_on = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as single:
        loop.set_default_executor(single)
        blocked = loop.run_in_executor(None, may_go_on.wait, TIMEOUT_S)
        uploads = [asyncio.create_task(claims.producer.publish(f"{stream}.a", LARGE)) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        for upload in uploads:
            upload.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        may_go_on.set()
        async with asyncio.timeout(TIMEOUT_S):
            await blocked
            await claims.producer.publish(f"{stream}.a", LARGE)
        loop.set_default_executor(ThreadPoolExecutor())
    assert await count_messages(world, stream) == 1
    assert await claims.store.uploads() == []


@pytest.mark.parametrize("name", ["write", "sync_data", "link"])
async def test_a_write_that_fails_leaves_neither_object_nor_record(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before the checksum is known, while the record is stored, and at the end."""
    stream = await world.stream()
    claims = await world.claims(objects=FolderStore(world.folder, "claims", sync=True))

    def fail(*_: Any, **__: Any) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patch:
        if name == "sync_data":
            patch.setattr(folder, name, fail)
        else:
            patch.setattr(folder, "os", PatchedOs(**{name: fail}))
        with pytest.raises(StoreUnavailable, match="No space left"):
            await claims.producer.publish(f"{stream}.a", LARGE)
    assert [entry async for page in claims.registry.scan(world.name) for entry in page] == []
    assert [page async for page in claims.store.list(f"{world.name}/")] == []
    assert await claims.store.uploads() == []
    assert await count_messages(world, stream) == 0
    await claims.producer.publish(f"{stream}.a", LARGE)


@pytest.mark.parametrize("size", [100_000, 5 * 1024 * 1024])
async def test_a_changed_file_is_never_returned(world: ClaimsHarness, size: int) -> None:
    """In one piece, which one thread reads and hashes, and in several."""
    stream = await world.stream()
    await world.consumer(stream, "c")
    claims = await world.claims()
    payload = os.urandom(size)
    published = await claims.producer.publish(f"{stream}.a", payload)
    assert published.reference is not None
    message = await world.next(stream, "c")
    assert (await claims.consumer.read(message)).data == payload
    path = world.folder / claims.config.bucket / published.reference.object_key
    path.write_bytes(payload[:-1] + bytes([payload[-1] ^ 1]))
    with pytest.raises(ChecksumMismatch):
        await claims.consumer.read(message)


async def test_a_reader_that_stops_closes_the_file(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "b", sync=False)
    await store.ensure_bucket()
    await store.put("n/key", bytes(5 * 1024 * 1024), StaticAttributes())
    chunks: Any = await store.get("n/key")
    await anext(chunks)
    file = chunks._file
    assert not file.closed
    del chunks
    async with asyncio.timeout(TIMEOUT_S):
        while not file.closed:  # the thread that has read may still hold its last reference for a moment
            await asyncio.sleep(0.001)
