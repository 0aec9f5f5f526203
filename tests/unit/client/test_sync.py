"""The background thread: waiting, timeouts, and forks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from headrace.client import sync, sync_proxy
from headrace.client.errors import NoAnswer


async def value() -> int:
    return 7


async def failing() -> None:
    raise TimeoutError("its own")


def test_one_thread_serves_everybody() -> None:
    face = sync_proxy.SyncProxy(None, 5.0)
    other = sync_proxy.SyncProxy(None, 5.0)
    assert face.run(value()) == 7
    names = {
        each.run(asyncio.to_thread(threading.active_count)) and each._loop_thread for each in (face, other)
    }
    assert len(names) == 1


def test_giving_up_cancels_what_was_asked() -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(NoAnswer, match=r"not finished within 0\.01 s"):
        sync_proxy.SyncProxy(None, 0.01).run(endless())
    assert ended.wait(90)


def test_an_error_of_the_work_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        sync_proxy.SyncProxy(None, 5.0).run(failing())


def test_waiting_inside_the_loop_is_refused() -> None:
    face = sync_proxy.SyncProxy(None, 5.0)

    async def inside() -> None:
        face.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="asynchronous client"):
        face.run(inside())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_its_own() -> None:
    face = sync_proxy.SyncProxy(None, 5.0)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            sync_proxy.SyncProxy(None, 5.0).run(value())
            face.run(value())
        except sync.WrongProcess:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        assert told.read() == b"refused"
    os.waitpid(child, 0)
    assert face.run(value()) == 7
