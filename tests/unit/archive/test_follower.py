"""A standby of made-up servers: which copy it takes over with, and how copies are made."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.archive import copy_builder as builder_module
from headrace.archive import follower as follower_module
from headrace.archive.follower import Follower, FollowerSettings, Takeover
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import GroupWriter
from headrace.archive.leader_record import LEADER_KEY, LeaderRecord
from headrace.archive.replica import Replica
from headrace.backup import request_repeater
from headrace.backup.backup_log import BackupLog
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.claims.stores import Attributes, Chunk, MemoryStore
from support.archives import SERVER, STORE, FrameSource, make_target, make_writer

WAIT_S = 60.0


class Report:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Standby:
    """A standby, whose leader is gone as soon as `is_leader_gone` is set."""

    def __init__(self, target: BackupTarget, home: Path) -> None:
        self.report = Report()
        self.is_leader_gone = False
        settings = FollowerSettings("memory", home, SERVER, 1000.0, self._make_record)
        self.follower = Follower(target, settings, self.report, None, self._read_clock)

    def _read_clock(self) -> float:
        return time.monotonic() + (2000.0 if self.is_leader_gone else 0.0)

    @staticmethod
    def _make_record(writer: str, epoch: int) -> LeaderRecord:
        return LeaderRecord(writer, epoch, 0, "remote", 1000.0)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[asyncio.Task[Takeover]]:
        task = asyncio.create_task(self.follower.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.follower.close()

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                await asyncio.sleep(0.01)

    async def wait_ready(self, group: int) -> None:
        await self.wait_until(lambda: self.is_at(group))

    def is_at(self, group: int) -> bool:
        stats = self.follower.read_stats()
        return stats.is_ready and stats.group >= group

    @property
    def epoch(self) -> int:
        return self.follower.read_stats().epoch


async def announce_base(writer: GroupWriter) -> None:
    await writer.make_base()
    await writer.send_group()


async def start_leader(
    target: BackupTarget, name: str, writers: set[str], source: FrameSource | None = None
) -> GroupWriter:
    """Create an opening group, announce an opening base, and write the leader object."""
    writer = make_writer(target, source or FrameSource(), name)
    await writer.take_over(writers, {STORE: 0})
    await writer.send_group()
    await announce_base(writer)
    record = LeaderRecord(name, writer.progress.epoch, 1, "remote", 1000.0)
    await target.replace(LEADER_KEY, msgspec.json.encode(record))
    return writer


async def drop_bases(target: BackupTarget, keep: int) -> None:
    bases = target.open_folder("base")
    await BackupRetention(bases, await BackupLog.load(bases), keep).run()


def count_calls(follower: Follower, name: str, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that has an element for each call of a method from now on."""
    calls: list[None] = []
    method = getattr(follower, name)

    async def call() -> Any:
        calls.append(None)
        return await method()

    monkeypatch.setattr(follower, name, call)
    return calls


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "RETRY_S", 0.01)
    monkeypatch.setattr(builder_module, "RETRY_S", 0.05)


async def test_a_copy_of_an_older_epoch_does_not_take_over_when_the_announced_base_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has announced a base, made a newer one, dropped the announced one, and died."""
    target = await make_target()
    await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(2)
        may_build = asyncio.Event()
        make_replica = builder_module.make_replica

        async def make_slowly(*arguments: Any) -> Any:
            await may_build.wait()
            return await make_replica(*arguments)

        monkeypatch.setattr(builder_module, "make_replica", make_slowly)
        leader = await start_leader(target, "b", {"a", "b"})
        await standby.wait_ready(leader.progress.group)
        assert standby.epoch == 1
        await leader.make_base()
        await drop_bases(target, 1)
        attempts = count_calls(standby.follower, "_take_over", monkeypatch)
        standby.is_leader_gone = True
        await standby.wait_until(lambda: len(attempts) >= 3 or task.done())
        assert not task.done(), "it has claimed the archive with a copy of epoch 1"
        may_build.set()
        async with asyncio.timeout(WAIT_S):
            takeover = await task
    assert standby.epoch == 2
    assert takeover.record.epoch == 3


async def test_a_copy_that_lacks_an_epoch_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby is restarted after it has read the announcement of a base that is not there any more."""
    target = await make_target()
    await start_leader(target, "a", {"a"})
    first = Standby(target, tmp_path)

    async def fail(*arguments: Any) -> Any:
        raise OSError("the store is slow")

    async with first.run():
        await first.wait_ready(2)
        monkeypatch.setattr(builder_module, "make_replica", fail)
        monkeypatch.setattr(follower_module, "SYNC_S", 0.0)
        leader = await start_leader(target, "b", {"a", "b"})
        await first.wait_ready(leader.progress.group)
        await first.wait_until(lambda: first.follower._replica.position.group == leader.progress.group)  # type: ignore[union-attr]
    monkeypatch.undo()
    await leader.make_base()
    await drop_bases(target, 1)
    second = Standby(target, tmp_path)
    async with second.run() as task:
        await second.wait_ready(leader.progress.group)
        assert second.epoch == 1
        await second.follower._observe_leader()
        second.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            await task
    assert second.epoch == 2


async def test_an_epoch_without_a_base_does_not_delay_a_takeover(tmp_path: Path) -> None:
    """Its server has acknowledged nothing: the copy of the epoch before it has everything."""
    target = await make_target()
    await start_leader(target, "a", {"a"})
    await make_writer(target, FrameSource(), "b").take_over({"a", "b"}, {STORE: 0})
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(3)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            takeover = await task
    assert (standby.epoch, takeover.record.epoch, takeover.group) == (1, 3, 3)


@pytest.mark.parametrize("is_same", [False, True])
async def test_what_an_interrupted_restore_left_does_not_matter(tmp_path: Path, is_same: bool) -> None:
    target = await make_target()
    await start_leader(target, "a", {"a"})
    ((_, record),) = (await BackupLog.load(target.open_folder("base"))).list_backups()
    folder = tmp_path / "standby" / "00000001"
    folder.mkdir(parents=True)
    (folder / "headrace-restore").write_text(f"{record.id if is_same else 'another'} copying")
    standby = Standby(target, tmp_path)
    async with standby.run():
        await standby.wait_ready(2)
    assert standby.report.warnings == []


async def test_the_time_of_a_claim_is_that_of_the_newest_group_at_least(tmp_path: Path) -> None:
    target = await make_target()
    leader = await start_leader(target, "a", {"a"})
    leader._now_ns = lambda: 1 << 62
    await announce_base(leader)
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(3)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            takeover = await task
    assert takeover.time_ns == 1 << 62
    claim = await GroupLog(target, SERVER).read(takeover.group + 1)
    assert claim is not None
    assert claim.header.time_ns == 1 << 62


class FaultyStore(MemoryStore):
    """Objects can be damaged; the next request for a key may be unanswered, or have something happen before it."""

    def __init__(self) -> None:
        super().__init__("archive")
        self.hangs_at = ""
        self.before_version: list[Callable[[], None]] = []

    def set_data(self, key: str, data: bytes) -> None:
        key = f"{SERVER:016x}/{key}"
        self._objects[key] = (data, self._objects[key][1])

    async def _hang(self, key: str) -> None:
        if self.hangs_at and key.endswith(self.hangs_at):
            self.hangs_at = ""
            await asyncio.Event().wait()

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._hang(f"put {key}")
        await super().put(key, data, attributes, replace=replace)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        await self._hang(f"get {key}")
        return await super().get(key)

    async def get_version(self, key: str) -> tuple[bytes, str]:
        if self.before_version:
            self.before_version.pop()()
        await self._hang(f"get version {key}")
        return await super().get_version(key)


async def damage_newest_base(target: BackupTarget, store: FaultyStore) -> None:
    log = await BackupLog.load(target.open_folder("base"))
    store.set_data(f"base/{log.find('latest')[1].index.key}", b"damaged")


async def test_a_newer_base_that_is_damaged_does_not_end_the_copy(tmp_path: Path) -> None:
    store = FaultyStore()
    target = await make_target(store)
    leader = await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(leader.progress.group)
        present = standby.follower._replica
        await leader.make_base()
        await damage_newest_base(target, store)
        await leader.send_group()
        await standby.wait_until(lambda: "damaged" in standby.follower.read_stats().error)
        await standby.wait_ready(leader.progress.group)
        assert standby.follower._replica is present
        await announce_base(leader)
        await standby.wait_until(lambda: standby.follower.read_stats().base_group == 3)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            await task


async def test_a_standby_begins_with_the_base_before_a_damaged_one(tmp_path: Path) -> None:
    store = FaultyStore()
    target = await make_target(store)
    await start_leader(target, "a", {"a"})
    leader = await start_leader(target, "b", {"a", "b"})
    await announce_base(leader)
    await damage_newest_base(target, store)
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(leader.progress.group)
        assert (standby.epoch, standby.follower.read_stats().base_group) == (2, 2)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            await task


async def test_a_copy_of_an_older_epoch_is_replaced_by_a_base_before_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore()
    target = await make_target(store)
    await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    async with standby.run():
        await standby.wait_ready(2)
    leader = await start_leader(target, "b", {"a", "b"})
    await announce_base(leader)
    await damage_newest_base(target, store)
    again = Standby(target, tmp_path)
    async with again.run() as task:
        await again.wait_until(lambda: again.epoch == 2)
        again.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            takeover = await task
    assert takeover.record.epoch == 3


async def test_a_full_disk_during_a_build_does_not_end_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = await make_target()
    leader = await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    make_replica = builder_module.make_replica

    async def fail(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with standby.run():
        await standby.wait_ready(leader.progress.group)
        present = standby.follower._replica
        monkeypatch.setattr(builder_module, "make_replica", fail)
        await announce_base(leader)
        await standby.wait_until(lambda: "No space left" in standby.follower.read_stats().error)
        assert standby.follower._replica is present
        monkeypatch.setattr(builder_module, "make_replica", make_replica)
        await standby.wait_until(lambda: standby.follower.read_stats().base_group == 2)
        assert standby.follower.read_stats().error == ""


async def test_a_full_disk_does_not_end_the_copy_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened again where it was synced last."""
    target, source = await make_target(), FrameSource()
    leader = await start_leader(target, "a", {"a"}, source)
    standby = Standby(target, tmp_path)
    apply, failures = Replica._apply, 0

    def fail(replica: Replica, body: bytes) -> None:
        nonlocal failures
        failures += 1
        if failures < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        apply(replica, body)

    async with standby.run():
        await standby.wait_ready(leader.progress.group)
        folder = tmp_path / "standby" / "00000001"
        inode = folder.stat().st_ino
        monkeypatch.setattr(Replica, "_apply", fail)
        source.add()
        await leader.send_group()
        await standby.wait_until(lambda: failures > 3 and standby.is_at(leader.progress.group))
        assert folder.stat().st_ino == inode
    assert any("No space left" in each for each in standby.report.warnings)


@pytest.mark.parametrize(
    "request_name",
    [
        "put {server}/log/{claim}",
        "get {server}/log/floor",
        "get version {server}/leader",
        "get {server}/log/{claim}",
    ],
)
async def test_a_request_of_a_takeover_without_an_answer_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    monkeypatch.setattr(follower_module, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(request_repeater, "REQUEST_TIMEOUT_S", 0.2)
    store = FaultyStore()
    target = await make_target(store)
    leader = await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(leader.progress.group)
        claim = f"{leader.progress.group + 1:016x}"
        store.hangs_at = request_name.format(server=f"{SERVER:016x}", claim=claim)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            await task
        assert not store.hangs_at


async def test_a_leader_that_renews_just_before_the_claim_is_not_replaced(tmp_path: Path) -> None:
    """Its lease is valid: it may still send reads, which would be older than what the standby serves."""
    store = FaultyStore()
    target = await make_target(store)
    leader = await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    renewed: list[None] = []

    def renew() -> None:
        renewed.append(None)
        record = LeaderRecord("a", 1, 1 + len(renewed), "remote", 1000.0)
        store.set_data(LEADER_KEY, msgspec.json.encode(record))

    async with standby.run() as task:
        await standby.wait_ready(leader.progress.group)
        store.before_version.append(renew)
        standby.is_leader_gone = True
        await standby.wait_until(lambda: standby.follower.read_stats().leader_age_s < 1000.0 or task.done())
        assert renewed
        assert not task.done()
        assert await GroupLog(target, SERVER).find_last() == leader.progress.group


async def test_a_takeover_makes_the_leader_object_its_own(tmp_path: Path) -> None:
    target = await make_target()
    leader = await start_leader(target, "a", {"a"})
    standby = Standby(target, tmp_path)
    async with standby.run() as task:
        await standby.wait_ready(leader.progress.group)
        standby.is_leader_gone = True
        async with asyncio.timeout(WAIT_S):
            takeover = await task
    data = await target.read_any(LEADER_KEY)
    assert msgspec.json.decode(data or b"", type=LeaderRecord) == takeover.record


async def test_a_standby_reads_as_much_with_many_bases_as_with_few(tmp_path: Path) -> None:
    counts = []
    for bases in (3, 40):
        store = CountingStore()
        target = await make_target(store)
        leader = await start_leader(target, "a", {"a"})
        for _ in range(bases):
            await announce_base(leader)
        store.reads = 0
        standby = Standby(target, tmp_path / str(bases))
        async with standby.run():
            await standby.wait_ready(leader.progress.group)
        counts.append(store.reads)
    assert counts[0] == counts[1]


class CountingStore(MemoryStore):
    """Counts reads of the log of bases."""

    reads = 0

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        self.reads += "/base/log/" in key
        return await super().get(key)
