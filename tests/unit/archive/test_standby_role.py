"""What a server with `--standby` does with its directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headrace
from headrace.archive.archive_identity import ArchiveIdentity, adopt_identity, read_identity
from headrace.archive.archive_target import open_archive
from headrace.archive.first_server import FirstServer, claim_with_data, read_first
from headrace.archive.follower_state import is_following
from headrace.archive.standby_role import StandbyRole, find_role
from headrace.backup.target import BackupTarget
from headrace.claims.stores import MemoryStore
from headrace.config.archive_options import ArchiveOptions
from headrace.errors import ArchiveError, ArchiveNotBegun
from headrace.net.jetstream_setup import find_stores
from support.archives import SERVER, FrameSource, make_target, make_writer
from support.small_store import opened

URL = "memory"


def _make_root() -> BackupTarget:
    return BackupTarget(MemoryStore("archive"), "", URL)


def _make_store(home: Path) -> Path:
    """Make a directory that a server has used before it had an archive."""
    with opened(home / "headrace") as store:
        store.create("S").append(b"s", b"", b"message", 1)
        store.commit()
        store.disk.drain()
    return home / "headrace"


async def _find(root: BackupTarget, home: Path, *, may_begin: bool = False) -> StandbyRole:
    home.mkdir(exist_ok=True)
    return await find_role(root, URL, home, find_stores(home), may_begin=may_begin)


async def test_the_last_server_continues_at_the_time_of_the_newest_group(tmp_path: Path) -> None:
    """That may be the time of another machine, whose clock is ahead, and which this one has replaced."""
    store = MemoryStore("archive")
    writer = make_writer(await make_target(store), FrameSource(), "w1")
    writer._now_ns = lambda: 1 << 62
    await writer.take_over({"w1"}, {})
    (tmp_path / "headrace" / "journal").mkdir(parents=True)
    adopt_identity(tmp_path, ArchiveIdentity(f"{SERVER:016x}", "memory", ["w1"], "w1"))
    root = BackupTarget(store, "", "memory")
    assert await find_role(root, "memory", tmp_path, [tmp_path / "headrace"]) == StandbyRole(
        None, time_ns=1 << 62
    )


async def test_a_server_with_data_begins_the_archive_and_an_empty_one_waits_for_it(tmp_path: Path) -> None:
    root, home = _make_root(), tmp_path / "a"
    _make_store(home)
    assert (await _find(root, home)).server is None
    identity = read_identity(home)
    assert identity is not None
    assert await read_first(root) == FirstServer(identity.server, has_data=True)
    assert (await _find(root, home)).server is None
    for may_begin in (False, True):
        with pytest.raises(ArchiveNotBegun, match="has data"):
            await _find(root, tmp_path / "b", may_begin=may_begin)


async def test_a_server_with_data_refuses_an_archive_that_an_empty_one_begins(tmp_path: Path) -> None:
    root, home = _make_root(), tmp_path / "a"
    store = _make_store(home)
    assert (await _find(root, tmp_path / "b")).server is None
    files = sorted(store.rglob("*"))
    with pytest.raises(ArchiveError, match="do not empty this directory"):
        await _find(root, home)
    assert sorted(store.rglob("*")) == files
    assert read_identity(home) is None


async def test_a_server_with_data_refuses_the_archive_of_another_one(tmp_path: Path) -> None:
    store = MemoryStore("archive")
    await make_writer(await make_target(store), FrameSource(), "w1").take_over({"w1"}, {})
    _make_store(tmp_path)
    with pytest.raises(ArchiveError, match="do not empty this directory"):
        await _find(BackupTarget(store, "", URL), tmp_path)


async def test_an_empty_server_begins_for_one_that_is_gone(tmp_path: Path) -> None:
    """It gets the same number: whichever of them creates the first group begins the archive."""
    root = _make_root()
    assert (await _find(root, tmp_path / "a")).server is None
    first = await read_first(root)
    assert first is not None
    with pytest.raises(ArchiveNotBegun):
        await _find(root, tmp_path / "b")
    assert (await _find(root, tmp_path / "b", may_begin=True)).server is None
    identity = read_identity(tmp_path / "b")
    assert identity is not None
    assert identity.server == first.server
    target = root.open_folder(first.server)
    writer = make_writer(target, FrameSource(), "w1", first.server_number)
    await writer.take_over({"w1"}, {})
    assert (await _find(root, tmp_path / "c")).server == first.server_number


async def test_a_server_without_standby_keeps_empty_ones_from_beginning(tmp_path: Path) -> None:
    root = _make_root()
    await root.prepare()
    await claim_with_data(root, f"{SERVER:016x}")
    with pytest.raises(ArchiveNotBegun, match="has data"):
        await _find(root, tmp_path, may_begin=True)
    async with headrace.Server(tmp_path / "data", archive=ArchiveOptions(f"file://{tmp_path / 'archive'}")):
        identity = read_identity(tmp_path / "data")
        assert identity is not None
        target = open_archive(f"file://{tmp_path / 'archive'}")
        assert await read_first(target) == FirstServer(identity.server, has_data=True)


async def test_a_server_with_data_begins_in_a_cluster(tmp_path: Path) -> None:
    """Its streams do not exist before the first server."""
    async with headrace.Server(tmp_path / "cluster") as server:
        url = f"nats://127.0.0.1:{server.port}/ARCHIVE"
        root = open_archive(url)
        home = tmp_path / "a"
        _make_store(home)
        for _ in range(2):
            assert await find_role(root, url, home, find_stores(home)) == StandbyRole(None)
        await root.close()


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_disk_that_went_back_is_rebuilt(tmp_path: Path, is_known: bool) -> None:
    """Also after a start without `--standby` was refused, which has opened the store."""
    home, url = tmp_path / "data", f"file://{tmp_path / 'archive'}"
    archive = ArchiveOptions(url, ack="remote")
    async with headrace.Server(home, archive=archive) as server:
        assert server.jetstream is not None
        shutil.copytree(home, tmp_path / "copy")
        server.jetstream.store.create("S")
        server.jetstream.store.commit()
    shutil.rmtree(home)
    (tmp_path / "copy").rename(home)
    if not is_known:
        with pytest.raises(ArchiveError, match="not on this disk"):
            await headrace.Server(home, archive=archive).start()
    identity = read_identity(home)
    assert identity is not None
    role = await find_role(open_archive(url), url, home, find_stores(home))
    assert role.server == identity.server_number
    assert "not on this disk" in role.reason
    assert is_following(home)
    assert not (home / "headrace").exists()
