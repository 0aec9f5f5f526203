"""Tasks that run until they are cancelled: starts several together and ends them together.

Owns how a task is cancelled for certain. Must not know what the tasks do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

_CANCEL_RETRY_S = 0.5


async def run_until_cancelled(*work: Awaitable[None]) -> None:
    """Run awaitables that last until they are cancelled, and make sure that all of them end then."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION) if tasks else ((), ())
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await cancel_and_wait(task)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel until the task has ended.

    A cancellation is lost if a reply arrives at the same moment (`asyncio.wait_for` before 3.12).
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_RETRY_S)
