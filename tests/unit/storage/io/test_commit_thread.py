"""The "commit" queue of real files: which submissions run without the GIL, and how their files are treated."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage import FileDisk
from headrace.storage.io import file_handles
from headrace.storage.io.disk import OutOfSpace


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    made = FileDisk(tmp_path / "store")
    made.run([("create", "journal", 4096), ("create", "marker", 1024)])
    yield made
    made.close()


FRAME = [("write", "journal", 512, [b"head", b"body"]), ("sync", "journal"), ("write", "marker", 0, b"m")]


def commit(disk: FileDisk, ops: list[tuple[object, ...]]) -> OSError | None:
    seen: list[OSError | None] = []
    disk.submit("commit", ops, seen.append)
    disk.drain()
    assert len(seen) == 1
    return seen[0]


def count_calls(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the submissions that need the GIL."""
    calls: list[object] = []
    run_ops = disk._commit_thread._run_ops
    monkeypatch.setattr(disk._commit_thread, "_run_ops", lambda ops: calls.append(ops) or run_ops(ops))
    return calls


def test_a_frame_for_open_files_runs_without_the_gil(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(disk, monkeypatch)
    assert commit(disk, FRAME) is None
    assert calls == []
    assert disk.read("journal", 512, 8) == b"headbody"
    assert disk.read("marker", 0, 1) == b"m"
    assert disk.latency["commit"].count == 1


def test_anything_else_is_run_as_ever(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(disk, monkeypatch)
    disk._handles.evict("marker")
    for ops in (FRAME, [("create", "other", 0), *FRAME]):
        assert commit(disk, ops) is None
        assert calls.pop() == ops
    assert commit(disk, FRAME) is None  # the first one has opened the file
    assert calls == []


def test_large_data_is_encoded_on_the_thread_that_writes_it_without_the_gil(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, encoders = count_calls(disk, monkeypatch), []

    def encode(data: object) -> object:
        encoders.append(threading.current_thread())
        return data

    ops = [
        ("write", "journal", 0, lambda: encode([b"la", b"rge"])),
        ("sync", "journal"),
        ("write", "marker", 0, lambda: encode(b"m")),
        ("sync", "marker"),
    ]
    assert commit(disk, ops) is None
    assert calls == []
    assert encoders == [disk._commit_thread.thread] * 2
    assert (disk.read("journal", 0, 5), disk.read("marker", 0, 1)) == (b"large", b"m")
    assert not any(handle.unsynced for handle in disk._handles._handles.values())
    assert not any(handle.sync_lock.locked() for handle in disk._handles._handles.values())


def test_data_that_cannot_be_encoded_is_an_io_error(disk: FileDisk) -> None:
    def encode() -> bytes:
        raise ValueError("no data")

    error = commit(disk, [("write", "journal", 0, encode), ("sync", "journal")])
    assert error is not None
    assert error.errno == errno.EIO
    assert "no data" in str(error)
    handle = disk._handles._handles["journal"]
    assert (handle.use_count, handle.sync_lock.locked(), handle.unsynced) == (0, False, True)
    assert commit(disk, FRAME) is None


def test_a_frame_with_two_files_waits_while_another_thread_syncs_one(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file's lock must be free again meanwhile: the other thread may sync that file next."""
    calls = count_calls(disk, monkeypatch)
    marker = disk._handles._handles["marker"]
    ops = [*FRAME, ("sync", "marker")]
    seen: list[OSError | None] = []
    with marker.sync_lock:
        disk.submit("commit", ops, seen.append)
        assert disk._handles._handles["journal"].sync_lock.acquire(timeout=60)
        disk._handles._handles["journal"].sync_lock.release()
    disk.drain()
    assert seen == [None]
    assert calls == [ops]


def test_a_failed_sync_of_the_second_file_stays_with_that_file(disk: FileDisk) -> None:
    journal, marker = (disk._handles._handles[name] for name in ("journal", "marker"))
    read_end, write_end = os.pipe()
    real, marker.fd = marker.fd, write_end  # a pipe cannot be synced
    try:
        error = commit(disk, [*FRAME[:2], ("sync", "marker")])
    finally:
        marker.fd = real
        os.close(read_end)
        os.close(write_end)
    assert error is not None
    assert "sync failed" in str(error)
    assert journal.sync_error is None
    assert marker.sync_error is not None
    with pytest.raises(OSError, match="sync failed"):
        disk.run([("sync", "marker")])


def test_a_frame_does_not_overtake_a_rename(disk: FileDisk) -> None:
    disk.submit("commit", [("rename", "journal", "old"), ("create", "journal", 4096)], lambda error: None)
    assert commit(disk, FRAME) is None
    assert disk.read("journal", 512, 8) == b"headbody"
    assert disk.read("old", 512, 8) == bytes(8)


def test_data_that_cannot_be_written_is_an_io_error(disk: FileDisk) -> None:
    error = commit(disk, [("write", "journal", 0, ["text"]), ("sync", "journal")])
    assert error is not None
    assert error.errno == errno.EIO
    handle = disk._handles._handles["journal"]
    assert (handle.use_count, handle.sync_lock.locked(), handle.unsynced) == (0, False, True)
    assert commit(disk, FRAME) is None


def test_after_a_frame_its_files_are_free(disk: FileDisk) -> None:
    assert commit(disk, FRAME) is None
    handles = disk._handles._handles
    assert [(handle.use_count, handle.sync_lock.locked()) for handle in handles.values()] == [(0, False)] * 2
    assert not handles["journal"].unsynced
    assert handles["marker"].unsynced  # stays open: a failed write-back must not be missed
    assert (
        commit(disk, [("write", "journal", 0, b"x"), ("sync", "journal"), ("write", "journal", 1, b"y")])
        is None
    )
    assert handles["journal"].unsynced


def test_a_file_that_is_removed_meanwhile_is_closed_by_its_last_user(disk: FileDisk) -> None:
    disk.submit("commit", FRAME, lambda error: None)
    disk.run([("unlink", "journal")])
    disk.drain()
    assert "journal" not in disk._handles._handles
    assert commit(disk, FRAME) is not None


def fail_sync(disk: FileDisk) -> OSError | None:
    """Submit a frame whose sync fails: the descriptor of a folder cannot be written, that of a pipe not be synced."""
    handle = disk._handles._handles["journal"]
    read_end, write_end = os.pipe()
    real, handle.fd = handle.fd, write_end
    try:
        return commit(disk, [("sync", "journal"), ("write", "marker", 0, b"m")])
    finally:
        handle.fd = real
        os.close(read_end)
        os.close(write_end)


def test_a_failed_sync_ends_the_frame_and_stays_with_the_file(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = fail_sync(disk)
    assert error is not None
    assert error.errno == errno.EIO
    assert "sync failed" in str(error)
    assert not isinstance(error, OutOfSpace)
    assert disk.read("marker", 0, 1) == b"\0"  # nothing says that the frame is synced
    assert disk._handles._handles["journal"].unsynced
    calls = count_calls(disk, monkeypatch)
    again = commit(disk, FRAME)
    assert again is not None  # although a sync would succeed now
    assert again.errno == errno.EIO
    assert len(calls) == 1
    with pytest.raises(OSError, match="sync failed"):
        disk.run([("sync", "journal")])


def test_a_frame_waits_while_another_thread_syncs_its_file(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a failed write-back once: to the other thread, and through it to the frame."""
    inside, finish = threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        inside.set()
        assert finish.wait(60)
        raise OSError(errno.EIO, "write-back failed")

    monkeypatch.setattr(file_handles, "_fdatasync", sync)
    seen: list[OSError | None] = []
    disk.submit("behind", [("sync", "journal")], seen.append)
    assert inside.wait(60)
    disk.submit("commit", FRAME, seen.append)
    finish.set()
    disk.drain()
    assert [error is not None and error.errno for error in seen] == [errno.EIO, errno.EIO]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_a_full_disk_names_the_operation_to_continue_with(disk: FileDisk) -> None:
    handle = disk._handles._handles["journal"]
    real, handle.fd = handle.fd, os.open("/dev/full", os.O_RDWR)
    try:
        ops = [("write", "marker", 0, b"m"), *FRAME]
        error = commit(disk, ops)
    finally:
        os.close(handle.fd)
        handle.fd = real
    assert isinstance(error, OutOfSpace)
    assert error.op is ops[1]
    assert commit(disk, ops[1:]) is None
    assert disk.read("journal", 512, 8) == b"headbody"


def test_closing_releases_files_for_the_other_queue(tmp_path: Path) -> None:
    """A completion that nobody takes must not keep the other thread waiting for the file."""
    posted: list[object] = []
    disk = FileDisk(tmp_path, posted.append)
    disk.run([("create", "journal", 4096), ("create", "marker", 1024)])
    done: list[OSError | None] = []
    disk.submit("commit", FRAME, done.append)
    disk.submit("behind", [("sync", "journal")], done.append)
    disk.close()
    for call in posted:
        call()
    assert done == [None, None]
