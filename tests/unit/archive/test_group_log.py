"""The log of an archive: what a refused create means, the floor, and the end of the log."""

from __future__ import annotations

import msgspec
import pytest

from headrace.archive.archive_verify import verify_archive
from headrace.archive.group_log import FLOOR_KEY, GroupLog, LogFloor
from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord, LogRecord, ObjectRef
from headrace.backup.target import BackupTarget
from headrace.claims.stores import Attributes, Chunk, MemoryStore, ObjectAlreadyExists, ObjectStoreError
from headrace.errors import ArchiveDamaged, ArchiveFenced, BackupError
from support.archives import SERVER, FrameSource, make_target, make_writer


class ScriptedStore(MemoryStore):
    """The first puts end as the script says."""

    def __init__(self, *script: str) -> None:
        super().__init__("archive")
        self.script = list(script)

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        step = self.script.pop(0) if self.script and not replace else ""
        if step == "conflict":
            raise ObjectAlreadyExists("conflict")
        await super().put(key, data, attributes, replace=replace)
        if step == "lost":
            raise ObjectStoreError("no reply")


async def test_own_bytes_after_a_lost_reply_are_a_success() -> None:
    log = GroupLog(await make_target(ScriptedStore("lost")), SERVER)
    with pytest.raises(ObjectStoreError):
        await log.create(1, b"own")
    await log.create(1, b"own")


async def test_other_bytes_fence() -> None:
    log = GroupLog(await make_target(), SERVER)
    await log.create(1, b"other")
    with pytest.raises(ArchiveFenced, match="another server"):
        await log.create(1, b"own")


async def test_a_conflict_without_an_object_is_retried() -> None:
    target = await make_target(ScriptedStore("conflict"))
    await GroupLog(target, SERVER).create(1, b"own")
    assert await target.read_any("log/0000000000000001") == b"own"


async def test_a_number_below_the_floor_fences_although_it_is_free() -> None:
    log = GroupLog(await make_target(), SERVER)
    for number in range(1, 6):
        await log.create(number, b"%d" % number)
    assert await log.trim(3) == 3
    with pytest.raises(ArchiveFenced, match="below the floor 3"):
        await log.create(2, b"late")
    assert await log.find_last() == 5
    assert await log.read_floor() == LogFloor(3, 3)
    assert await log.trim(2) == 0


@pytest.mark.parametrize("last", [0, 1, 2, 3, 7, 8, 9, 100])
async def test_the_end_is_found_by_probing(last: int) -> None:
    target = await make_target()
    log = GroupLog(target, SERVER)
    for number in range(1, last + 1):
        await log.create(number, b"x")
    assert await log.find_last() == last


async def write_groups(target: BackupTarget, count: int) -> FrameSource:
    """Write an opening group and as many with a frame."""
    source = FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    for _ in range(count):
        source.add()
        await writer.send_group()
    return source


async def add_base(target: BackupTarget, group: int) -> None:
    """Add the record of a base that continues a group."""

    async def make() -> LogRecord:
        index = ObjectRef("", 0, "")
        return BackupRecord("b", 1, "", "", index, 0, 0, 0, 0, 0, moment_ns=1, epoch=1, group=group)

    await (await BackupLog.load(target.open_folder("base"))).append(make)


async def test_a_group_that_is_missing_is_not_the_end_of_the_log() -> None:
    target = await make_target()
    source = await write_groups(target, 40)
    await target.delete(["log/000000000000001f"])  # one that a search for the end probes
    with pytest.raises(ArchiveDamaged, match="group 31 of memory is missing: group 41 exists"):
        await GroupLog(target, SERVER).find_last()
    with pytest.raises(ArchiveDamaged, match="group 31"):
        await make_writer(target, source, "w2").take_over({"w1", "w2"}, {77: source.frame})
    assert (await verify_archive(target, SERVER)).problems == ["group 31 is missing"]


async def test_groups_that_a_base_continues_are_missed() -> None:
    target = await make_target()
    await write_groups(target, 3)
    await add_base(target, 9)
    problems = (await verify_archive(target, SERVER)).problems
    assert "groups 5 to 9 are missing: a base continues group 9" in problems


async def test_a_floor_that_was_lowered_does_not_prevent_a_start() -> None:
    target = await make_target()
    source = await write_groups(target, 60)
    log = GroupLog(target, SERVER)
    await add_base(target, 50)
    await log.trim(50)
    # A trimmer that was suspended before it wrote this floor.
    await target.replace(FLOOR_KEY, msgspec.json.encode(LogFloor(20, 20)))
    assert await log.find_last() == 61
    writer = make_writer(target, source, "w2")
    await writer.take_over({"w1", "w2"}, {77: source.frame})
    assert (writer.progress.epoch, writer.progress.group) == (2, 62)
    await log.trim(50)
    assert await log.read_floor() == LogFloor(50, 50)


class SuspendedTrimmer(MemoryStore):
    """Another trimmer raises the floor after this one has read it."""

    def __init__(self) -> None:
        super().__init__("archive")
        self.other = 0

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        number, self.other = self.other, 0
        if number:
            await GroupLog(await make_target(self), SERVER).trim(number)
        await super().put_version(key, data, version)


async def test_a_trimmer_that_was_suspended_does_not_lower_the_floor() -> None:
    """Otherwise a number that was dropped could be created again, and acknowledged."""
    store = SuspendedTrimmer()
    log = GroupLog(await make_target(store), SERVER)
    for number in range(1, 11):
        await log.create(number, b"%d" % number)
    await log.trim(2)
    store.other = 8
    assert await log.trim(4) == 0
    assert await log.read_floor() == LogFloor(8, 8)
    with pytest.raises(ArchiveFenced, match="below the floor 8"):
        await log.create(5, b"late")


async def test_a_log_without_a_group_above_its_floor_is_an_error() -> None:
    target = await make_target()
    await target.replace(FLOOR_KEY, msgspec.json.encode(LogFloor(20, 20)))
    with pytest.raises(ArchiveDamaged, match="no group above its floor 20"):
        await make_writer(target, FrameSource(), "w1").take_over({"w1"}, {})


async def test_a_server_that_was_replaced_does_not_trim() -> None:
    target = await make_target()
    source = FrameSource()
    first = make_writer(target, source, "w1")
    await first.take_over({"w1"}, {})
    await make_writer(target, source, "w2").take_over({"w1", "w2"}, {})
    with pytest.raises(ArchiveFenced, match="another server"):
        await first.trim()


class LikeNats(MemoryStore):
    """Never uses a number of the log again."""

    last = 0

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        name = key.partition("/log/")[2]
        if name and name != "floor":
            if int(name, 16) != self.last + 1:
                raise ObjectAlreadyExists(key)
            self.last += 1
        await super().put(key, data, attributes, replace=replace)


async def test_a_number_that_was_dropped_and_is_not_free_again_fences() -> None:
    """The former leader wakes after its successor has gone on and trimmed; it must not retry forever."""
    log = GroupLog(await make_target(LikeNats("archive")), SERVER)
    for number in range(1, 11):
        await log.create(number, b"%d" % number)
    await log.trim(8)
    with pytest.raises(ArchiveFenced, match="below the floor 8"):
        await log.create(7, b"late")
    with pytest.raises(BackupError, match="refuses to create"):
        await log.create(12, b"a gap: no other server has written it")


async def test_an_idle_server_that_was_replaced_is_fenced_after_a_trim() -> None:
    target, source = await make_target(), FrameSource()
    first, second = make_writer(target, source, "w1"), make_writer(target, source, "w2")
    await first.take_over({"w1"}, {})
    await first.check_fence()
    await second.take_over({"w1", "w2"}, {})
    for _ in range(2):
        source.add()
        await second.send_group()
    await GroupLog(target, SERVER).trim(2)
    with pytest.raises(ArchiveFenced, match="below the floor 2"):
        await first.check_fence()
