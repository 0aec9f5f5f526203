"""Bases of an archive: the requests of a start and of trims, damaged records, and errors while one is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.archive.archive_bases import ArchiveBases
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import GroupWriter
from headrace.archive.trimming import HOUR_NS
from headrace.backup import request_repeater
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import CONCURRENCY, ArchivePoint
from headrace.backup.needed_files import NeededFile, NeededFiles
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.records import CHUNK_BYTES, BackupRecord
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.claims.stores import Attributes, Chunk, MemoryStore, ObjectInfo, ObjectStoreError
from headrace.errors import ArchiveFenced, BackupDamaged
from support.archives import SERVER, STORE, FrameSource, make_target, make_writer
from support.store_backups import MemoryFiles


class CountingStore(MemoryStore):
    """Counts requests; puts after the first `fails_after` ones fail once."""

    def __init__(self) -> None:
        super().__init__("archive")
        self.gets: list[str] = []
        self.lists: list[str] = []

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        self.gets.append(key)
        return await super().get(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        self.lists.append(prefix)
        async for page in super().list(prefix, start_after):
            yield page

    def reset(self) -> None:
        self.gets.clear()
        self.lists.clear()

    def damage(self, key: str) -> None:
        self._objects[key] = (b"damaged", self._objects[key][1])


def make_needed(content: dict[str, bytes], lineage: str = "a") -> list[NeededFiles]:
    source = SourceStore("$G", "headrace", MemoryFiles(content), lineage, 1, 1, (lineage,))
    files = [NeededFile(path, len(data), len(data), path) for path, data in content.items()]
    return [NeededFiles(source, STORE, 1, 1, files, 1)]


async def announce_bases(writer: GroupWriter, count: int) -> None:
    for _ in range(count):
        await writer.make_base()
        await writer.send_group()


async def open_archive(store: MemoryStore, bases: int) -> tuple[BackupTarget, FrameSource, GroupWriter]:
    """Return an archive whose first epoch has some bases."""
    target, source = await make_target(store), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {STORE: 0})
    await writer.send_group()
    await announce_bases(writer, bases)
    return target, source, writer


async def count_start(bases: int) -> tuple[int, list[str]]:
    """Return how many objects a start reads, and what it lists, in an archive with some bases."""
    store = CountingStore()
    target, source, _ = await open_archive(store, bases)
    store.reset()
    writer = make_writer(target, source, "w2")
    await writer.take_over({"w1", "w2"}, {STORE: 0})
    taken_over = len(store.gets)
    store.lists.clear()
    await writer.make_base()
    return len(store.gets) - taken_over, store.lists


async def test_a_start_reads_as_much_with_many_bases_as_with_few() -> None:
    few, many = await count_start(3), await count_start(60)
    assert few == many
    assert many[0] < 10
    assert many[1] == []


async def test_bases_of_one_process_read_only_what_is_new() -> None:
    store = CountingStore()
    _, _, writer = await open_archive(store, 40)
    store.reset()
    await announce_bases(writer, 1)
    assert len([key for key in store.gets if "/base/log/" in key]) == 1, "whether there is a newer record"
    assert store.lists == []


async def test_a_trim_reads_each_index_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    target, source, _ = await open_archive(store, 30)
    writer = make_writer(target, source, "w2")
    now_ns = 1
    writer._now_ns = lambda: now_ns
    await writer.take_over({"w1", "w2"}, {STORE: 0})
    await writer.send_group()
    read = []
    read_index = BackupLog.read_index

    async def count(log: BackupLog, record: BackupRecord) -> object:
        read.append(record.id)
        return await read_index(log, record)

    monkeypatch.setattr(BackupLog, "read_index", count)
    counts = []
    for _ in range(4):
        now_ns += 8 * 86400 * 10**9
        await announce_bases(writer, 2)
        read.clear()
        await writer.trim()
        counts.append(len(read))
    assert counts[0] == 32, "all bases, once"
    assert counts[1:] == [4, 4, 4], "those dropped, and those that are new"
    log = await BackupLog.load(target.open_folder("base"))
    records = [record for _, record in log.list_backups()]
    assert not (await verify_backups(target.open_folder("base"), log, records)).problems


async def test_an_old_record_that_is_damaged_does_not_prevent_a_start() -> None:
    store = CountingStore()
    target, source, _ = await open_archive(store, 5)
    store.damage(f"{SERVER:016x}/base/log/{2:016x}")
    writer = make_writer(target, source, "w2")
    now_ns = 1
    writer._now_ns = lambda: now_ns
    await writer.take_over({"w1", "w2"}, {STORE: 0})
    await announce_bases(writer, 1)
    now_ns += 8 * 86400 * 10**9
    await announce_bases(writer, 1)
    await writer.trim()
    log = await BackupLog.load(target.open_folder("base"))
    assert len(log.list_backups()) == 2, "the newest one before the window, and that after it"


async def test_a_damaged_record_inside_the_window_postpones_a_trim() -> None:
    store = CountingStore()
    target, source, writer = await open_archive(store, 3)
    now_ns = 1 + 8 * 86400 * 10**9
    writer._now_ns = lambda: now_ns
    await announce_bases(writer, 3)
    store.damage(f"{SERVER:016x}/base/log/{5:016x}")
    other = make_writer(target, source, "w2")
    other._now_ns = lambda: now_ns
    await other.take_over({"w1", "w2"}, {STORE: 0})
    await announce_bases(other, 1)
    with pytest.raises(BackupDamaged, match="5"):
        await other.trim()
    now_ns += 8 * 86400 * 10**9
    await announce_bases(other, 1)
    await other.trim()
    assert len((await BackupLog.load(target.open_folder("base"))).list_backups()) == 2


@pytest.mark.parametrize("is_index", [False, True])
async def test_the_newest_base_may_be_damaged_at_a_start(is_index: bool) -> None:
    """Everything is sent again: a record that cannot be read may be a prune."""
    store, content = CountingStore(), {"streams/1": b"x" * 100}
    target = await make_target(store)
    bases = ArchiveBases(target, "")
    await bases.make(make_needed(content), ArchivePoint(1, 1, 1), 0)
    ((_, record),) = (await BackupLog.load(target.open_folder("base"))).list_backups()
    store.damage(f"{SERVER:016x}/base/{record.index.key if is_index else f'log/{1:016x}'}")
    again = ArchiveBases(target, "")
    assert await again.make(make_needed(content), ArchivePoint(2, 2, 2), 1) == 2
    assert again.sent_bytes == 100
    log = await BackupLog.load(target.open_folder("base"), is_lenient=True)
    records = [record for number, record in log.list_backups() if number == 2]
    assert not (await verify_backups(target.open_folder("base"), log, records)).problems


class FailingStore(CountingStore):
    """Refuses objects of bases after some bytes."""

    left_bytes = 1 << 60

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        if "/objects/" in key:
            self.left_bytes -= len(data)
            if self.left_bytes < 0:
                raise ObjectStoreError("503 Slow Down")
        await super().put(key, data, attributes, replace=replace)


async def test_a_base_that_failed_continues_with_what_was_sent() -> None:
    store = FailingStore()
    target = await make_target(store)
    await ArchiveBases(target, "").make(make_needed({"streams/0": b"0"}), ArchivePoint(1, 1, 1), 0)
    bases = ArchiveBases(target, "")
    size = 2 * CONCURRENCY
    content = {f"streams/{n}": bytes([n]) * CHUNK_BYTES for n in range(size)}
    store.left_bytes = CONCURRENCY * CHUNK_BYTES
    with pytest.raises(ObjectStoreError):
        await bases.make(make_needed(content), ArchivePoint(2, 1, 2), 1)
    assert bases.sent_bytes == CONCURRENCY * CHUNK_BYTES
    store.left_bytes = 1 << 60
    await bases.make(make_needed(content), ArchivePoint(2, 1, 2), 1)
    assert bases.sent_bytes == size * CHUNK_BYTES


class HangingStore(CountingStore):
    """The next request of a kind is never answered."""

    hangs_at = ""

    async def _hang(self, key: str) -> None:
        if self.hangs_at and self.hangs_at in key:
            self.hangs_at = ""
            await asyncio.Event().wait()

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._hang(f"put {key}")
        await super().put(key, data, attributes, replace=replace)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        await self._hang(f"get {key}")
        return await super().get(key)


@pytest.mark.parametrize("request_name", ["put objects", "put log", "get objects", "get log"])
async def test_a_request_of_a_base_without_an_answer_is_repeated(
    request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_repeater, "REQUEST_TIMEOUT_S", 0.05)
    store = HangingStore()
    target = await make_target(store)
    bases = ArchiveBases(target, "")
    await bases.make(make_needed({"streams/0": b"0"}), ArchivePoint(1, 1, 1), 0)
    method, folder = request_name.split()
    store.hangs_at = f"{method} {SERVER:016x}/base/{folder}"
    async with asyncio.timeout(60):
        assert await bases.make(make_needed({"streams/1": b"1"}), ArchivePoint(2, 1, 2), 1) == 2
    assert not store.hangs_at


async def test_old_bases_are_thinned_and_every_other_one_can_be_restored() -> None:
    """One for each hour beyond the first day; a prune names those that go, also above its floor."""
    store = CountingStore()
    target = await make_target(store)
    groups = GroupLog(target, SERVER)
    bases, content = ArchiveBases(target, ""), {"streams/0": b"0"}
    for n in range(1, 81):  # four in an hour
        content = {**content, f"streams/{n}": b"%d" % n}
        content.pop(f"streams/{n - 10}", None)
        await bases.make(make_needed(content), ArchivePoint(n * HOUR_NS // 4, 1, n), 0)
    now_ns = 34 * HOUR_NS  # the first day ends 10 hours after the first base
    assert await bases.trim(0, 0, now_ns, groups, 81) == 1
    log = await BackupLog.load(target.open_folder("base"))
    found = [record.group for _, record in log.list_backups()]
    assert found == [1, *range(4, 41, 4), *range(41, 81)]
    records = [record for _, record in log.list_backups()]
    assert not (await verify_backups(target.open_folder("base"), log, records)).problems
    names = {ref.key for record in records for ref in (await log.read_index(record)).list_objects()}
    objects = {info.key async for info in target.open_folder("base").list("objects/")}
    assert names < objects
    assert len(objects) < len(names) + len(records) + 2, "what only thinned bases had is gone"
    await bases.make(make_needed(content), ArchivePoint(now_ns, 1, 81), 0)
    await bases.trim(0, 0, now_ns + HOUR_NS, groups, 82)
    log = await BackupLog.load(target.open_folder("base"))
    assert len(log.list_backups()) == len(found) + 1 - 3


async def test_the_newest_base_stays_although_it_is_not_the_first_of_its_hour() -> None:
    target = await make_target()
    bases = ArchiveBases(target, "")
    for n in range(1, 4):
        await bases.make(make_needed({"streams/0": b"0"}), ArchivePoint(n, 1, n), 0)
    await bases.trim(0, 0, 100 * HOUR_NS, GroupLog(target, SERVER), 5)
    log = await BackupLog.load(target.open_folder("base"))
    assert [record.group for _, record in log.list_backups()] == [1, 3]


async def test_a_server_that_was_replaced_and_trimmed_does_not_trim() -> None:
    """Its successor has gone on, and dropped the group that would show it."""
    target, source, first = await open_archive(MemoryStore("archive"), 1)
    second = make_writer(target, source, "w2")
    await second.take_over({"w1", "w2"}, {STORE: 0})
    await announce_bases(second, 1)
    await GroupLog(target, SERVER).trim(second.progress.group - 1)
    with pytest.raises(ArchiveFenced, match="below the floor"):
        await first.trim()
