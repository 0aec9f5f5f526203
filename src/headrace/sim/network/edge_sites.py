"""A hub and several sites, each a complete server with its own disk; sites are leafnodes of the hub over slow networks.

Owns the order of events on all servers and connections: the seed chooses everything. A crash of a site ends its
connection, a crash of the hub ends all of them, and the others keep running.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.sim.clock import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.network.leafnode_end import LeafnodeEnd
from headrace.sim.network.single_server import apply_power_loss, reopen_server
from headrace.sim.network.slow_connection import NetworkSpeed, SlowConnection
from headrace.sim.sim_broker import SimBroker, SimServerLimits
from headrace.storage import StoreOptions

HUB = "HUB"
_STEPS_MAX = 200_000
#: Small windows, so that flow control is at work in every burst.
_SERVER_LIMITS = SimServerLimits(flow_bytes=4096)
#: How many events `interrupt` waits for, and how much happens after each.
_EVENTS_MAX, _STEPS_PER_EVENT = 40, 12
_CALL_TIMEOUT_NS = 60_000_000_000


class EdgeSites:
    """`brokers` has all servers by name, which is also their domain. Nothing happens by itself: `advance` lets time pass."""

    def __init__(
        self, seed: int | str, options: StoreOptions, sites: int, speed: NetworkSpeed | None = None
    ) -> None:
        self.rng = Random(seed)
        self.clock = SimClock()
        self.bytes = 0  # sent over connections that have ended
        self._options, self._speed = options, speed or NetworkSpeed()
        self._leafnodes: dict[str, LeafnodeSet] = {}
        self._connections: dict[str, SlowConnection] = {}
        self._connection_count = 0
        self.site_names = [f"S{number}" for number in range(1, sites + 1)]
        self.brokers = {
            name: self._start_broker(SimDisk(number), name)
            for number, name in enumerate([HUB, *self.site_names])
        }

    @property
    def hub(self) -> SimBroker:
        return self.brokers[HUB]

    def _start_broker(self, disk: SimDisk, name: str) -> SimBroker:
        broker = SimBroker(
            disk, self._options, self.clock, name=name, domain=name, server_limits=_SERVER_LIMITS
        )
        self._leafnodes[name] = LeafnodeSet(broker.router)
        broker.start()
        return broker

    # Connections

    def is_connected(self, site: str) -> bool:
        return site in self._connections

    def connect(self, site: str) -> None:
        """Let a site dial the hub, over a new connection."""
        self.disconnect(site)
        self._connection_count += 1
        ends = [
            LeafnodeEnd(
                self.brokers[name],
                self._leafnodes[name],
                solicited=name == site,
                cid=self._connection_count,
            )
            for name in (site, HUB)
        ]
        self._connections[site] = SlowConnection(ends[0], ends[1], self._speed, self.clock)

    def disconnect(self, site: str) -> None:
        """Cut the connection of a site, if it has one."""
        connection = self._connections.pop(site, None)
        if connection is not None:
            connection.cut(self.rng)
            self.bytes += connection.bytes

    # Crashes

    def crash(self, name: str) -> None:
        """Let a server lose power and restart."""
        disk = self.brokers[name].disk
        self._restart(name, lambda: apply_power_loss(disk, self.rng))

    def kill(self, name: str) -> None:
        """Kill the process of a server and restart it."""
        self._restart(name, self.brokers[name].disk.kill)

    def _restart(self, name: str, make_disk: Callable[[], SimDisk]) -> None:
        for site in self.site_names if name == HUB else [name]:
            self.disconnect(site)
        self.brokers[name].router.table.clear()
        self.brokers[name] = reopen_server(make_disk(), self.rng, lambda disk: self._start_broker(disk, name))

    def close(self) -> None:
        """Close all servers and free their routes."""
        for site in self.site_names:
            self.disconnect(site)
        for broker in self.brokers.values():
            broker.router.table.clear()

    # Time

    def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that became due has happened on return."""
        end_ns = self.clock.now_ns() + duration_ns
        self._run_until_idle()
        while (due_ns := self._find_next_due()) is not None and due_ns <= end_ns:
            self.clock.advance(max(due_ns - self.clock.now_ns(), 0))
            for broker in self.brokers.values():
                broker.timers.run_due()
            self._run_until_idle()
        self.clock.advance(end_ns - self.clock.now_ns())

    def interrupt(self, name: str) -> None:
        """Let time pass until a server has work for its disk, and stop in the middle of it."""
        for _ in range(_EVENTS_MAX):
            store = self.brokers[name].store
            for _ in range(_STEPS_PER_EVENT):
                if (store.dirty or store.in_flight) and self.rng.random() < 0.1:
                    return
                self.run_steps(1)
            due_ns = self._find_next_due()
            if due_ns is not None:
                self.clock.advance(max(due_ns - self.clock.now_ns(), 0))
                for broker in self.brokers.values():
                    broker.timers.run_due()

    def run_steps(self, count: int) -> None:
        """Do a number of things, anywhere, and leave the rest undone."""
        for _ in range(count):
            active: list[SimBroker | SlowConnection] = [*self.brokers.values(), *self._connections.values()]
            self.rng.shuffle(active)
            any(each.step() for each in active)
        self._end_failed()

    def _run_until_idle(self) -> None:
        """Do everything that is due: servers first, which is faster than any order."""
        for _ in range(_STEPS_MAX):
            if any(broker.step() for broker in self.brokers.values()):
                continue
            if not any(connection.step() for connection in self._connections.values()):
                return
            self._end_failed()
        raise RuntimeError(f"the servers are still busy after {_STEPS_MAX:,} steps")

    def _end_failed(self) -> None:
        for site in [site for site, connection in self._connections.items() if connection.has_failed]:
            self.disconnect(site)

    def _find_next_due(self) -> int | None:
        deadlines = [broker.timers.next_deadline() for broker in self.brokers.values()]
        deadlines += [connection.next_arrival_ns() for connection in self._connections.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def call(self, server: str, endpoint: str, **body: Any) -> Any:
        """Call the API of a server and wait for the response."""
        broker = self.brokers[server]
        request_id = broker.call_nowait(endpoint, **body)
        end_ns = self.clock.now_ns() + _CALL_TIMEOUT_NS
        while request_id not in broker.replies:
            if self.clock.now_ns() > end_ns:
                raise RuntimeError(f"no reply to {endpoint}")
            self.advance(_CALL_TIMEOUT_NS // 600)
        return broker.replies.pop(request_id).json
