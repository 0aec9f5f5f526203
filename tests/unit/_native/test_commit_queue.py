"""The commit queue: order, complete writes, errors with the step that failed, wakeups. Both versions."""

import contextlib
import errno
import importlib
import os
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

WAIT_S = 60.0


@pytest.fixture(params=["commit_queue", "commit_queue_pure"])
def queues(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


class Running:
    """A queue with its thread."""

    def __init__(self, module: Any, *args: Any) -> None:
        self.queue = module.CommitQueue(*args)
        self.thread = threading.Thread(target=self.queue.run, daemon=True)
        self.thread.start()

    def results(self) -> list[Any]:
        """Wait for everything submitted."""
        found: list[Any] = []
        while len(self.queue):
            self.queue.wait()
            found += self.queue.take_completed()
        return found

    def close(self) -> None:
        self.queue.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def running(queues: Any) -> Iterator[Running]:
    made = Running(queues)
    yield made
    made.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_steps_run_in_order_and_write_everything(running: Running, fd: int) -> None:
    rng = Random(1)
    expected = bytearray(40_000)
    for token in range(50):
        pieces = [rng.randbytes(rng.choice([0, 1, 7, 300])) for _ in range(rng.randrange(0, 100))]
        offset = rng.randrange(20_000)
        data = b"".join(pieces)
        expected[offset : offset + len(data)] = data
        views = [memoryview(piece) if rng.random() < 0.5 else bytearray(piece) for piece in pieces]
        running.queue.submit([(fd, offset, views), (fd, -1, ())], token)
    results = running.results()
    assert [result[0] for result in results] == list(range(50))
    assert all(result[2:] == (-1, 0, None) and result[1] >= 0 for result in results)
    found = os.pread(fd, 50_000, 0)
    assert found == bytes(expected[: len(found)])
    assert not any(expected[len(found) :])


def test_more_pieces_than_one_call_takes(running: Running, fd: int) -> None:
    pieces = [b"%04d" % number for number in range(3_000)] + [b""] * 600 + [b"end"]
    running.queue.submit([(fd, 5, pieces)], "many")
    assert running.results()[0][2] == -1
    assert os.pread(fd, 20_000, 5) == b"".join(pieces)


def test_the_first_failed_step_ends_its_submission_and_not_the_next(running: Running, fd: int) -> None:
    read_end, write_end = os.pipe()
    try:
        running.queue.submit([(fd, 0, [b"one"]), (write_end, -1, ()), (fd, 0, [b"two"])], 1)
        running.queue.submit([(fd, 3, [b"three"]), (fd, -1, ())], 2)
        first, second = running.results()
    finally:
        os.close(read_end)
        os.close(write_end)
    assert first[2:] == (1, errno.EINVAL, None)  # a pipe cannot be synced
    assert second[2:] == (-1, 0, None)
    assert os.pread(fd, 20, 0) == b"onethree"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_a_full_device_is_an_error_of_its_step(running: Running, fd: int) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    try:
        running.queue.submit([(fd, 0, [b"x"]), (full, 0, [b"y"]), (fd, -1, ())], "full")
        assert running.results()[0][2:] == (1, errno.ENOSPC, None)
    finally:
        os.close(full)


SHORT_WRITE = """
import importlib, os, resource, signal, sys, threading
queue = importlib.import_module(sys.argv[1]).CommitQueue()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
threading.Thread(target=queue.run, daemon=True).start()
queue.submit([(fd, 0, [b"a" * 4_000, b"b" * 4_000, b"c" * 4_000]), (fd, -1, ())], "t")
queue.wait()
print(queue.take_completed()[0][2:4], os.fstat(fd).st_size)
"""


def test_a_short_write_is_continued_until_the_error(queues: Any, tmp_path: Path) -> None:
    """The kernel writes up to the limit of a file's size, which is short, and then refuses."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_WRITE, queues.__name__, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout.strip() == f"(0, {errno.EFBIG}) 10000", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10_000


def test_calls_run_in_order_with_steps_and_report_what_they_raise(running: Running, fd: int) -> None:
    seen: list[str] = []
    names: list[str] = []

    def fail() -> None:
        names.append(threading.current_thread().name)
        raise KeyError("no such thing")

    running.queue.submit([(fd, 0, [b"first"])], "a")
    running.queue.submit_call(lambda: seen.append(os.pread(fd, 9, 0).decode()), "b")
    running.queue.submit([(fd, 0, [b"again"])], "c")
    running.queue.submit_call(fail, "d")
    results = running.results()
    assert [result[0] for result in results] == ["a", "b", "c", "d"]
    assert seen == ["first"]
    assert isinstance(results[3][4], KeyError)
    assert results[3][2:4] == (-1, 0)
    assert names == [running.thread.name]


def test_steps_that_a_call_returns_run_next(running: Running, fd: int) -> None:
    names: list[str] = []

    def make_steps() -> list[Any]:
        names.append(threading.current_thread().name)
        return [(fd, 0, [b"made ", bytearray(b"later")]), (fd, -1, ())]

    running.queue.submit([(fd, 0, [b"first first"])], "a")
    running.queue.submit_call(make_steps, "b")
    running.queue.submit([(fd, 10, [b"!"])], "c")
    assert [result[0] for result in running.results()] == ["a", "b", "c"]
    assert names == [running.thread.name]
    assert os.pread(fd, 20, 0) == b"made later!"


def test_a_failed_step_of_a_call_is_reported_like_any_other(running: Running, fd: int) -> None:
    read_end, write_end = os.pipe()
    try:
        running.queue.submit_call(lambda: [(fd, 0, [b"x"]), (write_end, -1, ()), (fd, 0, [b"y"])], 1)
        assert running.results()[0][2:] == (1, errno.EINVAL, None)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert os.pread(fd, 9, 0) == b"x"


def test_steps_that_cannot_be_written_are_an_exception_of_the_call(running: Running, fd: int) -> None:
    running.queue.submit_call(lambda: [(fd, 0, [b"x"]), (fd, 1, ["no buffer"])], 1)
    [(_, _, failed_step, error_number, exception)] = running.results()
    assert (failed_step, error_number) == (-1, 0)
    assert isinstance(exception, TypeError)
    assert os.pread(fd, 9, 0) == b""


def test_large_writes_arrive_whole(running: Running, fd: int) -> None:
    rng = Random(2)
    pieces = [rng.randbytes(size) for size in (700_000, 700_001, 5, 3_000_000, 0, 1 << 20, 17)]
    running.queue.submit([(fd, 513, pieces), (fd, -1, ())], 1)
    assert running.results()[0][2:] == (-1, 0, None)
    assert os.pread(fd, 9_000_000, 513) == b"".join(pieces)


def test_buffers_are_held_until_the_completion_is_taken(running: Running, fd: int) -> None:
    data = bytearray(b"x" * 100)
    running.queue.submit([(fd, 0, [data])], None)
    with pytest.raises(BufferError):
        data.clear()
    running.results()
    data.clear()
    with pytest.raises(TypeError):
        running.queue.submit([(fd, 0, ["no buffer"])], None)
    assert running.results() == []


def test_a_wakeup_follows_each_completion(queues: Any, fd: int) -> None:
    read_end, write_end = os.pipe()
    running = Running(queues, write_end)
    try:
        for number in range(3):
            running.queue.submit([(fd, 0, [b"x"]), (fd, -1, ())], number)
            assert select.select([read_end], [], [], WAIT_S)[0]
            assert os.read(read_end, 100) == (1).to_bytes(8, sys.byteorder)
            assert [result[0] for result in running.queue.take_completed()] == [number]
    finally:
        running.close()
        os.close(read_end)
        os.close(write_end)


def test_a_full_pipe_does_not_block_the_thread(queues: Any, fd: int) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(4096))
    running = Running(queues, write_end)
    try:
        running.queue.submit([(fd, 0, [b"x"])], 1)
        assert len(running.results()) == 1
    finally:
        running.close()
        os.close(read_end)
        os.close(write_end)


def test_notify_is_called_after_each_completion(queues: Any, fd: int) -> None:
    called = threading.Semaphore(0)
    running = Running(queues, -1, called.release)
    try:
        for number in range(3):
            running.queue.submit([(fd, 0, [b"x"])], number)
            assert called.acquire(timeout=WAIT_S)
            assert len(running.queue.take_completed()) == 1
    finally:
        running.close()


def test_closing_runs_what_was_submitted(queues: Any, fd: int) -> None:
    running = Running(queues)
    for number in range(100):
        running.queue.submit([(fd, number, [b"%d" % (number % 10)])], number)
    running.close()
    assert [result[0] for result in running.queue.take_completed()] == list(range(100))
    assert os.pread(fd, 200, 0) == b"0123456789" * 10


def test_nothing_submitted_means_no_wait(running: Running) -> None:
    running.queue.wait()
    assert running.queue.take_completed() == []
    assert len(running.queue) == 0


def test_the_package_exports_it() -> None:
    native = importlib.import_module("headrace._native")
    assert native.CommitQueue.__name__ == "CommitQueue"
