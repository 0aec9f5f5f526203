"""A whole broker without sockets: hub, streams and clients over a simulated disk, in virtual time.

`Box` is one run of a server; `Box(disk.crash(...), clock)` is the next one after a crash. Nothing happens by itself:
`run` runs everything that is due, `step` one piece of it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace._native import Parser
from headrace.broker import Session, SessionLimits, SubjectRouter, Timers
from headrace.broker.jetstream import AccountJetStream
from headrace.broker.jetstream_settings import JetStreamSettings
from headrace.sim import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.storage import StoreOptions, open_store


class Delivery(NamedTuple):
    subject: bytes
    sid: bytes
    reply: bytes
    header: bytes
    payload: bytes


class Owner:
    """The owner of a session in the simulation; it does nothing."""

    client_ip = "127.0.0.1"

    def authenticate(self, fields: Mapping[str, Any]) -> None:
        return None

    def now_ns(self) -> int:
        return 0

    def on_connected(self) -> None: ...

    def info(self) -> bytes:
        return b""

    def flush(self) -> None: ...


class Box:
    """One run of a server, from its start to its end or crash."""

    def __init__(self, disk: SimDisk, clock: SimClock, options: StoreOptions) -> None:
        self.disk = disk
        self.clock = clock
        self.hub = SubjectRouter()
        self.timers = Timers(clock)
        self.later: deque[Callable[[], object]] = deque()
        self.store = open_store(disk, clock, options)
        self.jetstream = AccountJetStream(
            self.hub, self.store, clock, self.timers, self.later.append, JetStreamSettings("SIM")
        )
        self.jetstream.start()
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client(self, len(self.clients) + 1))
        return self.clients[-1]

    def step(self) -> bool:
        """Run one thing that is due; return False if there is none."""
        if self.later:
            self.later.popleft()()
            return True
        return self.disk.step()

    def run(self) -> None:
        """Run everything that is due."""
        while self.step():
            pass

    def advance(self, delta_ns: int) -> None:
        """Advance the time, and run everything when it is due."""
        end_ns = self.clock.now_ns() + delta_ns
        self.run()
        while (deadline := self.timers.next_deadline()) is not None and deadline <= end_ns:
            self.clock.advance(max(deadline - self.clock.now_ns(), 0))
            self.timers.run_due()
            self.run()
        self.clock.advance(end_ns - self.clock.now_ns())


class Client:
    """A client that passes protocol bytes to its session directly."""

    def __init__(self, box: Box, cid: int) -> None:
        self.box = box
        self.session = Session(box.hub, Owner(), cid, SessionLimits(), True)
        self.session.verbose = self.session.pedantic = False
        self.session.headers = self.session.no_responders = True
        self._parser = Parser(self.session)
        self._requests = 0
        self._arrived: list[Delivery] = []
        self.inbox = b"_I.%d" % cid
        self.send(b"SUB %s.* 1\r\n" % self.inbox)

    def send(self, data: bytes) -> None:
        self._parser.feed(data)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"") -> None:
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload))

    def ask(self, subject: bytes, payload: bytes = b"") -> bytes:
        """Send a request; return the inbox of its reply."""
        self._requests += 1
        reply = b"%s.%d" % (self.inbox, self._requests)
        self.publish(subject, payload, reply)
        return reply

    def take(self) -> list[Delivery]:
        """Return the messages received since the last call."""
        if self.session in self.box.hub.dirty:
            self.box.hub.dirty.remove(self.session)
        arrived, self._arrived = self._arrived, []
        return arrived + list(deliveries(bytes(self.session.drain())))

    def api(self, operation: str, body: Any = None) -> dict[str, Any]:
        """Call the API and run everything that is due; return the reply."""
        data = json.dumps(body).encode() if body is not None else b""
        reply = self.ask(b"$JS.API." + operation.encode(), data)
        self.box.run()
        arrived = self.take()
        self._arrived = [delivery for delivery in arrived if delivery.subject != reply]
        answers = [delivery.payload for delivery in arrived if delivery.subject == reply]
        assert len(answers) == 1, f"{len(answers)} answers to {operation}"
        answer: dict[str, Any] = json.loads(answers[0])
        return answer

    def close(self) -> None:
        self.session.close()


def deliveries(data: bytes) -> Any:
    """Parse MSG and HMSG; skip everything else."""
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        words = data[at:end].split()
        at = end + 2
        if words[0] not in (b"MSG", b"HMSG"):
            continue
        sizes = 2 if words[0] == b"HMSG" else 1
        total, header = int(words[-1]), int(words[-2]) if sizes == 2 else 0
        reply = words[3] if len(words) == 4 + sizes - 1 + 1 else b""
        body = data[at : at + total]
        yield Delivery(words[1], words[2], reply, body[:header], body[header:])
        at += total + 2
