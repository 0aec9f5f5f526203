"""The leader object: who may write it, when a lease ends, and what counts as alive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from headrace.archive import leader_record
from headrace.archive.leader_record import (
    LeaderKeeper,
    LeaderLease,
    LeaderRecord,
    LeaderWatch,
    describe_host,
    is_gone,
    read_leader,
    replace_leader,
    watch_for_change,
)
from headrace.archive.server_leader import LeaderSettings, ServerLeader
from headrace.backup.target import BackupTarget
from headrace.claims.stores import Chunk, MemoryStore, ObjectStoreError
from headrace.errors import ArchiveFenced
from headrace.sim.clock import SimClock
from headrace.sim.event_loop import SimLoop, run_program
from support.archives import make_target


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_record(writer: str = "a", epoch: int = 1) -> LeaderRecord:
    return LeaderRecord(writer, epoch, 0, "remote", 3.0)


async def test_each_renewal_changes_the_object_and_extends_the_lease() -> None:
    target, clock = await make_target(), FakeClock()
    lease = LeaderLease(3.0, clock)
    keeper = LeaderKeeper(target, make_record(), lambda: 1, lease)
    assert not lease.has_ended, "before the first renewal no standby waits"
    versions = set()
    for _ in range(3):
        await keeper.renew()
        record = await read_leader(target)
        assert record is not None
        versions.add(record.version)
    assert len(versions) == 3


def test_a_lease_ends_and_is_not_extended_again() -> None:
    clock = FakeClock()
    lease = LeaderLease(3.0, clock)
    lease.extend(clock.now)
    clock.now += 2.9
    assert not lease.has_ended
    lease.extend(clock.now - 1)  # counted from the beginning of the request
    clock.now += 2.0
    assert lease.has_ended
    lease.extend(clock.now)
    assert lease.has_ended, "clients were dropped"


async def test_an_older_leader_does_not_replace_a_newer_one() -> None:
    target = await make_target()
    await LeaderKeeper(target, make_record("new", 5), lambda: 5).renew()
    lease = LeaderLease(3.0)
    with pytest.raises(ArchiveFenced):
        await LeaderKeeper(target, make_record("old", 4), lambda: 4, lease).renew()
    found = await read_leader(target)
    assert found is not None
    assert found.writer == "new"


async def test_a_damaged_object_is_replaced() -> None:
    target = await make_target()
    await target.replace("leader", b"?")
    assert await read_leader(target) is None
    await LeaderKeeper(target, make_record(), lambda: 1).renew()
    assert await read_leader(target) is not None


def test_a_watch_counts_from_the_last_change() -> None:
    clock = FakeClock()
    watch, record = LeaderWatch(clock), make_record()
    clock.now += 50
    watch.observe(record)
    assert watch.unchanged_s == 0
    clock.now += 3
    watch.observe(record)
    watch.observe(None)  # not there for a moment
    assert watch.unchanged_s == 3
    watch.observe(msgspec.structs.replace(record, counter=1))
    assert watch.unchanged_s == 0


def test_a_process_that_ended_here_is_gone() -> None:
    record = msgspec.structs.replace(make_record(), host=describe_host(), pid=os.getpid())
    assert is_gone(record), "a container's next process has the same number"
    assert not is_gone(msgspec.structs.replace(record, pid=os.getppid()))
    assert is_gone(msgspec.structs.replace(record, pid=2**22 + 1))
    assert not is_gone(msgspec.structs.replace(record, pid=2**22 + 1, host="elsewhere"))
    assert is_gone(msgspec.structs.replace(record, host="elsewhere", is_released=True))


async def test_a_start_watches_for_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_record, "RENEWAL_S", 0.01)
    target = await make_target()
    assert await watch_for_change(target, 0.05) is None, "nobody has ever written"
    keeper = LeaderKeeper(target, msgspec.structs.replace(make_record(), takeover_after_s=0.05), lambda: 1)
    await keeper.renew()
    assert await watch_for_change(target, 0.05) is None, "it does not change"


class NoDeadlines:
    """Nothing happens outside of the coroutines."""

    def next_deadline(self) -> int | None:
        return None

    def run_due(self) -> None:
        return None


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run on virtual time: a busy machine changes nothing."""
    run_program(SimLoop(SimClock(), NoDeadlines()), work)


class SlowStore(MemoryStore):
    """Answers the requests with these numbers never, or refuses them; notes when the object is replaced."""

    def __init__(self, hangs: set[int] = frozenset(), fails: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().__init__("archive")
        self.hangs, self.fails = hangs, fails
        self.requests = 0
        self.replaced_s: list[float] = []

    async def _answer(self) -> None:
        self.requests += 1
        if self.requests in self.fails:
            raise ObjectStoreError("503 Slow Down")
        if self.requests in self.hangs:
            await asyncio.Event().wait()

    async def get_version(self, key: str) -> tuple[bytes, str]:
        await self._answer()
        return await super().get_version(key)

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        await self._answer()
        self.replaced_s.append(asyncio.get_running_loop().time())
        await super().put_version(key, data, version)


async def renew_for(store: SlowStore, takeover_after_s: float, duration_s: float) -> bool:
    """Renew for some time; return whether the lease has ended."""
    loop, target = asyncio.get_running_loop(), await make_target(store)
    lease = LeaderLease(takeover_after_s, loop.time)
    record = msgspec.structs.replace(make_record(), takeover_after_s=takeover_after_s)
    keeper = LeaderKeeper(target, record, lambda: 1, lease, loop.time)
    await keeper.begin()
    task = asyncio.create_task(keeper.run())
    end_s = loop.time() + duration_s
    while loop.time() < end_s and not lease.has_ended:
        await asyncio.sleep(0.01)
    task.cancel()
    return lease.has_ended


@pytest.mark.parametrize("takeover_after_s", [1.0, 3.0, 30.0])
def test_a_request_without_an_answer_does_not_end_the_lease(takeover_after_s: float) -> None:
    async def run() -> None:
        store = SlowStore(hangs={6, 15, 16})  # also two, one after the other
        assert not await renew_for(store, takeover_after_s, 40 * takeover_after_s)
        assert store.requests > 60

    run_virtually(run())


def test_a_store_that_does_not_answer_ends_the_lease() -> None:
    async def run() -> None:
        assert await renew_for(SlowStore(hangs=set(range(6, 100))), 3.0, 60.0)

    run_virtually(run())


@pytest.mark.parametrize("takeover_after_s", [3.0, 30.0])
def test_the_object_is_replaced_once_a_second_at_most(takeover_after_s: float) -> None:
    """Google Cloud Storage allows one write per second to an object."""

    async def run() -> None:
        store = SlowStore()
        await renew_for(store, takeover_after_s, 60.0)
        pauses = [
            later - earlier for earlier, later in zip(store.replaced_s, store.replaced_s[1:], strict=False)
        ]
        assert len(pauses) > 50
        assert min(pauses) > 0.999

    run_virtually(run())


async def test_a_start_waits_for_the_first_renewal() -> None:
    """Before it the lease has no end: a server that is suspended would send reads long after a takeover."""
    target = await make_target(SlowStore(hangs={1}, fails={3}))
    settings = LeaderSettings(ack="remote", takeover_after_s=0.5, is_lease_kept=True)
    leader = ServerLeader(settings, print)
    await leader.start(target, "a", lambda: 1)
    assert leader.lease is not None
    assert leader.lease.deadline_s < float("inf")
    found = await read_leader(target)
    assert found is not None
    assert found.writer == "a"
    await leader.stop(is_released=True)


async def test_a_start_ends_if_the_object_is_that_of_a_newer_epoch() -> None:
    target = await make_target()
    await LeaderKeeper(target, make_record("new", 5), lambda: 5).renew()
    leader = ServerLeader(LeaderSettings(is_lease_kept=True), print)
    with pytest.raises(ArchiveFenced):
        await leader.start(target, "old", lambda: 4)


async def test_a_claim_ends_the_renewals_of_the_leader() -> None:
    target = await make_target()
    old = LeaderKeeper(target, make_record("old", 1), lambda: 1, LeaderLease(3.0))
    await old.renew()
    seen = await read_leader(target)
    assert seen is not None
    assert await replace_leader(target, seen, make_record("new", 2))
    with pytest.raises(ArchiveFenced):
        await old.renew()


async def test_a_leader_that_renewed_since_it_was_seen_is_not_replaced() -> None:
    """Its lease is valid: it may still send reads."""
    target = await make_target()
    old = LeaderKeeper(target, make_record("old", 1), lambda: 1)
    await old.renew()
    seen = await read_leader(target)
    assert seen is not None
    await old.renew()
    assert not await replace_leader(target, seen, make_record("new", 2))
    await old.renew()


async def test_a_claim_replaces_an_object_that_cannot_be_read() -> None:
    target: BackupTarget = await make_target()
    await target.replace("leader", b"?")
    assert await replace_leader(target, make_record("old", 1), make_record("new", 2))
    found = await read_leader(target)
    assert found is not None
    assert found.writer == "new"


class UnreliableStore(MemoryStore):
    """Fails to answer the reads with these numbers."""

    def __init__(self, fails: set[int]) -> None:
        super().__init__("archive")
        self.fails = fails
        self.reads = 0

    async def get(self, key: str) -> Any:
        self.reads += 1
        if self.reads in self.fails:
            raise ObjectStoreError("503 Slow Down")
        return await super().get(key)


async def test_an_error_while_a_start_watches_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_record, "RENEWAL_S", 0.01)
    store = UnreliableStore({3, 4})
    target = await make_target(store)
    await LeaderKeeper(
        target, msgspec.structs.replace(make_record(), takeover_after_s=0.05), lambda: 1
    ).renew()
    assert await watch_for_change(target, 0.05) is None
    store.fails, store.reads = set(range(2, 10**6)), 0
    monkeypatch.setattr(leader_record, "WATCH_TIMEOUT_S", 0.2)
    with pytest.raises(ObjectStoreError):
        await watch_for_change(target, 0.05)
