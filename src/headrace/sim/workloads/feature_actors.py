"""Optional features of simulations: a stream of counters, one of schedules, one with fast ingest.

Owns what is sent to each stream and what must hold for it; every feature tracks its own messages, since such a stream
does not contain exactly what was published. A feature uses only what clients see, and checks against its stream's log.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.broker.streams.fast_ingest import APPEND, COMMIT, START
from headrace.jetstream_api import times
from headrace.protocol import headers
from headrace.sim.checkers.history_checker import EXPIRY_SLACK_NS, parse_ident
from headrace.sim.checkers.store_invariants import Violation, require
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_client import ReceivedMsg, SimClient

if TYPE_CHECKING:
    from headrace.sim.simulation import Simulation
    from headrace.storage import StreamLog

_IDENT_HEADER = "Ident"
#: Restricted users may publish to them.
_SUBJECTS = 3


class FeatureActor(ABC):
    """A stream with rules of its own."""

    config: ClassVar[dict[str, Any]]

    def __init__(self) -> None:
        self._number = 0

    def set_up(self, sim: Simulation) -> None:
        """Create what belongs to the stream; most have nothing."""
        return

    def finish(self, sim: Simulation) -> None:
        """Stop faults of its own, before the last check; most have none."""
        return

    @abstractmethod
    def act(self, sim: Simulation) -> None:
        """Let a client do something with the stream."""

    @abstractmethod
    def check(self, sim: Simulation, log: StreamLog, *, quiescent: bool) -> None:
        """Check the log against what is known. `quiescent`: timers have run."""

    def _next_ident(self) -> bytes:
        self._number += 1
        return b"%s#%d#" % (self.config["name"].encode(), self._number)


# Counters


@dataclass(slots=True, eq=False)
class _Increment:
    """An increment of a counter, and its outcome."""

    subject: bytes
    by: int
    refused: bool = False
    ack: tuple[int, int] | None = None  # sequence and sum


class CounterActor(FeatureActor):
    """Checks that nothing is counted twice or lost: every sum is the previous one plus the increment."""

    config: ClassVar[dict[str, Any]] = {"name": "C", "subjects": ["c.>"], "allow_msg_counter": True}

    def __init__(self) -> None:
        super().__init__()
        self._increments: dict[bytes, _Increment] = {}

    def act(self, sim: Simulation) -> None:
        for _ in range(sim.rng.randrange(1, 5)):
            ident, subject = self._next_ident(), f"c.{sim.rng.randrange(_SUBJECTS)}"
            increment = self._increments[ident] = _Increment(subject.encode(), sim.rng.randrange(-9, 100))
            header = {"Nats-Incr": str(increment.by), _IDENT_HEADER: ident.decode()}
            sim.client().request(subject, b"", _make_counter_handler(increment), header)

    def check(self, sim: Simulation, log: StreamLog, *, quiescent: bool) -> None:
        sums: dict[bytes, int] = {}
        seen: dict[bytes, int] = {}
        for seq, subject, header, payload in _iter_messages(log):
            ident = headers.get(header, _IDENT_HEADER.encode()) or b""
            increment = self._increments.get(ident)
            if increment is None or increment.subject != subject or ident in seen:
                raise Violation(f"C2: {ident!r} is counted at {seq} on {subject!r}, and at {seen.get(ident)}")
            require(not increment.refused, f"C13: {ident!r} was rejected, but is counted at {seq}")
            seen[ident] = seq
            sums[subject] = sums.get(subject, 0) + increment.by
            found = int(json.loads(payload)["val"])
            require(found == sums[subject], f"C4: {subject!r} is {found} at {seq}, not {sums[subject]}")
            require(
                increment.ack in (None, (seq, found)),
                f"C1: {ident!r} was acknowledged as {increment.ack}, not {seq, found}",
            )
        lost = [ident for ident, increment in self._increments.items() if increment.ack and ident not in seen]
        require(not lost, f"C1: {lost[:9]} were acknowledged, but are not counted")


def _make_counter_handler(increment: _Increment) -> Callable[[ReceivedMsg], None]:
    def on_reply(msg: ReceivedMsg) -> None:
        response = json.loads(msg.payload) if msg.payload else {}
        if "error" in response:
            increment.refused = True
        elif response:
            increment.ack = (response["seq"], int(response["val"]))

    return on_reply


# Schedules


@dataclass(slots=True, eq=False)
class _ScheduledMsg:
    """A message to be published at a time."""

    subject: str
    due_ns: int
    refused: bool = False
    stored: bool = False
    may_be_replaced: bool = False  # a plain message may have replaced it


class ScheduleActor(FeatureActor):
    """Checks that a schedule is either pending or has fired, not before its time and in the end on time."""

    config: ClassVar[dict[str, Any]] = {"name": "H", "subjects": ["h.>"], "allow_msg_schedules": True}

    def __init__(self) -> None:
        super().__init__()
        self._scheduled: dict[bytes, _ScheduledMsg] = {}

    def act(self, sim: Simulation) -> None:
        if self._scheduled and sim.rng.random() < 0.2:
            scheduled = sim.rng.choice(list(self._scheduled.values()))
            scheduled.may_be_replaced = True
            sim.client().request(scheduled.subject, b"")
            return
        due_ns = sim.now_ns + sim.rng.choice((0, 1, 4, 15, 50)) * SECOND_NS
        ident = self._next_ident()
        scheduled = self._scheduled[ident] = _ScheduledMsg(f"h.p{self._number}", due_ns)
        header = {"Nats-Schedule": f"@at {times.format_time(due_ns)}", "Nats-Schedule-Target": "h.out"}
        sim.client().request(scheduled.subject, ident, _make_schedule_handler(scheduled), header)

    def check(self, sim: Simulation, log: StreamLog, *, quiescent: bool) -> None:
        waiting: set[bytes] = set()
        fired: set[bytes] = set()
        for seq, subject, _, payload in _iter_messages(log):
            if not payload:
                continue
            scheduled = self._scheduled.get(payload)
            if scheduled is None or scheduled.refused or payload in fired:
                raise Violation(
                    f"C2: {payload!r} at {seq} on {subject!r} was rejected, is unknown, or is stored twice"
                )
            (fired if subject == b"h.out" else waiting).add(payload)
        latest_ns = max(sim.history_checker.latest_ns, sim.now_ns)
        for ident, scheduled in self._scheduled.items():
            found_count = int(ident in waiting) + int(ident in fired)
            require(found_count < 2, f"C4: {ident!r} has fired, but is still scheduled")
            require(
                ident not in fired or latest_ns >= scheduled.due_ns, f"C8: {ident!r} fired before its time"
            )
            require(
                found_count > 0 or scheduled.may_be_replaced or not scheduled.stored,
                f"C1: {ident!r} is no longer scheduled, but did not fire",
            )
            late = (
                quiescent
                and not scheduled.may_be_replaced
                and scheduled.due_ns + EXPIRY_SLACK_NS < sim.now_ns
            )
            require(not (late and ident in waiting), f"C8: {ident!r} should have fired by now")


def _make_schedule_handler(scheduled: _ScheduledMsg) -> Callable[[ReceivedMsg], None]:
    def on_reply(msg: ReceivedMsg) -> None:
        response = json.loads(msg.payload) if msg.payload else {}
        scheduled.refused = "error" in response
        scheduled.stored = bool(response) and not scheduled.refused

    return on_reply


# Fast ingest


@dataclass(slots=True, eq=False)
class _SentFastBatch:
    """A fast-ingest batch: its members by position, and what the replies reported."""

    client: SimClient
    reply: str  # prefix of the reply subjects of its members
    members: list[bytes] = field(default_factory=list)
    acked: set[bytes] = field(default_factory=set)
    missing_positions: set[int] = field(default_factory=set)  # positions reported as missing
    refused: set[bytes] = field(default_factory=set)

    def mark_acked(self, last: int) -> None:
        """Mark everything up to a position as stored, except reported gaps."""
        stored = (
            ident for at, ident in enumerate(self.members[:last], 1) if at not in self.missing_positions
        )
        self.acked.update(stored)

    def on_reply(self, msg: ReceivedMsg) -> None:
        """Handle a reply: to one member, to some, or to all."""
        if not msg.payload:
            return
        response, position = json.loads(msg.payload), int(msg.subject.split(b".")[-3])
        if "error" in response:
            self.missing_positions.add(position)
            self.refused.add(self.members[position - 1])
        elif response.get("type") == "gap":
            self.missing_positions.update(range(response["last_seq"], response["seq"]))
        elif response.get("type") == "ack":
            self.mark_acked(response["seq"])
        else:
            self.mark_acked(response["count"])


class FastIngestActor(FeatureActor):
    """Checks that acknowledged members of fast-ingest batches are stored once, in the order of sending."""

    config: ClassVar[dict[str, Any]] = {"name": "F", "subjects": ["f.>"], "allow_batched": True}

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[_SentFastBatch] = []
        self._open: list[_SentFastBatch] = []

    def act(self, sim: Simulation) -> None:
        """Start, continue or end a batch; a member may get lost on the way."""
        rng = sim.rng
        self._open = [batch for batch in self._open if batch.client.open]
        if not self._open or rng.random() < 0.4:
            self._open_batch(sim.client(), f"{rng.randrange(1, 5)}.{rng.choice(('ok', 'fail'))}")
        batch = rng.choice(self._open)
        ends = rng.random() < 0.4
        for left in range(rng.randrange(1, 9), 0, -1):
            batch.members.append(self._next_ident())
            position = len(batch.members)
            operation = COMMIT if ends and left == 1 else START if position == 1 else APPEND
            if rng.random() < 0.03:
                continue
            payload = batch.members[-1] + b"x" * rng.randrange(sim.options.payload_max)
            reply = f"{batch.reply}.{position}.{operation}.$FI".encode()
            batch.client.publish(f"f.{rng.randrange(_SUBJECTS)}", payload, None, reply)
        if ends:
            self._open.remove(batch)

    def _open_batch(self, client: SimClient, batch_options: str) -> None:
        name = f"b{len(self._batches)}"
        inbox = f"_L.{client.cid}.{name}"
        batch = _SentFastBatch(client, f"{inbox}.{name}.{batch_options}")
        client.subscribe(batch.on_reply, f"{inbox}.>".encode())
        self._batches.append(batch)
        self._open.append(batch)

    def check(self, sim: Simulation, log: StreamLog, *, quiescent: bool) -> None:
        at: dict[bytes, int] = {}
        for seq, _, _, payload in _iter_messages(log):
            ident = parse_ident(payload)
            require(ident not in at, f"C2: {ident!r} is stored at {at.get(ident)} and at {seq}")
            at[ident] = seq
        for batch in self._batches:
            lost, unwanted = batch.acked - set(at), batch.refused & set(at)
            require(not lost, f"C1: {sorted(lost)[:9]} of a fast batch were acknowledged, but are lost")
            require(
                not unwanted, f"C13: {sorted(unwanted)[:9]} of a fast batch were rejected, but are stored"
            )
            found_count = [at.pop(ident) for ident in batch.members if ident in at]
            require(
                found_count == sorted(found_count),
                f"C3: a fast batch is stored in another order: {found_count[:9]}",
            )
        require(not at, f"C2: {sorted(at)[:9]} were never sent")


def _iter_messages(log: StreamLog) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
        found = log.get(seq)
        if found is None:
            raise Violation(f"C9: {log.name} {seq} is listed, but cannot be read")
        yield seq, bytes(found[1]), bytes(found[2]), bytes(found[3])


#: By the name of their event.
FEATURE_ACTORS: dict[str, type[FeatureActor]] = {
    "count": CounterActor,
    "plan": ScheduleActor,
    "stream": FastIngestActor,
}
