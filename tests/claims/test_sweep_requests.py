"""A sweep needs few requests for many unread claims, and claims that are due do not wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from headrace.claims import Claims, Published, Received, Ttl
from headrace.claims.jetstream_client import RequestTimeout

HOUR = 3600
TTL = Ttl(24 * HOUR, True, 0, 600)
COUNT = 20


async def keep(_: Received) -> None:
    """Succeed without doing anything."""


async def publish_all(world: ClaimsHarness, claims: Claims, stream: str) -> list[Published]:
    published = [await claims.producer.publish(f"{stream}.a", LARGE) for _ in range(COUNT)]
    await wait_until_stored(world.connection)
    return published


class Requests:
    """Counts requests for single messages of a stream, and how many were under way at once."""

    def __init__(self, claims: Claims, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = self.most = self._current = 0
        self._real = claims.jetstream.api_request
        self._call = f"STREAM.MSG.GET.{stream}"
        monkeypatch.setattr(claims.jetstream, "api_request", self._request)

    async def _request(self, call: str, body: Any = None) -> Any:
        if call != self._call:
            return await self._real(call, body)
        self.total += 1
        self._current += 1
        self.most = max(self.most, self._current)
        try:
            return await self._real(call, body)
        finally:
            self._current -= 1


@pytest.fixture
async def unread(world: ClaimsHarness) -> tuple[Claims, str, list[Published]]:
    """Claims that nobody has read, older than the grace period."""
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "down")
    published = await publish_all(world, claims, stream)
    await world.advance(HOUR)
    return claims, stream, published


async def test_unread_claims_need_no_request_each(
    world: ClaimsHarness,
    unread: tuple[Claims, str, list[Published]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims, stream, _ = unread
    requests = Requests(claims, stream, monkeypatch)
    report = await claims.collector.collect()
    assert (report.live, report.released, report.removed) == (COUNT, 0, 0)
    assert requests.total == 0


async def test_requests_run_at_once_if_the_stream_lacks_messages(
    world: ClaimsHarness,
    unread: tuple[Claims, str, list[Published]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims, stream, published = unread
    gone = published[COUNT // 2]
    await world.wire.api_request(f"STREAM.MSG.DELETE.{stream}", {"seq": gone.seq})
    requests = Requests(claims, stream, monkeypatch)
    report = await claims.collector.collect()
    assert report.released == 1, "only the claim of the deleted message is released"
    assert requests.total >= COUNT
    assert requests.most > 1


async def test_messages_before_the_first_one_are_gone(
    world: ClaimsHarness,
    unread: tuple[Claims, str, list[Published]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims, stream, published = unread
    await world.wire.api_request(f"STREAM.PURGE.{stream}", {"seq": published[5].seq})
    requests = Requests(claims, stream, monkeypatch)
    report = await claims.collector.collect()
    assert report.released == 5
    assert requests.total == 0


async def test_due_claims_do_not_wait_for_a_sweep(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await world.claims(ttl=Ttl(24 * HOUR, True, 1, 600))
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(stream, "c"), keep)
    is_sweeping = asyncio.Event()

    async def sweep_forever(*_: Any, **__: Any) -> Any:
        is_sweeping.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(claims.collector._sweeper, "sweep", sweep_forever)
    watching = asyncio.create_task(claims.collector.watch(poll_s=0.05))
    async with asyncio.timeout(TIMEOUT_S):
        await is_sweeping.wait()
        await world.advance(2)
        while await claims.store.exists(sent.reference.object_key):
            await asyncio.sleep(0.02)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_collector_that_may_not_ask_for_the_stream_asks_for_each_message(
    world: ClaimsHarness,
    unread: tuple[Claims, str, list[Published]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims, stream, _ = unread
    real = claims.jetstream.api_request
    refused: list[str] = []

    async def refuse(call: str, body: Any = None) -> Any:
        if call == f"STREAM.INFO.{stream}":
            refused.append(call)
            raise RequestTimeout("no reply")
        return await real(call, body)

    monkeypatch.setattr(claims.jetstream, "api_request", refuse)
    requests = Requests(claims, stream, monkeypatch)
    for _ in range(2):
        assert (await claims.collector.collect()).live == COUNT
    assert requests.total == 2 * COUNT
    assert len(refused) == 1, "it does not wait again and again"
