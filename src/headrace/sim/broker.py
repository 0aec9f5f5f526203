"""A whole JetStream server without sockets or threads, on a simulated disk and in virtual time.

Owns the order in which things happen: what the broker put off to the end of the turn, what the disk completes, what
falls due. Requests are answered into `answers`, by their number, as soon as the broker lets the answer leave.
"""

from __future__ import annotations

import json
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.api.limits import NO_LIMITS, Limits
from headrace.broker import Hub, Timers
from headrace.broker.batches import DEFAULT_LIMITS, BatchLimits
from headrace.broker.flow import START_BYTES
from headrace.broker.jetstream import JetStream
from headrace.protocol import headers
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.store import Store, StoreOptions

_INBOX = b"_SIM."
_TURNS_MAX = 100_000


class Answer(NamedTuple):
    """What came back for a request."""

    header: bytes
    payload: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a server allows: its account, its batches, and how much a push consumer sends before it asks."""

    account: Limits = NO_LIMITS
    batches: BatchLimits = DEFAULT_LIMITS
    flow_bytes: int = START_BYTES


NO_BOUNDS = Bounds()


def _repeatable_hub() -> Hub:
    """A hub whose choice among the members of a queue group follows the seed; the kernel asks the system for its own."""
    system, os.urandom = os.urandom, random.randbytes
    try:
        return Hub()
    finally:
        os.urandom = system


class SimBroker:
    """One server. `answers` holds what was answered, by the number that `publish` or `api` gave."""

    #: Other servers are not told of its inbox.
    announced = False

    def __init__(
        self,
        disk: SimDisk,
        options: StoreOptions,
        clock: SimClock | None = None,
        *,
        name: str = "SIM",
        domain: str = "",
        bounds: Bounds = NO_BOUNDS,
    ) -> None:
        self.disk = disk
        self.name, self.domain = name, domain
        self.clock = clock or SimClock()
        self.answers: dict[int, Answer] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._number = 0
        self.hub = _repeatable_hub()
        self.timers = Timers(self.clock)
        self.store = Store.open(disk, self.clock, options)
        self.jetstream = JetStream(
            self.hub,
            self.store,
            self.clock,
            self.timers,
            self._soon.append,
            server_name=name,
            domain=domain,
            limits=bounds.account,
            batch_limits=bounds.batches,
            flow_bytes=bounds.flow_bytes,
        )
        self.hub.subscribe_internal(_INBOX + b"*", self)

    def start(self) -> None:
        """Serve: what is overdue goes first."""
        self.jetstream.start()

    # Requests

    def offer(self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """An answer arrived."""
        self.answers[int(subject[len(_INBOX) :])] = Answer(header, payload)

    def publish(self, subject: str, payload: bytes = b"", **fields: str) -> int:
        """Publish with headers given as keywords (`Nats_TTL="1s"`); the number of the request."""
        self._number += 1
        pairs = [(key.replace("_", "-").encode(), value.encode()) for key, value in fields.items()]
        block = headers.build(pairs) if pairs else b""
        self.hub.publish(subject.encode(), _INBOX + b"%d" % self._number, block, payload)
        return self._number

    def api(self, endpoint: str, **body: Any) -> int:
        """Call the API; the number of the request."""
        return self.publish("$JS.API." + endpoint, json.dumps(body).encode() if body else b"")

    def call(self, endpoint: str, **body: Any) -> Any:
        """Call the API and wait for the answer."""
        number = self.api(endpoint, **body)
        self.until(lambda: number in self.answers)
        return self.answers[number].json

    # Time

    def step(self) -> bool:
        """The end of a turn, or one operation of the disk; False when there is nothing to do."""
        if self._soon:
            self._soon.popleft()()
            return True
        return self.disk.step()

    def settle(self) -> None:
        """Until nothing is left to do at this moment."""
        self.until(lambda: not self.step())

    def until(self, condition: Callable[[], bool]) -> None:
        """Go on until the condition holds."""
        for _ in range(_TURNS_MAX):
            if condition():
                return
            self.step()
        raise RuntimeError("the broker does not come to rest")

    def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that falls due meanwhile has happened on return."""
        end_ns = self.clock.now_ns() + duration_ns
        while (deadline_ns := self.timers.next_deadline()) is not None and deadline_ns <= end_ns:
            self.clock.advance(max(deadline_ns - self.clock.now_ns(), 0))
            self.timers.run_due()
            self.settle()
        self.clock.advance(end_ns - self.clock.now_ns())
        self.settle()
