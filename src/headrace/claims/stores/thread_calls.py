"""Calls in threads that own something, such as an open file, and must end before it is taken from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_to_end(function: Callable[..., Result], *arguments: object) -> Result:
    """Run a function in a thread; if this is cancelled, wait for the thread first: it cannot be stopped."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
