"""The service in a server of this process: it ends with the server, also if the object store does not answer."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest

from headrace.archive import group_writer, service, service_start
from headrace.archive.archive_identity import read_identity
from headrace.archive.archive_restore import ArchiveRestore, RestorePoint
from headrace.archive.archive_verify import choose_server
from headrace.archive.group_format import server_folder
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import GroupWriter
from headrace.archive.loop_source import LoopSource
from headrace.archive.server_leader import ServerLeader
from headrace.backup.target import BackupTarget, open_target
from headrace.claims.stores import ObjectStoreError
from headrace.config.archive_options import ArchiveOptions
from headrace.config.options import AccountOptions
from headrace.errors import ArchiveError, ArchiveFenced
from headrace.jetstream_api.account_limits import NO_LIMITS
from headrace.net.logs import Logger
from headrace.server import Server
from support.archives import FrameSource, make_target, make_writer


def list_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "archive"]


def assert_threads_end() -> None:
    for thread in list_threads():
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("is_down", [False, True])
async def test_the_thread_ends_with_the_server(
    tmp_path: Path, is_down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_TIMEOUT_S", 0.3 if is_down else 20.0)
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    before = set(list_threads())
    async with Server(tmp_path / "data", archive=archive) as server:
        (thread,) = set(list_threads()) - before
        assert server.jetstream is not None
        store = server.jetstream.store
        if is_down:
            (tmp_path / "archive").rename(tmp_path / "away")
            (tmp_path / "archive").write_text("")
        store.create("S")
        store.commit()
    thread.join(60)
    assert not thread.is_alive()


async def test_a_store_that_cannot_be_used_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("")
    with pytest.raises(ArchiveError, match="cannot use the archive"):
        await Server(tmp_path / "data", archive=ArchiveOptions(f"file://{tmp_path / 'archive'}")).start()
    assert_threads_end()


async def test_a_directory_whose_store_is_gone_is_refused(tmp_path: Path) -> None:
    """The identity of the server is still there: a new store must not become the newest state of the archive."""
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    async with Server(tmp_path / "data", archive=archive) as server:
        assert server.jetstream is not None
        server.jetstream.store.create("S")
        server.jetstream.store.commit()
    files = sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file())
    shutil.rmtree(tmp_path / "data" / "headrace")
    with pytest.raises(ArchiveError, match="has another one"):
        await Server(tmp_path / "data", archive=archive).start()
    assert sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file()) == files


@pytest.mark.parametrize("is_empty", [False, True])
async def test_an_archive_that_is_not_mounted_is_refused(tmp_path: Path, is_empty: bool) -> None:
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    async with Server(tmp_path / "data", archive=archive):
        pass
    (tmp_path / "archive").rename(tmp_path / "away")
    if is_empty:
        (tmp_path / "archive").mkdir()
    with pytest.raises(ArchiveError, match="mounted"):
        await Server(tmp_path / "data", archive=archive).start()
    assert not list((tmp_path / "archive").rglob("*"))
    shutil.rmtree(tmp_path / "archive", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "archive")
    async with Server(tmp_path / "data", archive=archive) as server:
        assert server.archive is not None
        stats = server.archive.read_stats()
        assert stats is not None
        assert stats.epoch == 2


async def _publish(server: Server, count: int) -> int:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    last = [await js.publish("s") for _ in range(count)][-1].seq
    await client.close()
    return last


async def _wait_until_archived(server: Server) -> None:
    assert server.archive is not None
    while not (stats := server.archive.read_stats()) or stats.lag_s:
        await asyncio.sleep(0.01)


async def _make_old_disk(folder: Path, archive: ArchiveOptions) -> None:
    """Make a server, and put its disk back to an earlier state that lacks archived messages."""
    async with Server(folder / "data", archive=archive) as server:
        assert await _publish(server, 5) == 5
        await _wait_until_archived(server)
        shutil.copytree(folder / "data", folder / "copy")
        assert await _publish(server, 5) == 10
        await _wait_until_archived(server)
    shutil.rmtree(folder / "data")
    (folder / "copy").rename(folder / "data")


@pytest.mark.parametrize("ack", ["local", "remote"])
async def test_a_disk_that_went_back_is_refused_at_every_start(tmp_path: Path, ack: str) -> None:
    """A start opens the stores before it knows the archive; that raises their frame numbers, not what they have."""
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", ack=ack, group_delay_s=0.005)
    await _make_old_disk(tmp_path, archive)
    (tmp_path / "archive").rename(tmp_path / "away")
    with pytest.raises(ArchiveError, match="mounted"):
        await Server(tmp_path / "data", archive=archive).start()
    (tmp_path / "away").rename(tmp_path / "archive")
    for _ in range(3):
        with pytest.raises(ArchiveFenced, match="not on this disk"):
            await Server(tmp_path / "data", archive=archive).start()
    async with Server(tmp_path / "data") as server:  # without its archive
        assert await _publish(server, 2000) == 2005
    with pytest.raises(ArchiveFenced, match="not on this disk"):
        await Server(tmp_path / "data", archive=archive).start()


@pytest.mark.parametrize("ack", ["local", "remote"])
async def test_starts_that_failed_do_not_prevent_the_next_one(
    tmp_path: Path, ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_TIMEOUT_S", 0.3)
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", ack=ack, group_delay_s=0.005)
    for number in range(1, 4):
        async with Server(tmp_path / "data", archive=archive) as server:
            assert await _publish(server, 5) == 10 * number - 5
            await _wait_until_archived(server)
            (tmp_path / "archive").rename(tmp_path / "away")
            shutil.copytree(tmp_path / "data", tmp_path / "crashed")
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "crashed").rename(tmp_path / "data")
        shutil.rmtree(tmp_path / "archive", ignore_errors=True)
        with pytest.raises(ArchiveError, match="mounted"):
            await Server(tmp_path / "data", archive=archive).start()
        async with Server(tmp_path / "data") as server:
            assert await _publish(server, 5) == 10 * number
        (tmp_path / "away").rename(tmp_path / "archive")


async def test_a_store_that_is_opened_by_a_reload_counts_at_the_next_start(tmp_path: Path) -> None:
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    both = tuple(AccountOptions(name, jetstream_limits=NO_LIMITS) for name in "AB")
    async with Server(tmp_path / "data", accounts=both):
        pass  # creates the stores, without the archive
    async with Server(tmp_path / "data", accounts=both[:1], archive=archive) as server:
        server.reload(replace(server.options, accounts=both))
        (store,) = (each.store for each in server.accounts.jetstreams() if each.account == "B")
        while (identity := read_identity(tmp_path / "data")) is None or (
            f"{store.store_id:016x}" not in identity.stores
        ):
            await asyncio.sleep(0.01)
        store.create("S")
        store.commit()
        await _wait_until_archived(server)
    async with Server(tmp_path / "data", accounts=both, archive=archive) as server:
        assert server.archive is not None


async def test_a_log_that_was_removed_is_refused(tmp_path: Path) -> None:
    """Its bases have higher epochs than a new log would have: a restore would prefer them."""
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    async with Server(tmp_path / "data", archive=archive) as server:
        assert server.archive is not None
        while not (stats := server.archive.read_stats()) or not stats.bases:
            await asyncio.sleep(0.01)
    (log,) = (tmp_path / "archive").glob("*/log")
    shutil.rmtree(log)
    with pytest.raises(ArchiveError, match="is group 0 of epoch 0"):
        await Server(tmp_path / "data", archive=archive).start()


async def test_a_clean_stop_archives_what_was_acknowledged_last(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    async with Server(tmp_path / "data", archive=ArchiveOptions(url, group_delay_s=0.3)) as server:
        client = await nats.connect(server.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        assert server.archive is not None
        while not (stats := server.archive.read_stats()) or not stats.bases:
            await asyncio.sleep(0.01)
        for _ in range(50):
            await js.publish("s")
        await client.close()
    target = open_target(url)
    number = await choose_server(target, "")
    folder = target.open_folder(server_folder(number))
    await ArchiveRestore(folder, number, tmp_path / "restored", RestorePoint()).run()
    async with Server(tmp_path / "restored") as server:
        assert server.jetstream is not None
        assert server.jetstream.streams["S"].log.messages == 50


async def test_an_error_that_lasts_does_not_occupy_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than a group to send there is no pause between groups, but there is one after an error."""
    slept: list[float] = []
    calls = 0

    async def fail(writer: GroupWriter) -> bool:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise ArchiveError("enough")
        raise OSError("too many open files")

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    log = SimpleNamespace(info=print, warn=print)
    settings = service.ArchiveSettings("file:///x", tmp_path, "n", 4 << 20, 0.05, 30, 10**18)
    found = service.ArchiveService(settings, list, log, print)
    monkeypatch.setattr(GroupWriter, "send_group", fail)
    monkeypatch.setattr(found, "_count_pending", lambda writer: (1, 1 << 30))
    monkeypatch.setattr(
        service, "asyncio", SimpleNamespace(sleep=sleep, CancelledError=asyncio.CancelledError)
    )
    with pytest.raises(ArchiveError, match="enough"):
        await found._send_groups(make_writer(await make_target(), FrameSource(), "w1"))
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]


async def test_a_call_that_was_cancelled_is_no_error_of_the_server() -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    calls: list[int] = []
    source = LoopSource(list, lambda folders: None)

    async def cancel() -> None:
        future = source._call(lambda: calls.append(1))
        future.cancel()
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(cancel()))
    thread.start()
    thread.join()  # the server's loop runs nothing meanwhile
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (errors, calls) == ([], [])


async def test_a_store_that_does_not_answer_is_named_with_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(writer: GroupWriter, *arguments: object) -> None:
        await asyncio.Event().wait()

    async def limit_what_follows(leader: ServerLeader, folder: BackupTarget) -> None:
        monkeypatch.setattr(service_start, "START_TIMEOUT_S", 0.05)  # a folder that is slow has had its time

    monkeypatch.setattr(GroupWriter, "take_over", hang)
    monkeypatch.setattr(ServerLeader, "check", limit_what_follows)
    with pytest.raises(
        ArchiveError, match=r"no answer within 0\.05 s while the server looked for the newest group"
    ):
        await Server(tmp_path / "data", archive=ArchiveOptions(f"file://{tmp_path / 'archive'}")).start()


@pytest.mark.parametrize("has_base", [True, False])
async def test_an_error_of_a_base_stays_until_a_base_is_made_and_an_idle_server_trims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_base: bool
) -> None:
    trims: list[int] = []
    make_base, trim = GroupWriter.make_base, GroupWriter.trim

    async def fail(writer: GroupWriter) -> None:
        raise OSError("no pin")

    async def count(writer: GroupWriter) -> None:
        trims.append(1)
        await trim(writer)

    monkeypatch.setattr(GroupWriter, "make_base", make_base if has_base else fail)
    monkeypatch.setattr(GroupWriter, "trim", count)
    monkeypatch.setattr(service, "BASE_RETRY_S", 0.0)
    monkeypatch.setattr(service, "TRIM_INTERVAL_S", 0.0)
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    async with Server(tmp_path / "data", archive=archive) as server, asyncio.timeout(90):
        assert server.archive is not None
        assert server.archive._service is not None
        if has_base:
            while len(trims) < 3:
                await asyncio.sleep(0.01)
        while bool(server.archive._service._base_error) == has_base:
            await asyncio.sleep(0.01)
        if not has_base:
            server.archive._service._error = ""  # a group was sent since
            stats = server.archive.read_stats()
            assert stats is not None
            assert "no pin" in stats.error


async def test_the_wait_for_another_server_may_be_longer_than_that_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod was moved with its volume after a crash: nobody says that its former process has ended."""
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", ack="remote", takeover_after_s=3.0)
    async with Server(tmp_path / "data", archive=archive):
        (leader,) = (tmp_path / "archive").glob("*/leader")
        record = json.loads(leader.read_bytes())
    leader.write_text(json.dumps(record | {"host": "another host", "is_released": False}))
    monkeypatch.setattr(service_start, "START_TIMEOUT_S", 2.0)
    take_over, started = ServerLeader.start, []

    async def note(leader: ServerLeader, *arguments: Any) -> None:
        started.append(1)
        await take_over(leader, *arguments)

    monkeypatch.setattr(ServerLeader, "start", note)
    async with Server(tmp_path / "data", archive=archive) as server:
        assert server.archive is not None
        assert started


async def test_an_idle_check_without_an_answer_holds_back_no_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_writer, "CREATE_TIMEOUT_S", 0.3)
    hanging = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang(log: GroupLog, number: int, writer: str) -> None:
        loop.call_soon_threadsafe(hanging.set)
        await asyncio.Event().wait()

    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", ack="remote")
    async with Server(tmp_path / "data", archive=archive) as server:
        client = await nats.connect(server.url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        monkeypatch.setattr(GroupLog, "check_next", hang)
        async with asyncio.timeout(60):
            await hanging.wait()
        assert (await js.publish("s", timeout=60)).seq == 1
        await client.close()


class FailingBases:
    """Sends some bytes, then fails; the last attempt succeeds."""

    def __init__(self, *sent: int) -> None:
        self.progress = SimpleNamespace(base_sent_bytes=0)
        self.sent = list(sent)

    async def make_base(self) -> None:
        if self.sent:
            self.progress.base_sent_bytes += self.sent.pop(0)
            raise ObjectStoreError("503 Slow Down")


async def test_an_error_after_much_was_sent_does_not_end_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first base of a large store takes longer than the timeout of a store that does not answer."""
    monkeypatch.setattr(service_start, "START_TIMEOUT_S", -1.0)
    monkeypatch.setattr(service_start, "OPENING_RETRY_S", 0.0)
    errors: list[Exception] = []
    writer: Any = FailingBases(100, 50, 1)
    await service_start.make_opening_base(writer, errors.append)
    assert len(errors) == 3
    stuck: Any = FailingBases(100, 0, 0)
    with pytest.raises(ObjectStoreError):
        await service_start.make_opening_base(stuck, errors.append)


@pytest.mark.parametrize("has_data", [False, True])
async def test_an_empty_server_beside_an_archive_says_so(tmp_path: Path, has_data: bool) -> None:
    """Its disk may be lost, or not mounted: clients would find an empty server, without a word."""
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}", group_delay_s=0.005)
    async with Server(tmp_path / "data", archive=archive) as server:
        assert await _publish(server, 1) == 1
    if has_data:
        async with Server(tmp_path / "other") as server:
            await _publish(server, 1)
    for number in range(2):
        warnings: list[str] = []
        log = Logger(write=lambda level, text, found=warnings: found.append(text))  # type: ignore[misc]
        async with Server(tmp_path / "other", archive=archive, log=log):
            pass
        found = [text for text in warnings if "whose disk was lost or is not mounted" in text]
        assert len(found) == (number == 0 and not has_data)
