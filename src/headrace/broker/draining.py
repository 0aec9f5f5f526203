"""Back-pressure on whoever sends to a connection: hold back while it has enough, and go on when it has taken that."""

from __future__ import annotations

from collections.abc import Callable

from headrace.kernel import Peer, RouteTable


class DrainingPeer(Peer):
    """A peer that others wait for. `blocked` is whether its socket takes no more for now."""

    __slots__ = ("blocked", "waiting")

    def __init__(self, table: RouteTable) -> None:
        super().__init__(table)
        self.blocked = False
        self.waiting: list[Callable[[], None]] = []

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call once, when the other side has taken what was sent."""
        if call not in self.waiting:
            self.waiting.append(call)

    def drained(self) -> None:
        """The other side has taken what was sent; whoever held back may go on."""
        self.blocked = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()
