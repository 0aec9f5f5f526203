"""Writers of one archive: takeovers, fencing, parts, and who may start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.archive import group_writer
from headrace.archive.archive_restore import ArchiveRestore, RestorePoint, RestoreResult
from headrace.archive.archive_verify import verify_archive
from headrace.archive.group_format import iter_entries
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import EarlierRuns
from headrace.archive.journal_tail import FileExtent
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import CONCURRENCY
from headrace.errors import ArchiveError, ArchiveFenced
from support.archives import SERVER, STORE, FrameSource, make_target, make_writer


async def test_a_start_opens_the_next_epoch_and_frames_follow_without_a_gap() -> None:
    target, source = await make_target(), FrameSource()
    for number in (1, 2):
        writer = make_writer(target, source, f"w{number}")
        await writer.take_over({"w1", "w2"}, {STORE: source.frame})
        assert writer.progress.epoch == number
        await writer.send_group()
        source.add(3)
        assert await writer.send_group()
        assert not await writer.send_group()
        assert source.archived == {STORE: source.frame}
    headers = [(await GroupLog(target, SERVER).read(number)).header for number in range(1, 5)]  # type: ignore[union-attr]
    assert [each.epoch for each in headers] == [1, 1, 2, 2]
    assert headers[1].frames == {STORE: (1, 3)}
    assert headers[3].heads == {STORE: 6}


async def test_a_server_that_was_replaced_is_fenced() -> None:
    target, source = await make_target(), FrameSource()
    first, second = make_writer(target, source, "w1"), make_writer(target, source, "w2")
    await first.take_over({"w1"}, {STORE: 0})
    await first.send_group()
    await second.take_over({"w1", "w2"}, {STORE: 0})
    source.add()
    with pytest.raises(ArchiveFenced):
        await first.send_group()
    assert source.archived == {}


async def test_an_unknown_writer_stops_a_start() -> None:
    target, source = await make_target(), FrameSource()
    await make_writer(target, source, "foreign").take_over({"foreign"}, {})
    with pytest.raises(ArchiveFenced, match="headrace archive restore"):
        await make_writer(target, source, "w1").take_over({"w1"}, {})
    assert await GroupLog(target, SERVER).find_last() == 1


async def test_a_disk_with_less_than_the_archive_stops_a_start() -> None:
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    source.add(2)
    await writer.send_group()
    with pytest.raises(ArchiveFenced, match="frame 2 of store"):
        await make_writer(target, source, "w2").take_over({"w1", "w2"}, {STORE: 1})


async def test_a_server_without_one_of_its_accounts_starts() -> None:
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    source.add(2)
    await writer.send_group()
    other = make_writer(target, source, "w2")
    await other.take_over({"w1", "w2"}, {STORE + 1: 5}, EarlierRuns(absent=frozenset({STORE})))
    assert other.progress.epoch == 2
    group = await GroupLog(target, SERVER).read(other.progress.group)
    assert group is not None
    assert group.header.heads == {}


async def test_a_store_that_is_gone_stops_a_start_also_after_a_start_without_messages() -> None:
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    source.add(2)
    await writer.send_group()
    await make_writer(target, source, "w2").take_over({"w1", "w2"}, {STORE: 2})
    with pytest.raises(ArchiveFenced, match="frame 2 of store"):
        await make_writer(target, source, "w3").take_over({"w1", "w2", "w3"}, {STORE + 1: 5})


async def test_a_log_that_is_shorter_than_what_this_server_has_written_stops_a_start() -> None:
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    for earlier in (EarlierRuns(1, 2), EarlierRuns(2, 1)):
        with pytest.raises(ArchiveError, match="is the right bucket or folder mounted"):
            await make_writer(target, source, "w2").take_over({"w1", "w2"}, {}, earlier)
    with pytest.raises(ArchiveError, match="is group 0 of epoch 0"):
        await make_writer(await make_target(), source, "w2").take_over({"w2"}, {}, EarlierRuns(1, 1))
    await make_writer(target, source, "w2").take_over({"w1", "w2"}, {}, EarlierRuns(1, 1))


async def test_an_epoch_is_above_those_of_all_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make_writer(await make_target(), FrameSource(), "w1")

    async def read_epochs() -> list[int]:
        return [2, 3]

    monkeypatch.setattr(writer._bases, "read_epochs", read_epochs)
    await writer.take_over({"w1"}, {})
    assert writer.progress.epoch == 4


async def test_a_store_that_has_archived_nothing_yet_has_no_head() -> None:
    """Recovery skips frame numbers: the position of an idle store is a number that no frame has."""
    target, source = await make_target(), FrameSource()
    source.frame = 1024
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {STORE: 0})
    await writer.send_group()
    writer._announces_base = True
    await writer.send_group()
    group = await GroupLog(target, SERVER).read(writer.progress.group)
    assert group is not None
    assert (group.header.heads, group.header.idle) == ({}, {STORE: 1024})
    await make_writer(target, source, "w2").take_over({"w1", "w2"}, {STORE: 0})


async def test_a_server_that_was_replaced_makes_no_base() -> None:
    target, source = await make_target(), FrameSource()
    first, second = make_writer(target, source, "w1"), make_writer(target, source, "w2")
    await first.take_over({"w1"}, {STORE: 0})
    await first.send_group()
    await second.take_over({"w1", "w2"}, {STORE: 0})
    with pytest.raises(ArchiveFenced):
        await first.make_base()
    assert not (await BackupLog.load(target.open_folder("base"))).list_backups()


async def test_a_base_continues_a_group_only_if_its_pin_has_the_frames() -> None:
    """A frame is committed after its group was created: a pin in between lacks it."""
    may_confirm, is_waiting = asyncio.Event(), asyncio.Event()

    class SlowSource(FrameSource):
        async def set_archived(self, frames: dict[int, int]) -> None:
            is_waiting.set()
            await may_confirm.wait()

    target, source = await make_target(), SlowSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {STORE: 0})
    await writer.send_group()
    source.add()
    sending = asyncio.create_task(writer.send_group())
    await is_waiting.wait()
    await writer.make_base()
    may_confirm.set()
    await sending
    await writer.make_base()
    bases = (await BackupLog.load(target.open_folder("base"))).list_backups()
    assert [record.group for _, record in bases] == [1, 2]


async def test_times_in_the_log_do_not_go_back() -> None:
    target, source = await make_target(), FrameSource()
    ahead, behind = make_writer(target, source, "w1"), make_writer(target, source, "w2")
    ahead._now_ns = lambda: 50
    await ahead.take_over({"w1"}, {})
    await behind.take_over({"w1", "w2"}, {})
    await behind.send_group()
    await behind.make_base()
    await behind.send_group()
    log = GroupLog(target, SERVER)
    times = [(await log.read(number)).header.time_ns for number in (1, 2, 3)]  # type: ignore[union-attr]
    assert times == [50, 50, 50]
    ((_, base),) = (await BackupLog.load(target.open_folder("base"))).list_backups()
    assert base.moment_ns == 50, "it has messages of that time"


async def test_a_large_group_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_writer, "PART_BYTES", 100)
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    source.add(5)
    await writer.send_group()
    log = GroupLog(target, SERVER)
    groups = [await log.read(number) for number in range(2, await log.find_last() + 1)]
    assert [each.header.part for each in groups] == list(range(1, len(groups) + 1))  # type: ignore[union-attr]
    body = b"".join(each.body for each in groups)  # type: ignore[union-attr]
    assert sum(1 for _ in iter_entries(body)) == 5


async def test_a_group_that_was_begun_again_is_restored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_writer, "PART_BYTES", 100)
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {})
    await writer.send_group()
    source.add(5)
    read_part, calls = writer._read_part, 0

    def fail_once(*arguments: Any) -> bytearray:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("too many open files")
        return read_part(*arguments)

    monkeypatch.setattr(writer, "_read_part", fail_once)
    with pytest.raises(OSError, match="too many"):
        await writer.send_group()
    await writer.send_group()
    restore = ArchiveRestore(target, SERVER, Path("unused"), RestorePoint())
    record: Any = SimpleNamespace(group=1, epoch=1)
    complete = [groups async for groups in restore._iter_groups(RestoreResult(record, 1, 0))]
    assert len(complete) == 1
    assert sum(1 for _ in iter_entries(b"".join(group.body for group in complete[0]))) == 5
    assert not (await verify_archive(target, SERVER)).problems


async def test_a_large_message_that_is_damaged_is_not_archived() -> None:
    source = FrameSource()
    source.data += bytes(100)
    writer = make_writer(await make_target(), source, "w1")
    extent = FileExtent("streams/1/1.seg", 0, 100, 5, 9)
    with pytest.raises(ArchiveError, match=r"large message 9 in streams/1/1\.seg is missing or damaged"):
        writer._read_piece(STORE, extent, 0, 100)


async def test_only_the_first_base_of_an_epoch_sends_many_large_chunks_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With eight of them, a group that is sent meanwhile would take several times as long."""
    writer = make_writer(await make_target(), FrameSource(), "w1")
    await writer.take_over({"w1"}, {STORE: 0})
    limits: list[int] = []

    async def make(*arguments: Any) -> int:
        limits.append(arguments[-1])
        return len(limits)

    monkeypatch.setattr(writer._bases, "make", make)
    monkeypatch.setattr(group_writer, "find_needed_files", lambda store: SimpleNamespace(store_id=STORE))
    monkeypatch.setattr(FrameSource, "pin", lambda self: asyncio.sleep(0, [None]))
    for _ in range(3):
        await writer.make_base()
    assert limits == [CONCURRENCY, 1, 1]
