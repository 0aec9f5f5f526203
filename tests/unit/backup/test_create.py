"""Backups send what the target lacks, count only when they are complete, and survive a prune beside them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from headrace.backup import create
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import BackupRun
from headrace.backup.needed_files import NeededFile, NeededFiles, find_needed_files
from headrace.backup.pinned_stores import LocalPin, OfflineStores, SourceStore
from headrace.backup.records import BackupRecord, LogRecord
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.claims.stores import Attributes, Chunk, MemoryStore, ObjectStoreError
from headrace.errors import BackupError
from headrace.storage import FileDisk, open_store
from headrace.storage.snapshot.store_pin import StorePinPlan
from support.small_store import TINY, Ticking, commit, opened
from support.store_backups import FOLDER, MemoryFiles, back_up, fill, make_target, read, restore


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.backup.create.CHUNK_BYTES", 3000)
    monkeypatch.setattr("headrace.backup.restore.CHUNK_BYTES", 3000)


class FailingStore(MemoryStore):
    """Refuses to create objects after some."""

    puts_left = 5

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        if self.puts_left == 0:
            raise ObjectStoreError("no more")
        self.puts_left -= 1
        await super().put(key, data, attributes, replace=replace)


async def test_a_restored_store_has_what_the_store_had(tmp_path: Path) -> None:
    state = fill(tmp_path / "data")
    target = await make_target()
    record = await back_up(tmp_path / "data", target)
    assert (record.streams, record.sent_bytes > 0) == (1, True)
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == state


async def test_a_second_backup_sends_only_what_is_new(tmp_path: Path) -> None:
    fill(tmp_path / "data", rounds=6)
    target = await make_target()
    first = await back_up(tmp_path / "data", target)
    assert (await back_up(tmp_path / "data", target)).sent_bytes == 0
    state = fill(tmp_path / "data", rounds=1, start=6)
    third = await back_up(tmp_path / "data", target)
    assert 0 < third.sent_bytes < first.sent_bytes
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == state


async def test_full_sends_everything_again(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    first = await back_up(tmp_path / "data", target)
    assert (await back_up(tmp_path / "data", target, full=True)).sent_bytes == first.sent_bytes


async def test_an_interrupted_run_leaves_nothing_that_counts_and_is_resumed(tmp_path: Path) -> None:
    state = fill(tmp_path / "data")
    objects = FailingStore("backups")
    target = await make_target(objects)
    with pytest.raises(ObjectStoreError):
        await back_up(tmp_path / "data", target)
    assert (await BackupLog.load(target)).list_backups() == []
    objects.puts_left = 1_000
    record = await back_up(tmp_path / "data", target)
    assert record.sent_bytes < record.bytes
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == state


async def test_a_prune_beside_a_run_removes_nothing_that_the_run_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prune drops the backup that the run relies on, and objects that it has sent; the run sends them again."""
    fill(tmp_path / "data", rounds=4)
    target = await make_target()
    await back_up(tmp_path / "data", target)
    state = fill(tmp_path / "data", rounds=2, start=4)
    source = OfflineStores([("$G", FOLDER, tmp_path / "data" / FOLDER)])
    log = await BackupLog.load(target)
    run = BackupRun(target, log)
    make_record, attempts = run._make_record, 0

    async def prune_first(*arguments: object) -> LogRecord:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            record = await make_record(*arguments)  # type: ignore[arg-type]
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "data", copy)
            fill(copy, rounds=1, start=30)
            await back_up(copy, target)
            other = await BackupLog.load(target)
            result = await BackupRetention(target, other, 1, orphan_age_ns=-(10**12)).run()
            assert result.dropped
            return record
        return await make_record(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "_make_record", prune_first)
    await run.run([find_needed_files(each) for each in source.stores])
    source.close()
    assert attempts >= 2
    fresh = await BackupLog.load(target)
    report = await verify_backups(target, fresh, [record for _, record in fresh.list_backups()])
    assert not report.problems
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == state


async def test_a_target_of_another_server_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    target = await make_target()
    await back_up(tmp_path / "data", target)
    clock = Ticking()
    clock.now += 1_000_000  # the store's identity is the time of its creation
    store = open_store(FileDisk(tmp_path / "other" / FOLDER), clock, TINY)
    store.close()
    store.disk.close()
    with pytest.raises(BackupError, match="another server"):
        await back_up(tmp_path / "other", target, full=True)


async def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    source = OfflineStores([("$G", FOLDER, tmp_path / "data" / FOLDER)])
    needed = [find_needed_files(each) for each in source.stores]
    path = max((tmp_path / "data" / FOLDER / "streams").rglob("*.seg"))
    path.write_bytes(path.read_bytes()[:600])
    target = await make_target()
    with pytest.raises(Exception, match="shorter"):
        await BackupRun(target, await BackupLog.load(target)).run(needed)
    source.close()
    assert create.count_bytes(needed) > 0


async def back_up_pinned(root: Path, target: BackupTarget, text: bytes, token: str) -> BackupRecord:
    """Add messages to the store of a server, and back it up from a pin while the server runs."""
    folder = root / FOLDER
    with opened(folder) as store:
        log = store.logs.get("S") or store.create("S")
        for _ in range(300):
            log.append(b"s", b"", text * 20, Ticking().now_ns())
        commit(store)
        store.checkpoint()
        store.disk.drain()
        plan = StorePinPlan(store, f"{token}-0")
        for _ in plan.iter_collect():
            pass
        pin = plan.submit(token, lambda error: None)
        store.disk.drain()
        files = LocalPin(folder / "pins" / pin.name, pin.journal)
        source = SourceStore(
            "$G", FOLDER, files, pin.lineage, pin.checkpoint, pin.frame, ancestors=pin.ancestors
        )
        run = BackupRun(target, await BackupLog.load(target))
        return await run.run([find_needed_files(source)])


async def test_a_backup_of_a_disk_that_was_rolled_back_has_nothing_of_the_discarded_history(
    tmp_path: Path,
) -> None:
    data, snapshot, target = tmp_path / "data", tmp_path / "snapshot", await make_target()
    await back_up_pinned(data, target, b"common", f"{1:016x}")
    shutil.copytree(data, snapshot)
    await back_up_pinned(data, target, b"aaaaaa", f"{2:016x}")
    shutil.rmtree(data)
    shutil.copytree(snapshot, data)
    await back_up_pinned(data, target, b"bbbbbb", f"{3:016x}")
    await restore(target, tmp_path / "restored")
    assert read(tmp_path / "restored") == read(data)


async def test_chunks_of_an_ancestor_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, read_chunk = await make_target(), create._read_chunk
    sizes: list[int] = []

    def count(chunk: create._Chunk) -> tuple[bytes, str]:
        sizes.append(chunk.length)
        return read_chunk(chunk)

    monkeypatch.setattr(create, "_read_chunk", count)
    for number in range(1, 6):
        sizes.clear()
        record = await back_up_pinned(tmp_path / "data", target, b"common", f"{number:016x}")
    assert sum(sizes) < record.bytes / 2


class BlockingStore(MemoryStore):
    """Does not answer requests with large chunks before `go`; counts those that wait."""

    def __init__(self) -> None:
        super().__init__("backups")
        self.go = asyncio.Event()
        self.waiting = self.waiting_max = self.small = 0

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        if len(data) < create.LARGE_CHUNK_BYTES:
            self.small += 1
        else:
            self.waiting += 1
            self.waiting_max = max(self.waiting, self.waiting_max)
            await self.go.wait()
            self.waiting -= 1
        await super().put(key, data, attributes, replace=replace)


async def test_large_chunks_do_not_hold_up_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "LARGE_CHUNK_BYTES", 3000)
    store = BlockingStore()
    target = await make_target(store)
    large = b"".join(bytes([number]) * 3000 for number in range(4))
    content = {"streams/0": large, "streams/1": b"1", "streams/2": b"2"}
    source = SourceStore("$G", FOLDER, MemoryFiles(content), "a", 1, 1, ("a",))
    files = [NeededFile(path, len(data), len(data), path) for path, data in content.items()]
    needed = [NeededFiles(source, 1, 1, 1, files, 1)]
    run = asyncio.create_task(BackupRun(target, await BackupLog.load(target)).run(needed, 1))
    try:
        async with asyncio.timeout(60):
            while store.small < 2 or not store.waiting:
                await asyncio.sleep(0.001)
            store.go.set()
            record = await run
    finally:
        run.cancel()
    assert store.waiting_max == 1
    assert record.sent_bytes == len(large) + 2
