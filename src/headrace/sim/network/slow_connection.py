"""A simulated leafnode connection with little bandwidth and much latency, in virtual time.

Owns the bytes in transit: each direction carries a number of bytes a second, and delivers them half a round trip later.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.network.leafnode_end import LeafnodeEnd

#: The largest number of bytes that arrive at once.
_SEGMENT_BYTES = 1400


class NetworkSpeed(NamedTuple):
    """What a network carries in each direction."""

    bits_per_s: int = 50_000
    round_trip_ms: int = 600

    def get_duration_ns(self, size: int) -> int:
        """Return how long it takes to send this many bytes."""
        return 8 * size * SECOND_NS // self.bits_per_s

    @property
    def delay_ns(self) -> int:
        return self.round_trip_ms * SECOND_NS // 2000


class _Direction:
    """The way from one end to the other."""

    def __init__(self, sender: LeafnodeEnd, receiver: LeafnodeEnd, speed: NetworkSpeed) -> None:
        self.receiver = receiver
        self.bytes = 0
        self._sender, self._speed = sender, speed
        self._free_ns = 0
        self._in_transit: deque[tuple[int, bytes]] = deque()

    def send(self, now_ns: int) -> None:
        """Put the output of the sender in transit."""
        self._sender.collect()
        output = self._sender.outbound
        if not output:
            return
        for start in range(0, len(output), _SEGMENT_BYTES):
            segment = bytes(output[start : start + _SEGMENT_BYTES])
            self._free_ns = max(self._free_ns, now_ns) + self._speed.get_duration_ns(len(segment))
            self._in_transit.append((self._free_ns + self._speed.delay_ns, segment))
        self.bytes += len(output)
        output.clear()

    def deliver(self, now_ns: int) -> bool:
        """Deliver one segment that has arrived; return False if there is none."""
        if not self._in_transit or self._in_transit[0][0] > now_ns:
            return False
        self.receiver.feed(self._in_transit.popleft()[1])
        return True

    def lose(self, rng: Random) -> None:
        """Lose what is in transit, from a byte that the seed chooses."""
        rest = b"".join(segment for _, segment in self._in_transit)
        self._in_transit.clear()
        if rest and not self.receiver.failed:
            self.receiver.feed(rest[: rng.randrange(len(rest) + 1)])

    @property
    def next_arrival_ns(self) -> int | None:
        return self._in_transit[0][0] if self._in_transit else None


class SlowConnection:
    """A connection that a site has dialled."""

    def __init__(self, site: LeafnodeEnd, hub: LeafnodeEnd, speed: NetworkSpeed, clock: SimClock) -> None:
        self._ends = (site, hub)
        self._clock = clock
        self._directions = (_Direction(site, hub, speed), _Direction(hub, site, speed))
        hub.outbound += hub.info("", None, None)

    @property
    def has_failed(self) -> bool:
        return any(end.failed for end in self._ends)

    @property
    def bytes(self) -> int:
        """How many bytes were sent in both directions."""
        return sum(direction.bytes for direction in self._directions)

    def step(self) -> bool:
        """Send what there is, and deliver one segment that has arrived; return False if there is none."""
        now_ns = self._clock.now_ns()
        for direction in self._directions:
            direction.send(now_ns)
        return any(direction.deliver(now_ns) for direction in self._directions)

    def next_arrival_ns(self) -> int | None:
        """Return when the next segment arrives, None if nothing is in transit."""
        there, back = (direction.next_arrival_ns for direction in self._directions)
        return back if there is None else there if back is None else min(there, back)

    def cut(self, rng: Random) -> None:
        """End the connection; some of the bytes in transit still arrive."""
        for direction in self._directions:
            direction.lose(rng)
        for end in self._ends:
            end.session.close()
