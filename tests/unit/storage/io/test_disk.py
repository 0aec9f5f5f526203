"""Real files behind the `Disk` protocol."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage import FileDisk
from headrace.storage.io import disk as disk_module
from headrace.storage.io import file_handles, readonly_disk
from headrace.storage.io.readonly_disk import ReadonlyDisk


@pytest.fixture
def disk(tmp_path: Path):
    made = FileDisk(tmp_path / "store")
    yield made
    made.close()


def test_every_operation_changes_files_as_it_says(disk: FileDisk) -> None:
    disk.run(
        [("mkdir", "a"), ("create", "a/x", 100), ("write", "a/x", 10, [b"one", b"two"]), ("sync", "a/x")]
    )
    assert disk.size("a/x") == 100
    assert disk.read("a/x", 8, 10) == b"\0\0onetwo\0\0"
    assert disk.read("a/x", 95, 100) == bytes(5)
    disk.run([("link", "a/x", "a/y"), ("rename", "a/x", "a/z"), ("syncdir", "a")])
    assert disk.list("a") == ["y", "z"]
    disk.run([("create", "b", 0), ("copy", "a/z", 10, "b", 4, 6)])
    assert disk.read("b", 0, 100) == b"\0\0\0\0onetwo"
    disk.run([("unlink", "a/y"), ("unlink", "a/z"), ("rmdir", "a")])
    assert disk.list("") == ["b", "lock"]
    assert disk.list("nowhere") == []
    assert disk.free() > 0


def test_names_are_never_overwritten(disk: FileDisk) -> None:
    disk.run([("create", "a", 0), ("create", "b", 0)])
    with pytest.raises(FileExistsError):
        disk.run([("create", "a", 0)])
    with pytest.raises(FileExistsError):
        disk.run([("rename", "a", "b")])


@pytest.mark.parametrize("content", [b"hello", b"hello" * 2_000])
def test_a_map_outlives_its_file_and_holds_no_descriptor(disk: FileDisk, content: bytes) -> None:
    disk.run([("create", "a", 0), ("write", "a", 0, content), ("create", "empty", 0)])
    reader = ReadonlyDisk(disk.root, exclusive=False)
    view = disk.map("a")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    more = [each.map("a") for _ in range(50) for each in (disk, reader)]
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert after == before
    disk.run([("unlink", "a")])
    assert bytes(view) == content
    assert all(each == content for each in more)
    assert bytes(disk.map("empty")) == b""
    with pytest.raises(TypeError):
        view[0] = 1


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("\n")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells, and counts")
def test_a_small_file_costs_no_map(disk: FileDisk) -> None:
    disk.run([("create", "a", 0), ("write", "a", 0, b"x" * 1_000)])
    before = maps()
    views = [disk.map("a") for _ in range(1_000)]
    assert all(view == b"x" * 1_000 for view in views)
    assert maps() < before + 100


def test_without_a_map_the_bytes_are_read(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 1_000
    disk.run([("create", "a", 0), ("write", "a", 0, content)])

    def refuse(fd: int, length: int) -> memoryview:
        raise OSError(errno.ENOMEM, "too many maps")

    monkeypatch.setattr(readonly_disk, "map_file", refuse)
    view = disk.map("a")
    assert view == content
    assert view.readonly


def test_submissions_complete_in_order_and_on_this_thread(disk: FileDisk) -> None:
    seen: list[object] = []
    disk.submit("behind", [("create", "a", 0), ("write", "a", 0, b"1")], lambda error: seen.append(error))
    disk.submit("behind", [("create", "a", 0), ("unlink", "a")], lambda error: seen.append(error))
    disk.submit("behind", [("write", "a", 1, b"2")], lambda error: disk.submit("commit", [], seen.append))
    disk.drain()
    assert seen[0] is None
    assert isinstance(seen[1], FileExistsError)
    assert seen[2] is None
    assert disk.read("a", 0, 9) == b"12"  # the failed operation ended its submission


def test_completions_are_posted(tmp_path: Path) -> None:
    posted = []
    disk = FileDisk(tmp_path, posted.append)
    done: list[object] = []
    disk.submit("commit", [("create", "a", 0)], done.append)
    disk.close()
    assert done == []
    for call in posted:
        call()
    assert done == [None]


def test_a_broken_submission_is_an_io_error_and_not_a_dead_lane(disk: FileDisk) -> None:
    seen: list[OSError | None] = []
    disk.submit("behind", [("frobnicate", "a")], seen.append)
    disk.submit("behind", [("create", "a", 0)], seen.append)
    disk.drain()
    assert seen[0] is not None
    assert seen[0].errno == errno.EIO
    assert seen[1] is None
    with pytest.raises(ValueError):
        disk.submit("sideways", [], seen.append)


def test_more_files_than_descriptors(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handles, "DESCRIPTORS_MAX", 8)
    for number in range(40):
        disk.run([("create", f"f{number}", 0), ("write", f"f{number}", 0, b"%d" % number)])
    assert [disk.read(f"f{number}", 0, 9) for number in range(40)] == [b"%d" % number for number in range(40)]
    assert len(disk._handles) <= 9


def crowded(disk: FileDisk, monkeypatch: pytest.MonkeyPatch, error: int) -> list[int]:
    """As many files as descriptors are written and not synced; the first sync fails once, as the kernel reports it."""
    monkeypatch.setattr(file_handles, "DESCRIPTORS_MAX", 8)
    for number in range(8):
        disk.run([("create", f"f{number}", 0), ("write", f"f{number}", 0, b"x")])
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(fd)
        if len(synced) == 1:
            raise OSError(error, "write-back failed")

    monkeypatch.setattr(file_handles, "_fdatasync", sync)
    return synced


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_sync_in_passing_that_fails_is_told_to_the_next_who_syncs_the_file(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    synced = crowded(disk, monkeypatch, error)
    for number in range(8, 40):
        disk.run([("create", f"f{number}", 0), ("write", f"f{number}", 0, b"x")])
    assert synced
    for _ in range(2):  # each caller gets the error
        with pytest.raises(OSError, match="sync failed") as failed:
            disk.run([("sync", "f0")])
        assert failed.value.errno == errno.EIO
    disk.run([("sync", f"f{number}") for number in range(1, 40)])
    assert len(disk._handles) <= 9


def test_a_reader_never_waits_for_a_sync(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk.root / "other").write_bytes(b"y")
    synced = crowded(disk, monkeypatch, errno.EIO)
    assert disk.read("other", 0, 9) == b"y"
    assert disk.read("f0", 0, 9) == b"x"
    assert synced == []
    assert len(disk._handles) == 8


@pytest.mark.parametrize("kind", ["sync", "syncdir"])
def test_a_failed_sync_is_never_taken_for_a_full_disk(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    disk.run([("mkdir", "a"), ("create", "a/x", 0), ("write", "a/x", 0, b"x")])
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(file_handles, "_fdatasync", fail)
    with pytest.raises(OSError, match="sync failed") as failed:
        disk.run([(kind, "a/x" if kind == "sync" else "a")])
    assert failed.value.errno == errno.EIO


def test_a_file_is_there_as_large_as_it_was_asked_for_or_not_at_all(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(fd: int, size: int) -> None:
        raise OSError(errno.EDQUOT, "quota exceeded")

    monkeypatch.setattr(disk_module, "_reserve", reserve)
    with pytest.raises(OSError, match="quota") as failed:
        disk.run([("create", "a", 100)])
    assert failed.value.errno == errno.ENOSPC  # an exhausted quota is a full disk
    assert not disk.exists("a")


def run_out(monkeypatch: pytest.MonkeyPatch, left: Callable[[], bool], error: int = errno.EMFILE) -> None:
    """Files can be opened only while a descriptor is left."""
    real = os.open

    def opened(path: Path | str, *rest: int) -> int:
        if not left():
            raise OSError(error, "too many open files")
        return real(path, *rest)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(file_handles, "RETRY_PAUSE_S", 0.001)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_lane_waits_until_there_are_descriptors_again(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tries: list[int] = []
    run_out(monkeypatch, lambda: tries.append(1) or len(tries) % 4 == 0, error)
    seen: list[OSError | None] = []
    disk.submit(
        "commit", [("create", "a", 9), ("write", "a", 0, b"x"), ("sync", "a"), ("syncdir", "")], seen.append
    )
    disk.drain()
    assert seen == [None]
    assert len(tries) == 8
    assert (disk.root / "a").read_bytes() == b"x" + bytes(8)


def test_a_lane_does_not_wait_for_ever(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handles, "DESCRIPTOR_TIMEOUT_S", 0.01)
    run_out(monkeypatch, lambda: False)
    seen: list[OSError | None] = []
    disk.submit("commit", [("create", "a", 9)], seen.append)
    disk.drain()
    assert seen[0] is not None
    assert seen[0].errno == errno.EMFILE


def test_files_that_nobody_uses_make_way_for_others(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        disk.run([("create", name, 0), ("write", name, 0, name.encode()), ("sync", name)])
    run_out(monkeypatch, lambda: len(disk._handles) < 4)
    disk.run([("syncdir", ""), ("create", "e", 0)])
    assert [disk.read(name, 0, 1) for name in "abcd"] == [b"a", b"b", b"c", b"d"]


def test_a_reader_does_not_wait_for_a_descriptor(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk.root / "a").write_bytes(b"x")
    tries: list[int] = []
    run_out(monkeypatch, lambda: bool(tries.append(1)))
    with pytest.raises(OSError, match="too many open files"):
        disk.read("a", 0, 1)
    assert len(tries) == 2
