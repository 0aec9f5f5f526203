"""Those who use claims in a simulated world: producers, consumers and collectors, each a process that may die.

Owns what each of them does with the real `headrace.claims`, and what it tells the ledger. A process that died does
nothing more: its bytes and its calls of the object store lead nowhere, whatever its coroutines still try.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims import ClaimConfig, ClaimError, Claims, Clock, Metrics, Received
from headrace.claims.reference import decode, is_claim
from headrace.claims.registry import Entry
from headrace.claims.wire import NoAnswer
from headrace.errors import RequestError
from headrace.sim.claimledger import ClaimLedger
from headrace.sim.claimneeds import IDENT
from headrace.sim.clock import SimClock
from headrace.sim.host import SimConnection, SimHost
from headrace.sim.objects import Door, SimObjects

#: What may go wrong without being wrong.
TROUBLE = (ClaimError, NoAnswer, RequestError, NatsError, TimeoutError)


class Parcel(NamedTuple):
    """Something to publish, once or again; without `msg_id` only once. In pieces of `piece` bytes, if that is not 0, whose
    end nobody knows beforehand.
    """

    ident: str
    subject: str
    msg_id: str
    piece: int = 0


class Declined(Exception):
    """What a handler raises that is not content."""


class Surroundings(NamedTuple):
    """What all processes of a world share."""

    host: SimHost
    objects: SimObjects
    ledger: ClaimLedger
    config: ClaimConfig
    metrics: Metrics
    rng: Random
    page: int
    note: Callable[..., None]


class SkewedClock:
    """A machine's clock that is a little wrong."""

    def __init__(self, clock: SimClock, skew_ns: int) -> None:
        self._clock = clock
        self._skew_ns = skew_ns

    def now_ns(self) -> int:
        return self._clock.now_ns() + self._skew_ns


class Process:
    """A program with a connection, a door to the bucket and claims; `clock` None is the server's."""

    def __init__(self, around: Surroundings, kind: str, number: int, clock: Clock | None) -> None:
        self.name = f"{kind} {number}"
        self.alive = True
        self.rng = around.rng
        self.ledger = around.ledger
        self._note = around.note
        self._clock = around.host.clock
        self._metrics = around.metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._decided_ns: dict[asyncio.Task[Any] | None, int] = {}
        self.ledger.deciding[self.name] = self.decided_ns
        self._death: asyncio.Future[None] | None = None
        self._drawn = 0
        self.failures: list[Exception] = []
        self.door = Door(around.objects, self.name, page=around.page)
        self.connection = SimConnection(around.host, number)
        self.claims = Claims(
            self.connection,
            around.config,
            store=self.door,
            clock=clock,
            metrics=around.metrics,
            draw_id=lambda: self._draw(number),
        )
        self.wire = self.claims.wire

    def _draw(self, number: int) -> str:
        self._drawn += 1
        return f"{self.rng.getrandbits(64):016x}{number:08x}{self._drawn:08x}"

    def do(self, act: Coroutine[Any, Any, Any]) -> None:
        """Do something, beside whatever else is under way."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(self._guarded(act)))

    def decides(self) -> None:
        """What the task under way does from now on it decides from now on."""
        self._decided_ns[asyncio.current_task()] = self._clock.now_ns()

    def decided_ns(self) -> int:
        """When it began to decide about the oldest of what is under way."""
        return min(self._decided_ns.values(), default=self._clock.now_ns())

    async def _guarded(self, act: Coroutine[Any, Any, Any]) -> None:
        self.decides()
        task = asyncio.current_task()
        try:
            result = await act
        except (*TROUBLE, Declined) as error:
            self._note(self.name, type(error).__name__)
        except Exception as error:
            self.failures.append(error)
        else:
            self._note(self.name, str(result))
        finally:
            self._decided_ns.pop(task, None)

    async def idle(self) -> None:
        """Until nothing that it was told to do is under way; what one that dies meanwhile tries never ends."""
        self._death = asyncio.get_running_loop().create_future()
        while self.alive and (waiting := [task for task in self._tasks if not task.done()]):
            await asyncio.wait([*waiting, self._death], return_when=asyncio.FIRST_COMPLETED)

    def die(self) -> None:
        """In the middle of whatever is under way."""
        if not self.alive:
            return
        self._note(self.name, "dies")
        self.alive = False
        if self._death is not None:
            self._death.set_result(None)
        self.door.dead = self.connection.transport.dead = True
        self.connection.transport.break_off()
        for task in self._tasks:
            task.cancel()

    # What producers do

    def die_at(self, moment: str, parts: int = 1) -> None:
        """Die when the next upload or so many parts of it are done, or when the message is there and nobody knows where."""
        if moment == "upload":
            self.door.uploaded = self.die
        elif moment == "part":
            self.door.part_uploaded = self._last_of(parts)
        elif moment == "note":
            self.claims.registry.note = self._die_instead  # type: ignore[method-assign]

    async def _die_instead(self, entry: Entry, keep_s: float) -> None:
        self.die()
        await asyncio.sleep(0)

    async def publish(self, parcel: Parcel, *, deadly: bool = False) -> str:
        """Publish, and say what came of it; a deadly attempt ends between upload and publish."""
        payload = self.ledger.payloads[parcel.ident]
        if deadly:
            self.die_at("upload")
        try:
            published = await self.claims.producer.publish(
                parcel.subject,
                _pieces(payload, parcel.piece) if parcel.piece else payload,
                headers={IDENT: parcel.ident},
                msg_id=parcel.msg_id,
            )
        except ClaimError as error:
            return f"{parcel.ident}: {type(error).__name__}"
        except TROUBLE as error:
            self.ledger.blame(f"publishing fails with {error!r}, which is no ClaimError")
            return ""
        return f"{parcel.ident}: {published.stream} {published.seq} {published.duplicate}"

    def _last_of(self, parts: int) -> Callable[[], None]:
        left = parts

        def uploaded() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.die()

        return uploaded

    # What consumers do

    async def consume(self, stream: str, consumer: str, count: int, *, diligent: bool = False) -> int:
        messages = await self.wire.pull(stream, consumer, count)
        for message in messages:
            self.decides()
            luck = 0.0 if diligent else self.rng.random()
            way = next(way for most, way in _WAYS if luck < most)
            await way(self, message)
        return len(messages)

    async def handle(self, message: Msg) -> None:
        """As it is meant to be."""
        failed = self._failed_releases()
        done = await self.claims.consumer.handle(message, self._content)
        self._note(self.name, "handled", str(done))
        stream, is_sure = message.metadata.stream, failed == self._failed_releases()
        if done and is_sure and stream in self.ledger.needs.copies and is_claim(message.headers):
            self.ledger.released(decode(message.data), stream)

    def _failed_releases(self) -> float:
        labels = {"namespace": self.claims.config.namespace, "reason": "release"}
        return self._metrics.registry.get_sample_value("claim_check_claim_errors_total", labels) or 0

    async def _content(self, received: Received) -> None:
        self.ledger.received(received.headers.get(IDENT, ""), received.data)
        self.ledger.acking(received.reference, received.message.metadata.stream)

    async def decline(self, message: Msg) -> None:
        """The handler fails; the message comes again."""

        async def handler(received: Received) -> None:
            self.ledger.received(received.headers.get(IDENT, ""), received.data)
            raise Declined

        await self.claims.consumer.handle(message, handler)

    async def look(self, message: Msg) -> None:
        """Read and never acknowledge."""
        received = await self.claims.consumer.read(message)
        self.ledger.received(received.headers.get(IDENT, ""), received.data)

    async def look_and_die(self, message: Msg) -> None:
        await self.look(message)
        self.die()
        await asyncio.sleep(0)

    async def acknowledge(self, message: Msg) -> None:
        """Acknowledge as any client does: nobody releases the claim, nothing is confirmed."""
        received = await self.claims.consumer.read(message)
        await self._content(received)
        await message.ack()

    # What collectors do

    async def collect(self) -> str:
        report = await self.claims.collector.collect()
        return f"{report.collected} {report.expired} {report.orphans} {report.failed} {report.released}"

    async def collect_due(self) -> str:
        report = await self.claims.collector.collect_due(5.0)
        return f"{report.collected} {report.expired}"


async def _pieces(payload: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), size):
        yield payload[start : start + size]


_WAYS: tuple[tuple[float, Callable[[Process, Msg], Coroutine[Any, Any, None]]], ...] = (
    (0.65, Process.handle),
    (0.75, Process.acknowledge),
    (0.85, Process.decline),
    (0.93, Process.look),
    (1.0, Process.look_and_die),
)
