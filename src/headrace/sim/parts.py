"""What only some worlds have: a stream of counters, one of schedules, one that takes fast batches.

Owns what is sent to each and what must hold of it; every part knows its own messages, since what such a stream holds is
not what was published word for word. A part only uses what clients see, and its stream's log to judge by.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.api import times
from headrace.broker.fast_batches import APPEND, COMMIT, START
from headrace.protocol import headers
from headrace.sim.checks import Violation, demand
from headrace.sim.clients import Arrival, SimClient
from headrace.sim.clock import SECOND_NS
from headrace.sim.ledger import LATE_NS, ident_of

if TYPE_CHECKING:
    from headrace.sim.world import World
    from headrace.store import Log

_IDENT = "Ident"
#: Guests may publish to them.
_SUBJECTS = 3


class Part(ABC):
    """A stream with rules of its own."""

    config: ClassVar[dict[str, Any]]

    def __init__(self) -> None:
        self._number = 0

    @abstractmethod
    def act(self, world: World) -> None:
        """A client does something about it."""

    @abstractmethod
    def judge(self, world: World, log: Log, *, calm: bool) -> None:
        """Hold the log against what is known. `calm`: timers have run."""

    def _next(self) -> bytes:
        self._number += 1
        return b"%s#%d#" % (self.config["name"].encode(), self._number)


# Counters


@dataclass(slots=True, eq=False)
class _Step:
    """By how much a counter was to be raised, and what came of it."""

    subject: bytes
    by: int
    refused: bool = False
    told: tuple[int, int] | None = None  # sequence and sum


class Counting(Part):
    """Nothing is counted twice or forgotten: every sum is the one before it and the step between."""

    config: ClassVar[dict[str, Any]] = {"name": "C", "subjects": ["c.>"], "allow_msg_counter": True}

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[bytes, _Step] = {}

    def act(self, world: World) -> None:
        for _ in range(world.rng.randrange(1, 5)):
            ident, subject = self._next(), f"c.{world.rng.randrange(_SUBJECTS)}"
            step = self._steps[ident] = _Step(subject.encode(), world.rng.randrange(-9, 100))
            header = {"Nats-Incr": str(step.by), _IDENT: ident.decode()}
            world.client().request(subject, b"", _counted(step), header)

    def judge(self, world: World, log: Log, *, calm: bool) -> None:
        sums: dict[bytes, int] = {}
        seen: dict[bytes, int] = {}
        for seq, subject, header, payload in _messages(log):
            ident = headers.get(header, _IDENT.encode()) or b""
            step = self._steps.get(ident)
            if step is None or step.subject != subject or ident in seen:
                raise Violation(f"C2: {ident!r} is counted at {seq} on {subject!r}, and at {seen.get(ident)}")
            demand(not step.refused, f"C13: {ident!r} was refused and is counted at {seq}")
            seen[ident] = seq
            sums[subject] = sums.get(subject, 0) + step.by
            found = int(json.loads(payload)["val"])
            demand(found == sums[subject], f"C4: {subject!r} is {found} at {seq}, not {sums[subject]}")
            demand(step.told in (None, (seq, found)), f"C1: {ident!r} was told {step.told}, not {seq, found}")
        lost = [ident for ident, step in self._steps.items() if step.told and ident not in seen]
        demand(not lost, f"C1: {lost[:9]} were acknowledged and are not counted")


def _counted(step: _Step) -> Callable[[Arrival], None]:
    def answered(arrival: Arrival) -> None:
        answer = json.loads(arrival.payload) if arrival.payload else {}
        if "error" in answer:
            step.refused = True
        elif answer:
            step.told = (answer["seq"], int(answer["val"]))

    return answered


# Schedules


@dataclass(slots=True, eq=False)
class _Plan:
    """What is to be published at a time."""

    subject: str
    due_ns: int
    refused: bool = False
    stored: bool = False
    ended: bool = False  # a plain message may have taken its place


class Planning(Part):
    """A schedule waits or has fired, never both nor neither, not before its time and in the end on it."""

    config: ClassVar[dict[str, Any]] = {"name": "H", "subjects": ["h.>"], "allow_msg_schedules": True}

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[bytes, _Plan] = {}

    def act(self, world: World) -> None:
        if self._plans and world.rng.random() < 0.2:
            plan = world.rng.choice(list(self._plans.values()))
            plan.ended = True
            world.client().request(plan.subject, b"", lambda arrival: None)
            return
        due_ns = world.now_ns + world.rng.choice((0, 1, 4, 15, 50)) * SECOND_NS
        ident = self._next()
        plan = self._plans[ident] = _Plan(f"h.p{self._number}", due_ns)
        header = {"Nats-Schedule": f"@at {times.text(due_ns)}", "Nats-Schedule-Target": "h.out"}
        world.client().request(plan.subject, ident, _planned(plan), header)

    def judge(self, world: World, log: Log, *, calm: bool) -> None:
        waiting: set[bytes] = set()
        fired: set[bytes] = set()
        for seq, subject, _, payload in _messages(log):
            if not payload:
                continue
            plan = self._plans.get(payload)
            if plan is None or plan.refused or payload in fired:
                raise Violation(
                    f"C2: {payload!r} at {seq} on {subject!r} was refused, is unknown, or is twice"
                )
            (fired if subject == b"h.out" else waiting).add(payload)
        latest_ns = max(world.ledger.latest_ns, world.now_ns)
        for ident, plan in self._plans.items():
            there = int(ident in waiting) + int(ident in fired)
            demand(there < 2, f"C4: {ident!r} has fired and still waits")
            demand(ident not in fired or latest_ns >= plan.due_ns, f"C8: {ident!r} fired before its time")
            demand(
                there > 0 or plan.ended or not plan.stored,
                f"C1: {ident!r} is planned no more and did not fire",
            )
            late = calm and not plan.ended and plan.due_ns + LATE_NS < world.now_ns
            demand(not (late and ident in waiting), f"C8: {ident!r} should have fired by now")


def _planned(plan: _Plan) -> Callable[[Arrival], None]:
    def answered(arrival: Arrival) -> None:
        answer = json.loads(arrival.payload) if arrival.payload else {}
        plan.refused = "error" in answer
        plan.stored = bool(answer) and not plan.refused

    return answered


# Fast batches


@dataclass(slots=True, eq=False)
class _Batch:
    """A fast batch: its members by position, and what its answers said of them."""

    client: SimClient
    reply: str  # how the reply subjects of its members begin
    members: list[bytes] = field(default_factory=list)
    promised: set[bytes] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)  # positions that are not there, as was told
    refused: set[bytes] = field(default_factory=set)

    def promise(self, last: int) -> None:
        """Everything up to a position is said to be stored, save what was excused."""
        kept = (ident for at, ident in enumerate(self.members[:last], 1) if at not in self.excused)
        self.promised.update(kept)

    def heard(self, arrival: Arrival) -> None:
        """An answer: to a member, to some, or to all."""
        if not arrival.payload:
            return
        answer, position = json.loads(arrival.payload), int(arrival.subject.split(b".")[-3])
        if "error" in answer:
            self.excused.add(position)
            self.refused.add(self.members[position - 1])
        elif answer.get("type") == "gap":
            self.excused.update(range(answer["last_seq"], answer["seq"]))
        elif answer.get("type") == "ack":
            self.promise(answer["seq"])
        else:
            self.promise(answer["count"])


class Streaming(Part):
    """What a fast batch was told to be stored is, once, and in the order of sending."""

    config: ClassVar[dict[str, Any]] = {"name": "F", "subjects": ["f.>"], "allow_batched": True}

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[_Batch] = []
        self._open: list[_Batch] = []

    def act(self, world: World) -> None:
        """A batch begins, goes on or ends; on the way a member may be lost."""
        rng = world.rng
        self._open = [batch for batch in self._open if batch.client.open]
        if not self._open or rng.random() < 0.4:
            self._begin(world.client(), f"{rng.randrange(1, 5)}.{rng.choice(('ok', 'fail'))}")
        batch = rng.choice(self._open)
        ends = rng.random() < 0.4
        for left in range(rng.randrange(1, 9), 0, -1):
            batch.members.append(self._next())
            position = len(batch.members)
            operation = COMMIT if ends and left == 1 else START if position == 1 else APPEND
            if rng.random() < 0.03:
                continue
            payload = batch.members[-1] + b"x" * rng.randrange(world.options.payload_max)
            reply = f"{batch.reply}.{position}.{operation}.$FI".encode()
            batch.client.publish(f"f.{rng.randrange(_SUBJECTS)}", payload, None, reply)
        if ends:
            self._open.remove(batch)

    def _begin(self, client: SimClient, manner: str) -> None:
        name = f"b{len(self._batches)}"
        inbox = f"_L.{client.cid}.{name}"
        batch = _Batch(client, f"{inbox}.{name}.{manner}")
        client.listen(batch.heard, f"{inbox}.>".encode())
        self._batches.append(batch)
        self._open.append(batch)

    def judge(self, world: World, log: Log, *, calm: bool) -> None:
        at: dict[bytes, int] = {}
        for seq, _, _, payload in _messages(log):
            ident = ident_of(payload)
            demand(ident not in at, f"C2: {ident!r} is stored at {at.get(ident)} and at {seq}")
            at[ident] = seq
        for batch in self._batches:
            lost, unwanted = batch.promised - set(at), batch.refused & set(at)
            demand(not lost, f"C1: {sorted(lost)[:9]} of a fast batch were acknowledged and are lost")
            demand(not unwanted, f"C13: {sorted(unwanted)[:9]} of a fast batch were refused and are stored")
            there = [at.pop(ident) for ident in batch.members if ident in at]
            demand(there == sorted(there), f"C3: a fast batch stands in another order: {there[:9]}")
        demand(not at, f"C2: {sorted(at)[:9]} were sent by nobody")


def _messages(log: Log) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    for seq in log.seqs(None, log.first_seq, log.last_seq).tolist():
        found = log.get(seq)
        if found is None:
            raise Violation(f"C9: {log.name} {seq} is listed and cannot be read")
        yield seq, bytes(found[1]), bytes(found[2]), bytes(found[3])


#: By the name of the event that has to do with them.
PARTS: dict[str, type[Part]] = {"count": Counting, "plan": Planning, "stream": Streaming}
