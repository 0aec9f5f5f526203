"""Deadlines of pending messages: what they cost, and many that are due at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.broker.consumers.ack_deadlines import AckDeadlines
from headrace.broker.consumers.ack_state import AckState

SECOND = 1_000_000_000


def test_what_was_acknowledged_costs_no_memory_although_it_had_a_deadline_of_its_own() -> None:
    """As passed-over messages of a consumer with order per key have."""
    state = AckState(1)
    for first in range(1, 30_001, 100):
        late = np.arange(first, first + 100, dtype=np.uint64)
        state.record_late_deliveries(late, SECOND + first, 30 * SECOND)
        for seq in late.tolist()[:-1]:
            state.ack(seq)
        state.stop_redelivery(first + 99, 1)
    deadlines = state.ack_deadlines
    assert not deadlines.individual
    assert len(deadlines._heap) < 500
    assert state.next_deadline() == 0


def test_due_messages_with_gaps_are_searched_once() -> None:
    """All pending messages were compared with each part of a run, 16 times in a turn."""
    looked_at = 0

    class Pending(dict[int, int]):
        def keys(self) -> Any:
            nonlocal looked_at
            looked_at += len(self)
            return super().keys()

        def __iter__(self) -> Any:
            nonlocal looked_at
            looked_at += len(self)
            return super().__iter__()

    for count in (40_000, 60_000):
        looked_at = 0
        pending = Pending.fromkeys(range(1, 20 * count, 20), 1)
        deadlines = AckDeadlines()
        deadlines.add_run(SECOND, 1, 20 * count)
        due: list[int] = []
        while 0 < deadlines.next_deadline() <= SECOND:
            part = deadlines.pop_due(SECOND, pending, 64)
            assert len(part) <= 64
            due += part
        assert due == list(range(1, 20 * count, 20))
        assert looked_at <= 2 * count


def test_a_snapshot_has_the_deadline_of_a_run_that_is_only_partly_handled() -> None:
    state = AckState(1)
    state.record_deliveries(np.arange(1, 100_000, 1_000, dtype=np.uint64), SECOND, SECOND, acked=False)
    first = state.pop_due(2 * SECOND, 10)
    assert first == list(state.pending)[:10]
    again = AckState(1)
    again.apply_delta(state.encode_snapshot())
    assert again.next_deadline() == state.next_deadline() == 2 * SECOND
    assert not again.find_without_deadline()
    state.shift_deadlines(5 * SECOND, include_individual=False)
    assert state.next_deadline() == 7 * SECOND
