"""The stores of a running server, as the archiver sees them: a synced frame costs the same with thousands of stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.archive.loop_source import LoopSource
from headrace.sim.clock import SimClock
from headrace.storage import FileDisk, Store, open_store
from headrace.storage.journal.journal_writer import Journal

STORES = 9


@pytest.fixture
def stores(tmp_path: Path) -> Any:
    opened: list[Store] = []
    for number in range(STORES):
        (tmp_path / str(number)).mkdir()
        opened.append(open_store(FileDisk(tmp_path / str(number)), SimClock(1 + number)))
    yield opened
    for store in opened:
        store.close()


async def open_source(stores: list[Store]) -> tuple[LoopSource, list[None]]:
    """Return a source with closed gates, and a list with an element for each wake-up."""
    woken: list[None] = []
    source = LoopSource(lambda: [(f"a{n}", store) for n, store in enumerate(stores)], lambda folders: None)
    source.get_positions()
    await source.close_gates(lambda: woken.append(None))
    return source, woken


def write(store: Store) -> None:
    """Write a frame; it waits for the archive."""
    log = store.logs.get("S") or store.create("S")
    log.append(b"s", b"", b"x", 1)
    store.commit()
    store.disk.drain()


async def test_a_synced_frame_updates_the_position_of_its_store_only(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, woken = await open_source(stores)
    before = {each.store_id: each.frame for each in await source.read_positions()}
    looked_at: list[Journal] = []
    list_unarchived = Journal.list_unarchived

    def note(journal: Journal) -> Any:
        looked_at.append(journal)
        return list_unarchived(journal)

    monkeypatch.setattr(Journal, "list_unarchived", note)
    write(stores[7])
    assert woken
    assert looked_at == [stores[7].journal]
    after = {each.store_id: each.frame for each in await source.read_positions()}
    changed = {store for store in after if after[store] != before[store]}
    assert changed == {stores[7].store_id}
    source.open_gates()


async def test_a_group_is_confirmed_in_one_call_for_the_stores_that_it_has(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, woken = await open_source(stores)
    await source.set_archived({each.store_id: each.frame for each in await source.read_positions()})
    await asyncio.sleep(0)
    write(stores[3])
    assert woken
    assert stores[3].in_flight
    calls: list[Any] = []
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon_threadsafe

    def note(function: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return call_soon(function, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", note)
    frames = {each.store_id: each.frame for each in await source.read_positions()}
    await source.set_archived(frames)
    assert calls == [({stores[3].store_id: frames[stores[3].store_id]},)]
    async with asyncio.timeout(60):
        while stores[3].in_flight:
            await asyncio.sleep(0.01)
    source.open_gates()


async def test_a_pin_comes_after_the_groups_before_it_also_without_gates(stores: list[Store]) -> None:
    source = LoopSource(lambda: [("a", stores[0])], lambda folders: None)
    source.get_positions()
    write(stores[0])
    (position,) = await source.read_positions()
    archived: list[int] = []

    class Pins:
        async def create(self, lease_s: float) -> dict[str, Any]:
            archived.append(stores[0].journal.archived_frame)
            return {"pin": "p", "stores": []}

        def release(self, name: str) -> None: ...

    source.pins = Pins()
    assert stores[0].journal.archived_frame < position.frame
    await source.set_archived({position.store_id: position.frame})
    await source.pin()
    assert archived == [position.frame]


async def test_a_frame_above_its_reserve_waits_until_a_group_announces_more(stores: list[Store]) -> None:
    """With `ack: local`; a store that is opened later, and that no base has yet, may go on."""
    listed = stores[:1]
    source = LoopSource(lambda: [(f"a{n}", each) for n, each in enumerate(listed)], lambda folders: None)
    source.get_positions()
    store = stores[0]
    write(store)
    assert source.find_highest_sequences() == {store.store_id: 1}
    await source.limit_sequences({store.store_id: 2})
    write(store)
    assert not source.is_waiting
    write(store)
    assert source.is_waiting
    assert store.logs["S"].committed_seq == 2
    listed.append(stores[1])
    write(stores[1])
    highest = {each.store_id: each.highest for each in await source.read_positions()}
    assert highest == {store.store_id: 3, stores[1].store_id: 1}
    write(stores[1])
    assert stores[1].logs["S"].committed_seq == 2
    await source.set_reserved({store.store_id: 3})
    assert store.logs["S"].committed_seq == 3
    assert not source.is_waiting
