"""Two complete servers, each with its own disk, joined by a leafnode connection that can be cut at any byte.

Owns the order of events on both servers and on the connection: the seed chooses everything. The bytes in transit are
those of the real protocol, produced by the real sessions. A crash of one side ends the connection and leaves the other
side running. See ADR 64.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.sim.clock import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.network.leafnode_end import LeafnodeEnd, LossRule
from headrace.sim.network.single_server import apply_power_loss, reopen_server
from headrace.sim.sim_broker import NO_SERVER_LIMITS, SimBroker, SimServerLimits
from headrace.storage import StoreOptions

_STEPS_MAX = 200_000


class TwoServers:
    """`local` dials `remote`. Nothing happens by itself: `step` does one thing, `advance` lets time pass."""

    stays_full = 0.0

    def __init__(
        self,
        seed: int | str,
        options: StoreOptions,
        server_limits: SimServerLimits = NO_SERVER_LIMITS,
        *,
        disk_seeds: tuple[int, int] = (1, 2),
    ) -> None:
        self.rng = Random(seed)
        self.clock = SimClock()
        self._options, self._server_limits = options, server_limits
        self._leafnodes: dict[str, LeafnodeSet] = {}
        self.local = self._start_broker(SimDisk(disk_seeds[0]), "NEAR")
        self.remote = self._start_broker(SimDisk(disk_seeds[1]), "FAR")
        self.should_lose: LossRule | None = None
        self._ends: tuple[LeafnodeEnd, LeafnodeEnd] | None = None
        #: Of the remote side, which has not noticed yet that the peer is gone.
        self._stale_ends: list[LeafnodeEnd] = []

    def _start_broker(self, disk: SimDisk, name: str) -> SimBroker:
        server_limits = self._server_limits if name == "NEAR" else NO_SERVER_LIMITS
        broker = SimBroker(
            disk, self._options, self.clock, name=name, domain=name, server_limits=server_limits
        )
        self._leafnodes[name] = LeafnodeSet(broker.router)
        broker.start()
        return broker

    # The connection

    @property
    def is_connected(self) -> bool:
        return self._ends is not None

    def connect(self, *, remote_unaware: bool = False) -> None:
        """Dial; `remote_unaware`: the remote side still considers the previous connection open."""
        if remote_unaware and self._ends is not None:
            local, remote = self._ends
            local.session.close()
            self._stale_ends.append(remote)
            self._ends = None
        self.disconnect()
        sides = ((self.local, True), (self.remote, False))
        local, remote = (
            LeafnodeEnd(
                broker, self._leafnodes[broker.name], solicited=solicited, should_lose=self.should_lose
            )
            for broker, solicited in sides
        )
        self._ends = (local, remote)
        remote.outbound += remote.info("", None, None)

    def disconnect(self) -> None:
        """Cut the connection: bytes in transit are lost from a byte that the seed chooses."""
        if self._ends is None:
            return
        self._close_stale(close_all=True)
        ends, self._ends = self._ends, None
        for end, other in (ends, ends[::-1]):
            end.collect()
            if end.outbound and not other.failed:
                other.feed(bytes(end.outbound[: self.rng.randrange(len(end.outbound) + 1)]))
        for end in ends:
            end.session.close()

    def _close_stale(self, *, close_all: bool = False) -> None:
        """Let the remote side notice that connections are gone; at the latest when it is dialled again."""
        for end in self._stale_ends:
            end.collect()
            if end.failed or close_all:
                end.session.close()
        self._stale_ends = [] if close_all else [end for end in self._stale_ends if not end.failed]

    def _transfer_bytes(self) -> bool:
        """Move some bytes; return False if nothing is in transit."""
        if self._ends is None:
            return False
        for end in self._ends:
            end.collect()
        directions = [(end, other) for end, other in (self._ends, self._ends[::-1]) if end.outbound]
        if not directions:
            return False
        end, other = self.rng.choice(directions)
        size = self.rng.randrange(1, len(end.outbound) + 1)
        data = bytes(end.outbound[:size])
        del end.outbound[:size]
        other.feed(data)
        if self._stale_ends:
            self._close_stale()
        if other.failed:
            self.disconnect()
        return True

    # Crashes

    def crash_local(self) -> None:
        """Let the side that dialled lose power and restart."""
        self.local = self._restart_after_power_loss(self.local)

    def crash_remote(self) -> None:
        """Let the other side lose power and restart."""
        self.remote = self._restart_after_power_loss(self.remote)

    def kill_local(self) -> None:
        """Kill and restart the process of the side that dialled."""
        self.local = self._restart(self.local, self.local.disk.kill)

    def _restart_after_power_loss(self, broker: SimBroker) -> SimBroker:
        return self._restart(broker, lambda: apply_power_loss(broker.disk, self.rng))

    def _restart(self, broker: SimBroker, make_disk: Callable[[], SimDisk]) -> SimBroker:
        self.disconnect()
        self._close_stale(close_all=True)
        return reopen_server(
            make_disk(), self.rng, lambda disk: self._start_broker(disk, broker.name), self.stays_full
        )

    def close(self) -> None:
        """Close both servers and free their routes."""
        self.disconnect()
        for broker in (self.local, self.remote):
            broker.router.table.clear()

    # Time

    def step(self) -> bool:
        """Do one thing, somewhere; return False if there is nothing to do."""
        first = int(self.rng.random() * 3)
        step_functions = (self.local.step, self.remote.step, self._transfer_bytes)
        return step_functions[first]() or step_functions[first - 1]() or step_functions[first - 2]()

    def run_until_idle(self) -> None:
        """Run until nothing is left to do at this moment."""
        for _ in range(_STEPS_MAX):
            if not self.step():
                return
        raise RuntimeError(f"the servers are still busy after {_STEPS_MAX:,} steps")

    def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that became due has happened on return."""
        end_ns = self.clock.now_ns() + duration_ns
        self.run_until_idle()
        while (due := self._next_due()) is not None and due <= end_ns:
            self.clock.advance(max(due - self.clock.now_ns(), 0))
            for broker in (self.local, self.remote):
                broker.timers.run_due()
            self.run_until_idle()
        self.clock.advance(end_ns - self.clock.now_ns())
        self.run_until_idle()

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass while work is in progress: due timers start, and nothing waits for anything."""
        self.clock.advance(duration_ns)
        for broker in (self.local, self.remote):
            broker.timers.run_due()

    def _next_due(self) -> int | None:
        deadlines = [broker.timers.next_deadline() for broker in (self.local, self.remote)]
        return min((each for each in deadlines if each is not None), default=None)

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        """Call the API of one side and wait for the response."""
        request_id = broker.call_nowait(endpoint, **body)
        for _ in range(_STEPS_MAX):
            if request_id in broker.replies:
                return broker.replies[request_id].json
            self.step()
        raise RuntimeError(f"no reply to {endpoint}")
