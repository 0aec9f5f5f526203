"""TTLs are tracked for existing messages, however far apart their sequences are."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.broker.streams.ttl import SECOND_NS, TTL_EXEMPT, MaxAgeIndex, TtlIndex
from headrace.sim import SimClock, SimDisk
from headrace.storage import StreamLog, open_store

GAP = 1 << 34
MOST = 1_000


def two_far_apart(memory: bool, first_ttl_s: int) -> StreamLog:
    log = open_store(SimDisk(), SimClock()).create("S", memory=memory)
    log.append(b"s", b"", b"x", 1, first_ttl_s)
    log.advance(GAP)
    log.append(b"s", b"", b"x", 1, 60)
    return log


@pytest.mark.parametrize("memory", [False, True])
def test_what_is_due_is_found_on_both_sides_of_a_gap(memory: bool) -> None:
    log = two_far_apart(memory, 60)
    tracemalloc.start()
    try:
        deadlines = TtlIndex(log, 1)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 100_000
    assert deadlines.pop_due(60 * SECOND_NS, MOST).tolist() == []
    assert deadlines.pop_due(60 * SECOND_NS + 1, MOST).tolist() == [1, GAP + 1]
    assert deadlines.next_ns() == 0


def test_runs_without_messages_are_passed_over() -> None:
    log = open_store(SimDisk(), SimClock()).create("S", memory=True)
    log.append_many([(b"s", b"", b"x")] * 200_000, 1)
    last = log.append(b"s", b"", b"x", 1, 60)
    log.remove_many(range(2, 200_001))
    deadlines = TtlIndex(log, 1)
    assert deadlines.pop_due(61 * SECOND_NS, MOST).tolist() == [last]


@pytest.mark.parametrize("memory", [False, True])
def test_a_gap_behind_a_message_that_stays_is_crossed_at_once(memory: bool) -> None:
    log = two_far_apart(memory, TTL_EXEMPT)
    ages = MaxAgeIndex(log, 10, allow_msg_ttl=True)
    assert ages.pop_due(100, MOST).tolist() == []
    assert ages.pop_due(100, MOST).tolist() == [GAP + 1]
    log.remove(GAP + 1)
    assert ages.next_ns() == 0
    log.append(b"s", b"", b"x", 200)
    assert ages.next_ns() == 210


class TestTimesOutOfOrder:
    """A message dated ahead does not hold up those behind it."""

    TIMES = (100, 101, 500, 102, 103, 500, 104)

    def pop_all(self, ages: MaxAgeIndex, log: StreamLog, now_ns: int) -> list[int]:
        """Remove everything that is due."""
        found: list[int] = []
        while 0 < ages.next_ns() <= now_ns:
            due = ages.pop_due(now_ns, MOST).tolist()
            assert len(due) <= MOST
            log.remove_many(due)
            found += due
        return found

    @pytest.mark.parametrize("stored_first", [False, True])
    @pytest.mark.parametrize("memory", [False, True])
    def test_each_goes_in_its_time(self, memory: bool, stored_first: bool) -> None:
        log = open_store(SimDisk(), SimClock()).create("S", memory=memory)
        early = None if stored_first else MaxAgeIndex(log, 10, allow_msg_ttl=True)
        for time_ns in self.TIMES:
            seq = log.append(b"s", b"", b"x", time_ns)
            if early is not None:
                early.add(seq, time_ns)
        ages = early or MaxAgeIndex(log, 10, allow_msg_ttl=True)
        for now_ns, due in ((109, []), (110, [1]), (112, [2, 4]), (114, [5, 7]), (509, []), (510, [3, 6])):
            assert self.pop_all(ages, log, now_ns) == due
        assert ages.next_ns() == 0

    def test_many_are_dated_ahead(self) -> None:
        """More than one run of them, and more are due than are removed at once."""
        log = open_store(SimDisk(), SimClock()).create("S", memory=True)
        log.append_many([(b"s", b"", b"x")] * 70_000, 10_000)
        log.append_many([(b"s", b"", b"x")] * 5_000, 100)
        ages = MaxAgeIndex(log, 10, allow_msg_ttl=True)
        assert self.pop_all(ages, log, 5_000) == list(range(70_001, 75_001))
