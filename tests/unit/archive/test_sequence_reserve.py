"""What groups reserve, and the gate of `ack: local` in front of a store on a simulated disk."""

from __future__ import annotations

import pytest

from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import EarlierRuns
from headrace.archive.journal_tail import StorePosition
from headrace.archive.sequence_reserve import RESERVE_MIN, SequenceLimit, SequenceReserve, find_highest
from headrace.errors import StoreError
from headrace.sim import SimDisk
from headrace.storage import Store, open_store
from headrace.storage.log.log import SEQ_MAX
from headrace.storage.snapshot.open_snapshot import open_log
from support.archives import SERVER, STORE, FrameSource, make_target, make_writer
from support.small_store import TINY, Ticking, commit

HOUR_NS = 3600 * 1_000_000_000


def at(highest: int) -> list[StorePosition]:
    return [StorePosition(STORE, "$G", 1, [], highest)]


def test_more_is_reserved_when_half_is_used_up() -> None:
    reserve = SequenceReserve(lambda: 0)
    reserve.begin({}, {STORE: 10})
    assert reserve.header == {f"{STORE:016x}": 10 + RESERVE_MIN}
    assert reserve.confirmed == {}
    assert reserve.confirm()
    assert not reserve.confirm()
    assert not reserve.update(at(10 + RESERVE_MIN // 24))
    used = 11 + RESERVE_MIN // 2
    assert reserve.update(at(used))
    assert reserve.confirmed == {STORE: 10 + RESERVE_MIN}
    assert reserve.confirm()
    # In less than an hour: as if it were an hour.
    assert reserve.confirmed == {STORE: used + 24 * (used - 10)}


def test_a_day_is_reserved_at_the_rate_since_the_start() -> None:
    times = iter((0, 0, 12 * HOUR_NS))
    reserve = SequenceReserve(lambda: next(times))
    reserve.begin({}, {STORE: 0})
    reserve.update(at(10**9))
    assert reserve.announced == {STORE: 3 * 10**9}


def test_what_was_reserved_never_falls() -> None:
    reserve = SequenceReserve(lambda: 0)
    reserve.begin({f"{STORE:016x}": 10**12}, {STORE: 5})
    assert reserve.announced == {STORE: 10**12}
    reserve.begin({}, {STORE: SEQ_MAX - 1})
    assert reserve.announced == {STORE: SEQ_MAX}
    reserve.confirm()
    assert not reserve.update(at(SEQ_MAX))


def test_a_store_whose_messages_wait_for_the_archive_needs_no_reserve() -> None:
    reserve = SequenceReserve(lambda: 0)
    reserve.begin({f"{STORE:016x}": 7}, {})
    reserve.confirm()
    assert not reserve.update([StorePosition(STORE, "$G", 1, [])])
    assert reserve.announced == {STORE: 7}


async def test_a_group_announces_it_before_it_counts_also_without_frames() -> None:
    target, source = await make_target(), FrameSource()
    writer = make_writer(target, source, "w1")
    await writer.take_over({"w1"}, {STORE: 0}, EarlierRuns(highest={STORE: 1}))
    assert writer.reserve.confirmed == {STORE: 1 + RESERVE_MIN}
    source.highest = RESERVE_MIN
    assert not await writer.send_group()
    raised = source.reserved[STORE]
    assert raised > 1 + RESERVE_MIN
    groups = GroupLog(target, SERVER)
    first, second = await groups.read(1), await groups.read(2)
    assert first is not None
    assert second is not None
    assert first.header.reserved == {f"{STORE:016x}": 1 + RESERVE_MIN}
    assert second.header.reserved == {f"{STORE:016x}": raised}
    assert not await writer.send_group()
    assert await groups.read(3) is None
    remote = make_writer(target, FrameSource(), "w2")
    await remote.take_over({"w1", "w2"}, {STORE: 0})
    third = await groups.read(3)
    assert third is not None
    assert third.header.reserved == second.header.reserved


class LimitedStore:
    """A store that may show four sequences more than it has."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.store: Store = open_store(self.disk, Ticking(), TINY)
        self.log = self.store.create("S")
        self.log.append(b"a", b"", b"x", 1)
        commit(self.store)
        self.limit = SequenceLimit(self.store, find_highest(self.store) + 4)

    def write(self, count: int) -> None:
        """Append messages, and write their frame."""
        for _ in range(count):
            self.log.append(b"a", b"", b"x", 1)
        self.store.commit()
        self.disk.drain()


def test_a_frame_above_the_limit_waits_until_it_is_raised() -> None:
    limited = LimitedStore()
    limited.write(4)
    assert (limited.log.committed_seq, limited.limit.is_waiting) == (5, False)
    limited.write(1)
    assert (limited.log.committed_seq, limited.limit.is_waiting) == (5, True)
    limited.limit.raise_to(5)
    assert limited.limit.is_waiting
    limited.limit.raise_to(6)
    assert (limited.log.committed_seq, limited.limit.is_waiting) == (6, False)
    limited.limit.raise_to(1)
    assert limited.limit.limit == 6


def test_a_skipped_sequence_counts() -> None:
    limited = LimitedStore()
    limited.log.remove_below(7)
    limited.store.commit()
    limited.disk.drain()
    assert limited.limit.is_waiting


@pytest.mark.parametrize("is_late", [False, True])
def test_a_store_that_is_closed_acknowledges_nothing_above_the_limit(is_late: bool) -> None:
    limited = LimitedStore()
    if is_late:
        limited.limit.close()
        limited.write(5)
    else:
        limited.write(5)
        limited.limit.close()
    assert limited.log.committed_seq == 1
    with pytest.raises(StoreError, match="could not reserve more sequences"):
        limited.store.close()


def test_a_store_is_read_in_its_process_unless_a_frame_waits() -> None:
    limited = LimitedStore()
    limited.log.append(b"a", b"", b"x", 1)
    open_log(limited.store, limited.log, 0).close()
    for _ in range(4):
        limited.log.append(b"a", b"", b"x", 1)
    with pytest.raises(StoreError, match="wait for the archive"):
        open_log(limited.store, limited.log, 0)
