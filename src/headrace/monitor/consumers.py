"""The figures of a consumer, read without touching it: looking often must cost nothing and change nothing."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.consumer import Consumer
from headrace.broker.pulls import Pulls


class Figures(NamedTuple):
    kind: str
    delivered: int
    ack_floor: int
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    paused: bool


def figures(consumer: Consumer) -> Figures:
    """Where a consumer stands."""
    progress, outlet = consumer.progress, consumer.outlet
    pull = isinstance(outlet, Pulls)
    return Figures(
        kind="pull" if pull else "push",
        delivered=progress.stream_seq,
        ack_floor=progress.floor()[1],
        pending=consumer.num_pending(),
        ack_pending=len(progress.pending),
        redelivered=0 if consumer.config.max_deliver == 1 else len(progress.counts),
        waiting=len(outlet.waiting) if isinstance(outlet, Pulls) else 0,
        paused=bool(consumer.pause_remaining()),
    )
