"""Schedules delivery: each consumer with a reason to deliver runs once at the end of the turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.broker.commit.group_commit import RunAll


class Deliverer(Protocol):
    """Delivers messages when it is its turn, such as a consumer."""

    def deliver(self) -> None:
        """Deliver as much as possible now."""


class DeliveryScheduler:
    """The consumers of an account that are scheduled to deliver."""

    __slots__ = ("_call_soon", "_scheduled")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._scheduled: dict[Deliverer, None] = {}

    def schedule(self, consumer: Deliverer) -> None:
        """Schedule a consumer that has new messages or new demand."""
        if not self._scheduled:
            self._call_soon(self._deliver_all)
        self._scheduled[consumer] = None

    def _deliver_all(self) -> None:
        scheduled, self._scheduled = self._scheduled, {}
        with RunAll() as run_all:
            for consumer in scheduled:
                run_all(consumer.deliver)
