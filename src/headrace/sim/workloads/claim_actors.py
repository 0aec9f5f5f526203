"""Actors that use claims in a simulation: producers, consumers and collectors, each a process that may die.

Owns what each of them does with the real `headrace.claims`, and what it reports to the checker. A dead process does
nothing more: its bytes and its calls to the object store have no effect, whatever its coroutines still try.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims import ClaimConfig, ClaimError, Claims, Clock, Metrics, Received
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.reference import decode, is_claim
from headrace.claims.registry import ClaimEntry
from headrace.claims.stores import MultipartUpload
from headrace.errors import RequestError
from headrace.sim.checkers.claim_checker import ClaimChecker
from headrace.sim.checkers.claim_reachability import IDENT_HEADER
from headrace.sim.clock import SimClock
from headrace.sim.network.sim_transport import SimConnection, SimHost
from headrace.sim.object_store import SimBucket, SimObjectStore

#: Errors that are allowed.
EXPECTED_ERRORS = (ClaimError, RequestTimeout, RequestError, NatsError, TimeoutError)


class PublishPlan(NamedTuple):
    """A payload to publish, once or again; without `msg_id` only once.

    If `chunk_bytes` is not 0, it is an iterator of pieces of that size, whose total is not known beforehand.
    """

    ident: str
    subject: str
    msg_id: str
    chunk_bytes: int = 0


class HandlerDeclined(Exception):
    """Raised by a handler that rejects a message."""


class ActorContext(NamedTuple):
    """What all processes of a simulation share."""

    host: SimHost
    bucket: SimBucket
    claim_checker: ClaimChecker
    config: ClaimConfig
    metrics: Metrics
    rng: Random
    page_size: int
    trace: Callable[..., None]


class SkewedClock:
    """A machine's clock that is slightly wrong."""

    def __init__(self, clock: SimClock, skew_ns: int) -> None:
        self._clock = clock
        self._skew_ns = skew_ns

    def now_ns(self) -> int:
        return self._clock.now_ns() + self._skew_ns


class ActorProcess:
    """A program with a connection, an object store and claims; `clock` None means the server's."""

    def __init__(self, context: ActorContext, kind: str, number: int, clock: Clock | None) -> None:
        self.name = f"{kind} {number}"
        self.alive = True
        self.rng = context.rng
        self.claim_checker = context.claim_checker
        self._trace = context.trace
        self._clock = context.host.clock
        self._metrics = context.metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._decision_ns: dict[asyncio.Task[Any] | None, int] = {}
        self.claim_checker.decision_times[self.name] = self.get_oldest_decision_ns
        self._killed: asyncio.Future[None] | None = None
        self._claim_id_count = 0
        self.failures: list[Exception] = []
        self._dies_after_upload = False
        self._parts_until_death = 0  # 0 means that parts do not kill it
        self.object_store = SimObjectStore(context.bucket, self, page_size=context.page_size)
        self.connection = SimConnection(context.host, number)
        self.claims = Claims(
            self.connection,
            context.config,
            store=self.object_store,
            clock=clock,
            metrics=context.metrics,
            draw_id=lambda: self._make_claim_id(number),
        )
        self.jetstream = self.claims.jetstream

    def _make_claim_id(self, number: int) -> str:
        self._claim_id_count += 1
        return f"{self.rng.getrandbits(64):016x}{number:08x}{self._claim_id_count:08x}"

    def start_task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a task, beside those already running."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(self._run_task(coroutine)))

    def mark_decision(self) -> None:
        """Mark that the current task decides from now on."""
        self._decision_ns[asyncio.current_task()] = self._clock.now_ns()

    def get_oldest_decision_ns(self) -> int:
        """Return when it began to decide about the oldest of its running tasks."""
        return min(self._decision_ns.values(), default=self._clock.now_ns())

    async def _run_task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.mark_decision()
        task = asyncio.current_task()
        try:
            result = await coroutine
        except (*EXPECTED_ERRORS, HandlerDeclined) as error:
            self._trace(self.name, type(error).__name__)
        except Exception as error:
            self.failures.append(error)
        else:
            self._trace(self.name, str(result))
        finally:
            self._decision_ns.pop(task, None)

    async def wait_until_idle(self) -> None:
        """Wait until all its tasks are done; the tasks of a process that dies meanwhile never end."""
        self._killed = asyncio.get_running_loop().create_future()
        while self.alive and (running := [task for task in self._tasks if not task.done()]):
            await asyncio.wait([*running, self._killed], return_when=asyncio.FIRST_COMPLETED)

    def kill(self) -> None:
        """Kill the process in the middle of its work."""
        if not self.alive:
            return
        self._trace(self.name, "dies")
        self.alive = False
        if self._killed is not None:
            self._killed.set_result(None)
        self.object_store.process_dead = self.connection.transport.process_dead = True
        self.connection.transport.disconnect()
        for task in self._tasks:
            task.cancel()

    # Producers

    def kill_at(self, moment: str, parts: int = 1) -> None:
        """Kill the process after the next upload, after some parts of it, or after the publish and before it is
        recorded.
        """
        if moment == "upload":
            self._dies_after_upload = True
        elif moment == "part":
            self._parts_until_death = parts
        elif moment == "note":
            self.claims.registry.update_nowait = self._kill_instead  # type: ignore[method-assign]

    async def _kill_instead(self, entry: ClaimEntry, ttl_s: float) -> None:
        self.kill()
        await asyncio.sleep(0)

    async def publish(self, plan: PublishPlan, *, dies_after_upload: bool = False) -> str:
        """Publish, and return the outcome; with `dies_after_upload` the process dies between upload and publish."""
        payload = self.claim_checker.payloads[plan.ident]
        if dies_after_upload:
            self.kill_at("upload")
        try:
            published = await self.claims.producer.publish(
                plan.subject,
                _iter_chunks(payload, plan.chunk_bytes) if plan.chunk_bytes else payload,
                headers={IDENT_HEADER: plan.ident},
                msg_id=plan.msg_id,
            )
        except ClaimError as error:
            return f"{plan.ident}: {type(error).__name__}"
        except EXPECTED_ERRORS as error:
            self.claim_checker.add_violation(f"publishing failed with {error!r}, which is not a ClaimError")
            return ""
        return f"{plan.ident}: {published.stream} {published.seq} {published.duplicate}"

    # Events of its object store

    def on_delete(self, key: str) -> None:
        self.claim_checker.on_delete(key, self.name)

    def on_abort(self, upload: MultipartUpload) -> None:
        self.claim_checker.on_abort(upload, self.name)

    def on_uploaded(self) -> None:
        if self._dies_after_upload:
            self.kill()

    def on_part_uploaded(self) -> None:
        if self._parts_until_death:
            self._parts_until_death -= 1
            if not self._parts_until_death:
                self.kill()

    # Consumers

    async def consume(self, stream: str, consumer: str, count: int, *, handle_all: bool = False) -> int:
        messages = await self.jetstream.pull(stream, consumer, count)
        for message in messages:
            self.mark_decision()
            roll = 0.0 if handle_all else self.rng.random()
            action = next(action for upper_bound, action in _CONSUME_ACTIONS if roll < upper_bound)
            await action(self, message)
        return len(messages)

    async def handle(self, message: Msg) -> None:
        """Handle a message normally."""
        failed = self._count_failed_releases()
        done = await self.claims.consumer.handle(message, self._on_received)
        self._trace(self.name, "handled", str(done))
        stream, is_sure = message.metadata.stream, failed == self._count_failed_releases()
        if (
            done
            and is_sure
            and stream in self.claim_checker.requirements.copies
            and is_claim(message.headers)
        ):
            self.claim_checker.record_release(decode(message.data), stream)

    def _count_failed_releases(self) -> float:
        labels = {"namespace": self.claims.config.namespace, "reason": "release"}
        return self._metrics.registry.get_sample_value("claim_check_claim_errors_total", labels) or 0

    async def _on_received(self, received: Received) -> None:
        self.claim_checker.record_read(received.headers.get(IDENT_HEADER, ""), received.data)
        self.claim_checker.record_ack(received.reference, received.message.metadata.stream)

    async def decline(self, message: Msg) -> None:
        """Let the handler fail; the message is delivered again."""

        async def handler(received: Received) -> None:
            self.claim_checker.record_read(received.headers.get(IDENT_HEADER, ""), received.data)
            raise HandlerDeclined

        await self.claims.consumer.handle(message, handler)

    async def read_without_ack(self, message: Msg) -> None:
        """Read and never acknowledge."""
        received = await self.claims.consumer.read(message)
        self.claim_checker.record_read(received.headers.get(IDENT_HEADER, ""), received.data)

    async def read_and_die(self, message: Msg) -> None:
        await self.read_without_ack(message)
        self.kill()
        await asyncio.sleep(0)

    async def ack_directly(self, message: Msg) -> None:
        """Acknowledge like any client: the claim is not released, and nothing is confirmed."""
        received = await self.claims.consumer.read(message)
        await self._on_received(received)
        await message.ack()

    # Collectors

    async def collect(self) -> str:
        report = await self.claims.collector.collect()
        return f"{report.collected} {report.expired} {report.orphans} {report.failed} {report.released}"

    async def collect_due(self) -> str:
        report = await self.claims.collector.collect_due(5.0)
        return f"{report.collected} {report.expired}"


async def _iter_chunks(payload: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), size):
        yield payload[start : start + size]


_CONSUME_ACTIONS: tuple[tuple[float, Callable[[ActorProcess, Msg], Coroutine[Any, Any, None]]], ...] = (
    (0.65, ActorProcess.handle),
    (0.75, ActorProcess.ack_directly),
    (0.85, ActorProcess.decline),
    (0.93, ActorProcess.read_without_ack),
    (1.0, ActorProcess.read_and_die),
)
