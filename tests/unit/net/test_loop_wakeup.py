"""Other threads wake the event loop through a descriptor."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from headrace.net.loop_wakeup import LoopWakeup


def run(call: Callable[[], None]) -> None:
    call()


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_a_write_makes_the_call(has_eventfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)

    async def main() -> None:
        called: asyncio.Queue[int] = asyncio.Queue()
        wakeup = LoopWakeup(asyncio.get_running_loop(), run)
        fd = wakeup.start(lambda: called.put_nowait(1))
        for _ in range(3):
            threading.Thread(target=os.write, args=(fd, (1).to_bytes(8, "little"))).start()
            assert await asyncio.wait_for(called.get(), 10) == 1
        await asyncio.sleep(0)
        assert called.empty()
        wakeup.close()

    asyncio.run(main())


def test_closing_after_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    wakeup = LoopWakeup(loop, run)
    fd = wakeup.start(lambda: None)
    loop.close()
    wakeup.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
