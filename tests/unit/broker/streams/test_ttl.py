"""TTLs are tracked for existing messages, however far apart their sequences are."""

from __future__ import annotations

import random
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


def pop_all(deadlines: TtlIndex, now_ns: int, limit: int = MOST) -> list[int]:
    found: list[int] = []
    while 0 < deadlines.next_ns() <= now_ns:
        due = deadlines.pop_due(now_ns, limit).tolist()
        assert len(due) <= limit
        found += due
    return found


@pytest.mark.parametrize("memory", [False, True])
def test_what_is_due_is_found_on_both_sides_of_a_gap(memory: bool) -> None:
    log = two_far_apart(memory, 60)
    tracemalloc.start()
    try:
        deadlines = TtlIndex(log)
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
    deadlines = TtlIndex(log)
    assert pop_all(deadlines, 61 * SECOND_NS) == [last]


@pytest.mark.parametrize("stored_first", [0, 1_000, 70_000])
def test_each_message_expires_once_and_in_time(stored_first: int) -> None:
    """Also those that are stored while others expire, such as delete markers."""
    log = open_store(SimDisk(), SimClock()).create("S", memory=True)
    generator, now_ns = random.Random(stored_first), SECOND_NS
    expected: dict[int, int] = {}

    def store(deadlines: TtlIndex | None) -> None:
        ttl_s = generator.choice((1, 1, 2, 9, 30))
        time_ns = now_ns - generator.choice((0, 0, SECOND_NS // 3))
        seq = log.append(b"s", b"", b"x", time_ns, ttl_s)
        expected[seq] = time_ns + ttl_s * SECOND_NS
        if deadlines is not None:
            deadlines.add(seq, expected[seq])

    for _ in range(stored_first):
        store(None)
    deadlines = TtlIndex(log)
    for _ in range(150):
        now_ns += SECOND_NS // 3
        while 0 < deadlines.next_ns() <= now_ns:
            due = deadlines.pop_due(now_ns, 1 + stored_first // 20).tolist()
            assert all(expected.pop(seq) <= now_ns for seq in due), "early, or twice"
            log.remove_many(due)
            if generator.random() < 0.2:
                store(deadlines)
        assert not [seq for seq, deadline_ns in expected.items() if deadline_ns <= now_ns], "late"
        store(deadlines)


def test_a_late_bucket_costs_little_beside_many_that_are_due() -> None:
    """Not the time of the others: each delete marker would sort them again."""
    log = open_store(SimDisk(), SimClock()).create("S", memory=True)
    deadlines = TtlIndex(log)
    deadlines.pop_due(1, 1)
    for seq in range(1, 50_001):
        deadlines.add(seq, SECOND_NS + seq)
    assert deadlines.pop_due(2 * SECOND_NS, 2).tolist() == [1, 2]
    backlog = deadlines._due[0].seqs
    deadlines.add(60_000, SECOND_NS + 2)
    assert deadlines.pop_due(2 * SECOND_NS, 2).tolist() == [60_000, 3], "in the order of the deadlines"
    assert deadlines._due[0].seqs is backlog
    assert pop_all(deadlines, 2 * SECOND_NS) == list(range(4, 50_001))


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
