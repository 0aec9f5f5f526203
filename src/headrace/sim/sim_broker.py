"""A complete JetStream server without sockets or threads, on a simulated disk and in virtual time.

Owns the order of events: callbacks that the broker deferred to the end of the turn, disk completions, timers. Replies
are collected in `replies`, by request number, as soon as the broker sends them.
"""

from __future__ import annotations

import json
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.broker import SubjectRouter, Timers
from headrace.broker.consumers.flow_control import START_BYTES
from headrace.broker.jetstream import AccountJetStream
from headrace.broker.jetstream_settings import JetStreamSettings
from headrace.broker.streams.atomic_batch import DEFAULT_LIMITS, AtomicBatchBudget, BatchLimits
from headrace.jetstream_api.account_limits import NO_LIMITS, JetStreamLimits
from headrace.protocol import headers
from headrace.sim.clock import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.storage import StoreOptions, open_store

_INBOX_PREFIX = b"_SIM."
_STEPS_MAX = 100_000


class SimReply(NamedTuple):
    """The reply to a request."""

    header: bytes
    payload: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class SimServerLimits:
    """Limits of a server: its account, its batches, and how much a push consumer sends before it requests flow control."""

    account: JetStreamLimits = NO_LIMITS
    batches: BatchLimits = DEFAULT_LIMITS
    flow_bytes: int = START_BYTES


NO_SERVER_LIMITS = SimServerLimits()


def _make_seeded_router() -> SubjectRouter:
    """Return a router that chooses members of a queue group by the seed.

    The compiled core uses the system's random numbers.
    """
    system, os.urandom = os.urandom, random.randbytes
    try:
        return SubjectRouter()
    finally:
        os.urandom = system


class SimBroker:
    """One server. `replies` has the replies, by the number that `publish` or `call_nowait` returned."""

    #: Its inbox is not announced to other servers.
    announced = False

    def __init__(
        self,
        disk: SimDisk,
        options: StoreOptions,
        clock: SimClock | None = None,
        *,
        name: str = "SIM",
        domain: str = "",
        server_limits: SimServerLimits = NO_SERVER_LIMITS,
    ) -> None:
        self.disk = disk
        self.name, self.domain = name, domain
        self.clock = clock or SimClock()
        self.replies: dict[int, SimReply] = {}
        self._pending_calls: deque[Callable[[], None]] = deque()
        self._last_request_id = 0
        self.router = _make_seeded_router()
        self.timers = Timers(self.clock)
        self.store = open_store(disk, self.clock, options)
        self.jetstream = AccountJetStream(
            self.router,
            self.store,
            self.clock,
            self.timers,
            self._pending_calls.append,
            JetStreamSettings(
                name,
                domain=domain,
                limits=server_limits.account,
                batch_budget=AtomicBatchBudget(server_limits.batches),
                flow_bytes=server_limits.flow_bytes,
            ),
        )
        self.router.subscribe_internal(_INBOX_PREFIX + b"*", self)

    def start(self) -> None:
        """Start serving; overdue work is done first."""
        self.jetstream.start()

    # Requests

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Record a reply."""
        self.replies[int(subject[len(_INBOX_PREFIX) :])] = SimReply(header, payload)

    def publish(self, subject: str, payload: bytes = b"", **fields: str) -> int:
        """Publish with headers given as keywords (`Nats_TTL="1s"`); return the number of the request."""
        self._last_request_id += 1
        pairs = [(key.replace("_", "-").encode(), value.encode()) for key, value in fields.items()]
        header_block = headers.build(pairs) if pairs else b""
        self.router.publish(
            subject.encode(), _INBOX_PREFIX + b"%d" % self._last_request_id, header_block, payload
        )
        return self._last_request_id

    def call_nowait(self, endpoint: str, **body: Any) -> int:
        """Call the API; return the number of the request."""
        return self.publish("$JS.API." + endpoint, json.dumps(body).encode() if body else b"")

    def call(self, endpoint: str, **body: Any) -> Any:
        """Call the API and wait for the response."""
        request_id = self.call_nowait(endpoint, **body)
        self.run_until(lambda: request_id in self.replies)
        return self.replies[request_id].json

    # Time

    def step(self) -> bool:
        """Run the end of a turn, or one operation of the disk; return False if there is nothing to do."""
        if self._pending_calls:
            self._pending_calls.popleft()()
            return True
        return self.disk.step()

    def run_until_idle(self) -> None:
        """Run until nothing is left to do at this moment."""
        self.run_until(lambda: not self.step())

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition is true."""
        for _ in range(_STEPS_MAX):
            if condition():
                return
            self.step()
        raise RuntimeError(f"the broker is still busy after {_STEPS_MAX:,} steps")

    def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that became due has happened on return."""
        end_ns = self.clock.now_ns() + duration_ns
        while (deadline_ns := self.timers.next_deadline()) is not None and deadline_ns <= end_ns:
            self.clock.advance(max(deadline_ns - self.clock.now_ns(), 0))
            self.timers.run_due()
            self.run_until_idle()
        self.clock.advance(end_ns - self.clock.now_ns())
        self.run_until_idle()
