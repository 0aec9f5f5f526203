"""The broker as one object: the hub, the clock, what is due, and the counters of the whole server.

Owns how those hang together; it is what the shell holds. Knows no sockets.
"""

from __future__ import annotations

from headrace.broker.clock import Clock, VirtualClock
from headrace.broker.router import Hub
from headrace.broker.timers import Timers


class Broker:
    """One server's inside. The counters keep what connections that are gone have moved."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hub = Hub()
        self.timers = Timers(clock)

    def advance(self, delta_ns: int) -> None:
        """Move virtual time forward, stopping at every moment where something is due."""
        if not isinstance(self.clock, VirtualClock):
            raise TypeError("only a virtual clock can be moved: start the server with clock='virtual'")
        end_ns = self.clock.now_ns() + delta_ns
        while (deadline := self.timers.next_deadline()) is not None and deadline <= end_ns:
            self.clock.set(max(deadline, self.clock.now_ns()))
            self.timers.run_due()
        self.clock.set(end_ns)
