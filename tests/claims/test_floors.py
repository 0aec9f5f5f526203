"""Who still needs a claim: every consumer and reader that may come to its message, in every stream that has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from claims.world import LARGE, World
from headrace.claims import PRESETS, Claims, Received, register_reader
from headrace.claims.floors import Floors, readers
from headrace.claims.registry import STREAM
from headrace.claims.wire import NoAnswer
from headrace.errors import RequestError

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """A handler that is content."""


async def lease(claims: Claims, stream: str, count: int, **terms: int) -> None:
    """So many readers that have read nothing yet."""
    for start in range(0, count, 100):
        names = [f"r{number}" for number in range(start, min(start + 100, count))]
        await asyncio.gather(*(register_reader(claims.wire, stream, name, 0, **terms) for name in names))


async def mirrored(world: World) -> tuple[str, str]:
    """A stream and its mirror."""
    stream = await world.stream()
    mirror = f"{stream}m"
    await world.wire.api(f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": stream}})
    return stream, mirror


async def test_a_consumer_of_the_same_name_in_another_stream_is_asked(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream, mirror = await mirrored(world)
    await world.consumer(stream, "worker")
    await world.consumer(mirror, "worker")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.connection.flush()
    await world.advance(5)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(mirror, "worker"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    assert await claims.consumer.handle(await world.next(stream, "worker"), nothing)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_every_lease_protects_however_many_there_are(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await lease(claims, stream, 1100)
    assert len(await readers(claims.wire, stream)) == 1100
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)


async def test_a_lease_that_is_over_leaves_nothing(world: World) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await lease(claims, stream, 1, lease_s=1)
    await world.advance(2)
    async with asyncio.timeout(10):
        while await world.wire.last(STREAM, f"$CLAIMS.reader.{stream}.r0"):
            await asyncio.sleep(0.05)  # nats-server's time is real


async def test_markers_of_leases_that_are_over_are_no_leases(world: World) -> None:
    """Leases of earlier versions leave one each, for days."""
    claims = await world.claims()
    stream = await world.stream()
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
    for number in range(1100):
        await world.wire.send(f"$CLAIMS.reader.{stream}.over{number}", b"", marker)
    await register_reader(claims.wire, stream, "lasting", 0)
    assert [floor.name for floor in await readers(claims.wire, stream)] == ["reader lasting"]


async def test_a_get_of_many_that_is_refused_is_not_taken_for_none(world: World) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await lease(claims, stream, 1100)
    with pytest.raises(RequestError) as caught:
        await claims.wire.last_of(STREAM, [f"$CLAIMS.reader.{stream}.*"])
    assert caught.value.code == 413


async def test_nobody_is_passed_over_when_consumers_go_and_come_between_two_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await world.claims()
    stream = await world.stream()
    names = [f"c{number:04d}" for number in range(300)]
    for name in names:
        await world.consumer(stream, name)
    api, pages = claims.wire.api, 0

    async def changing(verb: str, body: Any = None) -> Any:
        nonlocal pages
        answer = await api(verb, body)
        pages += 1
        if pages == 1:
            await api(f"CONSUMER.DELETE.{stream}.{names[0]}")
            await world.consumer(stream, "later")  # so that there are as many as before
        return answer

    monkeypatch.setattr(claims.wire, "api", changing)
    found = {floor.name for floor in await Floors(claims.wire).of(stream) or ()}
    assert found == {*names[1:], "later"}


class Cluster:
    """A server whose list of consumers is what the test says."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = list(pages)

    async def api(self, verb: str, body: Any = None) -> Any:
        return self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]

    async def all_of(self, *_: Any) -> list[Any]:
        return []

    async def message(self, *_: Any) -> dict[str, Any]:
        return {"seq": 1}


@pytest.mark.parametrize("silent", [{"missing": ["slow"]}, {"offline": {"slow": "needs a newer server"}}])
async def test_a_consumer_that_a_cluster_could_not_ask_may_need_everything(silent: dict[str, Any]) -> None:
    floors: Any = Floors(Cluster({"total": 1, "consumers": [], **silent}))  # type: ignore[arg-type]
    assert await floors.needed_by("S", "s.a", 1) == "slow"


async def test_a_list_that_never_holds_still_is_no_answer() -> None:
    floors = Floors(Cluster({"total": 2, "consumers": [], "missing": ["a"]}))  # type: ignore[arg-type]
    with pytest.raises(NoAnswer):
        await floors.of("S")
