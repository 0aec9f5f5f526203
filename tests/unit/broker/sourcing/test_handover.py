"""Handovers continue where the slowest predecessor was."""

from __future__ import annotations

import pytest

from headrace.broker.sourcing.handover import ConsumerAddress, Handovers

OLD, OTHER = (ConsumerAddress("$JS.API", "O", name) for name in ("OLD", "OTHER"))


@pytest.mark.parametrize(("floor", "resume_seq"), [(20, 10), (5, 5), (0, 0), (-1, 10)])
@pytest.mark.parametrize("known_first", [False, True])
def test_of_two_predecessors_the_lower_floor_counts(floor: int, resume_seq: int, known_first: bool) -> None:
    handovers = Handovers(None, 1, lambda: None, lambda consumer, look_first: None)
    successor = handovers.open("new")
    predecessors = [(OTHER, 10), (OLD, -1)] if known_first else [(OLD, -1), (OTHER, 10)]
    for consumer, acked_seq in predecessors:
        successor.take_over(handovers.open(consumer.name), consumer, acked_seq, deletes=True)
    assert successor.floor_of == OLD
    successor.set_floor(floor)
    assert successor.resume_seq == resume_seq
    assert handovers.open("new").floor_of is None
