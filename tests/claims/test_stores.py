"""The contract of every object store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.claims.stores import (
    FolderStore,
    ObjectAlreadyExists,
    ObjectMissing,
    ObjectStoreError,
    StaticAttributes,
    VersionedFolderStore,
    synced_folders,
    versioned_folder,
)
from headrace.claims.stores.object_store import get_whole
from headrace.claims.stores.synced_folders import FolderHandle

METADATA = {"prism-namespace": "ns", "prism-checksum": "ab" * 32, "prism-created-at": "2026-01-31T12:00:00Z"}
PLAIN = StaticAttributes(METADATA)


async def all_of(store: Any, key: str) -> bytes:
    return b"".join([bytes(piece) async for piece in await store.get(key)])


async def keys(store: Any, prefix: str, start_after: str = "") -> list[str]:
    return [info.key async for page in store.list(prefix, start_after) for info in page]


async def test_an_object_comes_back_with_its_metadata(store: Any) -> None:
    await store.put("ns/topic/2026013112/one", b"hello", PLAIN)
    assert await all_of(store, "ns/topic/2026013112/one") == b"hello"
    info = await store.head("ns/topic/2026013112/one")
    assert info.size == 5
    assert dict(info.metadata) == METADATA
    assert await store.exists("ns/topic/2026013112/one")


@pytest.mark.parametrize("size", [0, 1, 2 * 1024 * 1024])
async def test_a_small_object_is_read_with_its_checksum(store: Any, size: int) -> None:
    """By stores that can do so, and only if it has the expected size."""
    data = os.urandom(size)
    await store.put("ns/a", data, PLAIN)
    expected = (data, hashlib.sha256(data).hexdigest()) if hasattr(store, "get_whole") else None
    assert await get_whole(store, "ns/a", size) == expected
    assert await get_whole(store, "ns/a", size + 1) is None
    if size:
        assert await get_whole(store, "ns/a", size - 1) is None
    if expected is not None:
        with pytest.raises(ObjectMissing, match="ns/b"):
            await get_whole(store, "ns/b", size)


async def test_an_empty_object_is_an_object(store: Any) -> None:
    await store.put("ns/t/h/empty", b"", PLAIN)
    assert await all_of(store, "ns/t/h/empty") == b""


async def test_an_object_is_not_replaced_by_accident(store: Any) -> None:
    await store.put("ns/t/h/one", b"first", PLAIN)
    with pytest.raises(ObjectAlreadyExists):
        await store.put("ns/t/h/one", b"second", PLAIN)
    assert await all_of(store, "ns/t/h/one") == b"first"
    await store.put("ns/t/h/one", b"third", PLAIN, replace=True)
    assert await all_of(store, "ns/t/h/one") == b"third"


async def test_of_many_writers_of_a_key_one_wins(store: Any) -> None:
    outcomes = await asyncio.gather(
        *(store.put("ns/t/h/race", b"%d" % number, PLAIN) for number in range(8)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 1


async def test_a_stream_of_any_size_is_stored(store: Any) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(12):
            yield bytes([number]) * 1_000_003

    await store.put_stream("ns/t/h/big", chunks(), PLAIN)
    stored = await all_of(store, "ns/t/h/big")
    assert stored == b"".join(bytes([number]) * 1_000_003 for number in range(12))
    assert (await store.head("ns/t/h/big")).size == len(stored)


async def test_a_stream_that_breaks_off_leaves_nothing(store: Any) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        raise ValueError("the source failed")

    with pytest.raises(ValueError, match="the source failed"):
        await store.put_stream("ns/t/h/broken", chunks(), PLAIN)
    assert not await store.exists("ns/t/h/broken")
    assert not list(await store.uploads())


async def test_what_is_missing_is_named(store: Any) -> None:
    with pytest.raises(ObjectMissing):
        await store.get("ns/t/h/none")
    with pytest.raises(ObjectMissing):
        await store.head("ns/t/h/none")
    assert not await store.exists("ns/t/h/none")


async def test_deleting_is_idempotent_and_takes_many(store: Any) -> None:
    names = [f"ns/t/h/{number:02}" for number in range(12)]
    for name in names:
        await store.put(name, b"x", PLAIN)
    await store.delete([*names[:6], "ns/t/h/none"])
    await store.delete(names[:6])
    assert await keys(store, "ns/t/") == names[6:]
    assert not await store.exists(names[0])


async def test_listings_are_in_order_and_can_go_on(store: Any) -> None:
    names = ["ns/a-b/h1/x", "ns/a/h1/y", "ns/a/h1/z", "ns/a/h2/w", "other/a/h/v"]
    for name in names:
        await store.put(name, b"12345", PLAIN)
    assert await keys(store, "ns/a/") == names[1:4]
    assert sorted(await keys(store, "ns/")) == sorted(names[:4])
    assert await keys(store, "ns/a/", start_after="ns/a/h1/y") == ["ns/a/h1/z", "ns/a/h2/w"]
    assert await keys(store, "nothing/") == []
    assert list(await store.prefixes("ns/")) == ["ns/a-b/", "ns/a/"]
    assert list(await store.prefixes("nothing/")) == []
    (info,) = [info async for page in store.list("other/") for info in page]
    assert info.size == 5
    assert info.modified_ns > 1_700_000_000 * 10**9


async def test_a_bucket_is_made_once_and_goes_when_it_is_empty(store: Any) -> None:
    assert await store.bucket_exists()
    await store.ensure_bucket()
    await store.delete_bucket()
    assert not await store.bucket_exists()


@pytest.mark.parametrize("key", ["../x", "a//b", "/a", "a/./b", ".headrace/x"])
async def test_a_folder_is_not_left_by_a_key(tmp_path: Any, key: str) -> None:
    store = FolderStore(tmp_path)
    await store.ensure_bucket()
    with pytest.raises(ObjectStoreError):
        await store.put(key, b"x", PLAIN)


async def test_a_cut_off_write_to_a_folder_is_found_by_its_age(tmp_path: Any) -> None:
    store = FolderStore(tmp_path)
    await store.ensure_bucket()
    part = tmp_path / "claims" / ".headrace" / "0123.part"
    part.write_bytes(b"half")
    (upload,) = await store.uploads()
    assert upload.initiated_ns == part.stat().st_mtime_ns
    await store.abort(upload)
    assert not part.exists()
    assert await keys(store, "") == []


async def test_a_folder_can_be_filled_and_emptied_at_once(tmp_path: Any) -> None:
    """A collector removes empty folders while producers put objects into them."""
    store = FolderStore(tmp_path, sync=False)
    await store.ensure_bucket()

    async def churn(name: str) -> None:
        for number in range(40):
            key = f"ns/t/h/{name}{number}"
            await store.put(key, b"x", PLAIN)
            await store.delete([key])

    await asyncio.gather(*(churn(name) for name in "abcd"))
    assert await keys(store, "") == []


async def store_with_topic(root: Path) -> tuple[FolderStore, Path]:
    """A store in which another process has just created the folders of an hour."""
    store = FolderStore(root, "claims")
    await store.ensure_bucket()
    topic = root / "claims" / "ns" / "topic"
    (topic / "2026013112").mkdir(parents=True)
    return store, topic


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were synced, in order."""
    found: list[Path] = []
    monkeypatch.setattr(FolderHandle, "sync", lambda handle: found.append(Path(handle.path)))
    return found


async def test_an_object_in_a_folder_that_another_writer_just_made_is_durable(
    tmp_path: Path, synced: list[Path]
) -> None:
    store, topic = await store_with_topic(tmp_path)
    synced.clear()
    await store.put("ns/topic/2026013112/one", b"one", PLAIN)
    assert synced == [topic / "2026013112", topic, topic.parent, topic.parent.parent]


async def test_the_name_of_a_bucket_is_durable(tmp_path: Path, synced: list[Path]) -> None:
    await FolderStore(tmp_path / "new" / "deep", "b").ensure_bucket()
    assert synced == [tmp_path / "new" / "deep", tmp_path / "new", tmp_path]
    synced.clear()
    await FolderStore(tmp_path / "new" / "deep", "b").ensure_bucket()
    assert synced == [tmp_path / "new" / "deep"]


async def test_folders_above_are_synced_once(tmp_path: Path, synced: list[Path]) -> None:
    store, topic = await store_with_topic(tmp_path)
    await store.put("ns/topic/2026013112/one", b"one", PLAIN)
    synced.clear()
    await store.put("ns/topic/2026013112/two", b"two", PLAIN)
    assert synced == [topic / "2026013112"]
    (topic / "2026013113").mkdir()
    await store.put("ns/topic/2026013113/three", b"three", PLAIN)
    assert synced[1:] == [topic / "2026013113", topic]


@pytest.mark.parametrize("is_new_topic", [False, True])
async def test_a_folder_that_was_removed_and_made_again_is_synced_again(
    tmp_path: Path, synced: list[Path], is_new_topic: bool
) -> None:
    """A collector removes empty folders, and a writer makes them again, with an inode that may be the same."""
    store, topic = await store_with_topic(tmp_path)
    await store.put("ns/topic/2026013112/one", b"one", PLAIN)
    collector = FolderStore(tmp_path, "claims")
    for number in range(20):
        await collector.delete(["ns/topic/2026013112/one"])
        assert not topic.exists()
        (topic / "2026013112").mkdir(parents=True)
        if not is_new_topic:  # also if only the last folder is new to this store
            store._synced_folders.sync(str(topic))
        synced.clear()
        await store.put("ns/topic/2026013112/one", b"%d" % number, PLAIN)
        above = [topic] if not is_new_topic else [topic, topic.parent, topic.parent.parent]
        assert synced == [topic / "2026013112", *above]


async def test_a_folder_whose_sync_failed_is_synced_with_all_above_it(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was durable before: after a failed sync nothing is known."""
    store, topic = await store_with_topic(tmp_path)
    await store.put("ns/topic/2026013112/one", b"one", PLAIN)

    def fail(_: FolderHandle) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FolderHandle, "sync", fail)
        with pytest.raises(ObjectStoreError, match="Input/output error"):
            await store.put("ns/topic/2026013112/two", b"two", PLAIN)
    synced.clear()
    await store.put("ns/topic/2026013112/three", b"three", PLAIN)
    assert synced == [topic / "2026013112", topic]


def count_open_below(folder: Path) -> int:
    """Return how many descriptors of this process lead to a folder or what is in it."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of this listing
            found += path.readlink().is_relative_to(folder)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors as Linux lists them")
async def test_folders_that_are_open_are_bounded_and_closed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "claims")
    await store.ensure_bucket()
    before = count_open_below(tmp_path)
    for number in range(synced_folders._OPEN_MAX + 10):
        await store.put(f"ns/topic{number}/2026013112/one", b"one", PLAIN)
    assert count_open_below(tmp_path) <= before + synced_folders._OPEN_MAX
    await store.close()
    assert count_open_below(tmp_path) <= before + 1


def test_azure_gets_names_that_it_allows() -> None:
    from headrace.claims.stores.azure import AzureStore

    assert AzureStore.to_vendor("prism-created-at") == "prism_created_at"
    assert AzureStore.from_vendor("prism_created_at") == "prism-created-at"


async def test_an_object_is_replaced_only_if_it_has_not_changed(store: Any, tmp_path: Path) -> None:
    if isinstance(store, FolderStore):
        store = VersionedFolderStore(tmp_path, "versions")
        await store.ensure_bucket()
    await store.put("ns/floor", b"1", PLAIN)
    data, version = await store.get_version("ns/floor")
    assert data == b"1"
    await store.put_version("ns/floor", b"2", version)
    with pytest.raises(ObjectAlreadyExists):
        await store.put_version("ns/floor", b"3", version)
    assert await all_of(store, "ns/floor") == b"2"
    with pytest.raises(ObjectMissing):
        await store.get_version("ns/none")


async def test_one_of_many_replacements_at_once_succeeds(store: Any, tmp_path: Path) -> None:
    if isinstance(store, FolderStore):
        store = VersionedFolderStore(tmp_path, "versions")
        await store.ensure_bucket()
    await store.put("ns/floor", b"0", PLAIN)
    _, version = await store.get_version("ns/floor")

    async def replace(number: int) -> bool:
        try:
            await store.put_version("ns/floor", b"%d" % number, version)
            return True
        except ObjectStoreError:  # it may also report that it was busy
            return False

    won = await asyncio.gather(*(replace(number) for number in range(1, 9)))
    assert sum(won) <= 1
    stored = int(await all_of(store, "ns/floor"))
    if any(won):
        assert stored == won.index(True) + 1
    elif isinstance(store, VersionedFolderStore):
        assert stored == 0
    else:  # the reply to the one that succeeded may have been lost: it was refused when it was repeated, or gave up
        assert 0 <= stored <= 8


async def test_a_replacement_waits_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_folder, "_LOCK_TIMEOUT_S", 0.02)
    store = VersionedFolderStore(tmp_path, "versions")
    await store.ensure_bucket()
    await store.put("floor", b"1", PLAIN)
    _, version = await store.get_version("floor")
    with store._locked("floor"), pytest.raises(ObjectStoreError, match="another process is replacing it"):
        await store.put_version("floor", b"2", version)
    await store.put_version("floor", b"2", version)
