"""Runs long calculations of the broker in a thread, so that the event loop serves clients meanwhile.

Owns one thread, which starts with the first call and ends when nothing refers to it any more. A call
must not use anything that the event loop changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.broker.operation_runner import complete


class OffloopThread:
    """A thread for calculations."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None

    def run(self, call: Callable[[], Any], on_done: Callable[[Future[Any]], None]) -> None:
        """Make a call in the thread, and then `on_done` with its result on the event loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "offloop")
        self._pool.submit(self._run, call, on_done)

    def _run(self, call: Callable[[], Any], on_done: Callable[[Future[Any]], None]) -> None:
        outcome = complete(call)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(on_done, outcome)
