"""Disk queues are FIFOs stepped by the simulation; faults affect the call they name."""

import errno

import pytest

from headrace.sim import OUTCOMES_BY_NAME, Fault, SimClock, SimDisk

DROP = OUTCOMES_BY_NAME["drop"]


def written(disk: SimDisk, path: str) -> bytes:
    return disk.read(path, 0, disk.size(path))


def two_files(seed: int = 0, **options: int) -> SimDisk:
    disk = SimDisk(seed, **options)
    disk.run([("create", "a", 0), ("create", "b", 0), ("syncdir", "")])
    return disk


def test_nothing_happens_before_it_is_stepped() -> None:
    disk, told = two_files(), []
    disk.submit("commit", [("write", "a", 0, b"1"), ("sync", "a")], told.append)
    assert disk.size("a") == 0
    assert disk.step("commit")
    assert written(disk, "a") == b"1"
    assert not told
    assert disk.step("commit")
    assert not told
    assert disk.get_ready_queues() == [""]
    assert disk.step("")
    assert told == [None]
    assert not disk.step()


def test_a_lane_is_a_fifo_and_lanes_are_independent() -> None:
    disk, told = two_files(), []
    disk.submit("commit", [("write", "a", 0, b"1")], lambda error: told.append("first"))
    disk.submit("commit", [("write", "a", 0, b"2")], lambda error: told.append("second"))
    disk.submit("behind", [("write", "b", 0, b"3")], lambda error: told.append("behind"))
    assert disk.step("behind")
    assert disk.step("")
    assert not disk.step("behind")
    disk.drain()
    assert told == ["behind", "first", "second"]
    assert written(disk, "a") == b"2"


@pytest.mark.parametrize("seed", range(5))
def test_the_seed_fixes_the_order(seed: int) -> None:
    def run() -> list[tuple]:
        disk, seen = two_files(seed), []
        disk.before_op = seen.append
        for number in range(10):
            disk.submit("commit", [("write", "a", number, b"c")], lambda error: seen.append(("done",)))
            disk.submit("behind", [("write", "b", number, b"b")], lambda error: seen.append(("done",)))
        disk.drain()
        return seen

    assert run() == run()


def test_the_first_failing_operation_ends_its_submission() -> None:
    disk, told = two_files(), []
    disk.submit("commit", [("write", "a", 0, b"1"), ("unlink", "no"), ("write", "a", 1, b"2")], told.append)
    disk.submit("commit", [("write", "b", 0, b"3")], told.append)
    disk.drain()
    assert isinstance(told[0], FileNotFoundError)
    assert told[1] is None
    assert written(disk, "a") == b"1"


def test_an_error_once_and_an_error_that_stays() -> None:
    disk = two_files()
    disk.faults.add(Fault(errno.EMFILE, nth=2, kinds=("write",)))
    disk.run([("write", "a", 0, b"1")])
    with pytest.raises(OSError) as caught:
        disk.run([("write", "a", 1, b"2")])
    assert caught.value.errno == errno.EMFILE
    disk.run([("write", "a", 1, b"3")])
    assert written(disk, "a") == b"13"
    disk.faults.add(Fault(errno.EIO, kinds=("read",), path="b", sticky=True))
    for _ in range(3):
        with pytest.raises(OSError):
            disk.read("b", 0, 1)
    assert disk.read("a", 0, 1) == b"1"
    assert disk.faults.injected_count == 4
    disk.faults.clear()
    assert disk.read("b", 0, 1) == b""


def test_a_short_write_stores_a_front() -> None:
    disk = two_files(seed=3)
    disk.faults.add(Fault(errno.EIO, kinds=("write",), short=True))
    with pytest.raises(OSError):
        disk.run([("write", "a", 0, b"0123456789")])
    assert b"0123456789".startswith(written(disk, "a"))


@pytest.mark.parametrize(
    ("lost", "shown", "durable"),
    [("no", b"new", b"new"), ("cached", b"new", b"old"), ("gone", b"old", b"old")],
)
def test_a_failed_sync_may_lose_what_it_should_have_written(lost: str, shown: bytes, durable: bytes) -> None:
    disk = two_files()
    disk.run([("write", "a", 0, b"old"), ("sync", "a"), ("write", "a", 0, b"new")])
    disk.faults.add(Fault(errno.EIO, kinds=("sync",), lost=lost))
    with pytest.raises(OSError):
        disk.run([("sync", "a")])
    assert written(disk, "a") == shown
    assert written(disk.kill(), "a") == shown
    disk.run([("sync", "a")])  # the retry succeeds, although data was lost
    assert written(disk, "a") == shown
    assert written(disk.crash(DROP), "a") == durable
    disk.snapshot()
    disk.run([("write", "a", 3, b"+"), ("sync", "a")])
    assert written(disk, "a") == shown + b"+"
    assert written(disk.crash(DROP), "a") == durable + b"+"


def test_a_full_disk_refuses_and_takes_again() -> None:
    disk = two_files(capacity=100)
    disk.run([("write", "a", 0, b"x" * 60)])
    assert disk.free() == 40
    with pytest.raises(OSError) as caught:
        disk.run([("write", "b", 0, b"y" * 50)])
    assert caught.value.errno == errno.ENOSPC
    assert disk.size("b") == 40  # as much as fits is written, as on a real disk
    disk.run([("write", "a", 0, b"z" * 60)])  # overwriting needs no space
    with pytest.raises(OSError):
        disk.run([("create", "c", 1)])
    disk.run([("unlink", "a"), ("create", "c", 60)])
    assert disk.free() == 0
    assert disk.crash(OUTCOMES_BY_NAME["keep"]).free() == 0


def test_data_is_taken_when_the_operation_runs() -> None:
    """As with a real thread: a change of the buffer after submitting it is written."""
    disk, buffer = two_files(), bytearray(b"before")
    disk.submit("commit", [("write", "a", 0, buffer)], lambda error: None)
    buffer[:] = b"after!"
    disk.drain()
    assert written(disk, "a") == b"after!"


def test_a_busy_disk_is_told_apart_from_an_endless_one() -> None:
    disk = two_files()

    def again(error: OSError | None) -> None:
        disk.submit("commit", [], again)

    again(None)
    with pytest.raises(RuntimeError, match="still busy"):
        disk.drain(100)


def test_close_finishes_what_was_queued() -> None:
    disk, told = two_files(), []
    disk.submit("behind", [("write", "a", 0, b"1")], told.append)
    disk.close()
    assert told == [None]
    assert disk.closed


def test_the_clock_moves_only_when_told() -> None:
    clock = SimClock(5)
    assert clock.now_ns() == clock.now_ns() == 5
    assert clock.advance(7) == clock.now_ns() == 12
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
