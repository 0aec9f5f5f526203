"""Reloads that are requested while one is running are made after it, once."""

from __future__ import annotations

import asyncio

from headrace.cli.serve import Reloads


async def test_reloads_do_not_overlap_and_the_last_request_is_served() -> None:
    running, made = 0, 0
    release = asyncio.Event()

    async def reload() -> None:
        nonlocal running, made
        running += 1
        assert running == 1
        await release.wait()
        running -= 1
        made += 1

    reloads = Reloads(reload)
    reloads.request()
    await asyncio.sleep(0)
    reloads.request()
    reloads.request()
    release.set()
    async with asyncio.timeout(90):
        while made < 2:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert made == 2
    reloads.request()
    async with asyncio.timeout(90):
        while made < 3:
            await asyncio.sleep(0)
