"""Cancelled work ends even if the first cancellation is lost."""

import asyncio

import pytest

from headrace.claims.collector_service import run_until_cancelled


async def test_a_cancellation_that_gets_lost_is_repeated() -> None:
    heard = []

    async def deaf() -> None:
        while len(heard) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append("cancelled")

    watching = asyncio.ensure_future(run_until_cancelled(deaf(), asyncio.sleep(60)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(watching, 30)
    assert len(heard) == 2
