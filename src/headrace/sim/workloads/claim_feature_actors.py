"""Optional features of claim simulations: copies of streams, consumers that are reset, payloads that arrive in parts.

Each feature owns what it adds to a simulation and what it does there; the checker knows what must hold. A feature draws
all its decisions from the simulation's second random generator, so simulations without features run as they did before
there were any. Readers under leases are in `claim_lease_readers`.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.claims.stores.object_store import SINGLE_PUT_MAX_BYTES
from headrace.sim.clock import SECOND_NS
from headrace.sim.workloads.claim_actors import ActorProcess, PublishPlan

if TYPE_CHECKING:
    from headrace.sim.claim_simulation import ClaimSimulation

#: Streams that others may copy: acknowledged messages stay in them.
UPSTREAM_STREAMS = ("A", "B", "N", "O")
#: Somebody else's upload in the same bucket.
FOREIGN_UPLOAD = "other/a/2026010100/parts"


class ClaimFeatureActor(ABC):
    """An additional feature of a simulation; `share` is how often it acts per event."""

    share: ClassVar[float]

    @abstractmethod
    async def set_up(self, sim: ClaimSimulation) -> None:
        """Create what must exist before the run."""

    @abstractmethod
    async def act(self, sim: ClaimSimulation) -> None:
        """Do something with the feature."""


class CopyActor(ClaimFeatureActor):
    """Mirrors and streams with sources, with consumers of the same names as those of their upstreams."""

    share = 0.5

    def __init__(self) -> None:
        self._copies: list[str] = []

    async def set_up(self, sim: ClaimSimulation) -> None:
        upstreams = [name for name in sim.options.streams if name in UPSTREAM_STREAMS]
        for upstream in upstreams:
            if sim.feature_rng.random() < 0.6:
                await self._create_copy(
                    sim, f"{upstream}C", {"mirror": {"name": upstream}}, f"{upstream.lower()}.1"
                )
        if upstreams and (not self._copies or sim.feature_rng.random() < 0.4):
            chosen = sim.feature_rng.sample(upstreams, sim.feature_rng.randrange(1, len(upstreams) + 1))
            await self._create_copy(
                sim, "S", {"sources": [_make_source(upstream) for upstream in chosen]}, "s.*.1"
            )

    async def _create_copy(
        self, sim: ClaimSimulation, name: str, upstream: dict[str, Any], filter_subject: str
    ) -> None:
        self._copies.append(name)
        sim.claim_checker.requirements.copies.add(name)
        config = {"name": name, "allow_msg_ttl": sim.feature_rng.random() < 0.5, **upstream}
        await sim.processes["operator"][0].jetstream.api_request(f"STREAM.CREATE.{name}", config)
        await sim.create_consumer(name, "one", {})
        await sim.create_consumer(
            name, "two", {"filter_subject": filter_subject} if sim.feature_rng.random() < 0.5 else {}
        )

    async def act(self, sim: ClaimSimulation) -> None:
        if not self._copies:
            return
        if sim.feature_rng.random() < 0.1:
            producer = sim.feature_rng.choice(sim.processes["producer"])
            producer.kill_at("note")
            producer.start_task(producer.publish(sim.make_plan(has_msg_id=False)))
        copy = sim.feature_rng.choice(self._copies)
        for consumer in ("one", "two"):
            if sim.feature_rng.random() < 0.6:
                process = sim.feature_rng.choice(sim.processes["consumer"])
                process.start_task(process.consume(copy, consumer, sim.feature_rng.randrange(1, 6)))


async def wait_grace_period(sim: ClaimSimulation) -> None:
    """Wait long enough that everything read, or considered read, is collected."""
    await asyncio.sleep(sim.options.ttl.grace_period + 2 * sim.options.skew_s + 1)
    collector = sim.feature_rng.choice(sim.processes["collector"])
    for _ in range(2):
        collector.start_task(collector.collect())
        await asyncio.sleep(sim.options.ttl.retention_after_read + 5)


def _make_source(upstream: str) -> dict[str, Any]:
    token = upstream.lower()
    return {
        "name": upstream,
        "subject_transforms": [{"src": f"{token}.*", "dest": f"s.{token}.{{{{wildcard(1)}}}}"}],
    }


class ResetActor(ClaimFeatureActor):
    """Resets consumers, to their floors or forward; they continue from there."""

    share = 0.25

    async def set_up(self, sim: ClaimSimulation) -> None:
        """Do nothing: it uses the existing consumers."""

    async def act(self, sim: ClaimSimulation) -> None:
        choices = [
            (name, consumer)
            for name, stream in sim.get_claim_streams()
            for consumer in sorted(stream.consumers)
        ]
        if not choices:
            return
        stream, consumer = sim.feature_rng.choice(choices)
        log = sim.host.broker.jetstream.streams[stream].log
        body = None
        if sim.feature_rng.random() < 0.85:
            last = log.last_seq + (3 if sim.feature_rng.random() < 0.1 else 0)
            body = {"seq": sim.feature_rng.randint(max(log.first_seq, 1), max(last, log.first_seq, 1))}
        operator, reader = sim.processes["operator"][0], sim.feature_rng.choice(sim.processes["consumer"])
        operator.start_task(reset_consumer(operator, stream, consumer, body))
        if sim.feature_rng.random() < 0.7:
            reader.start_task(reader.consume(stream, consumer, sim.feature_rng.randrange(1, 6)))


async def reset_consumer(
    operator: ActorProcess, stream: str, consumer: str, body: dict[str, int] | None
) -> str:
    """Reset a consumer; return the position."""
    with operator.claim_checker.requirements.changing_position(stream, consumer):
        response = await operator.jetstream.api_request(f"CONSUMER.RESET.{stream}.{consumer}", body)
    return f"{stream}/{consumer} is reset to {response['reset_seq']}"


class LargePayloadActor(ClaimFeatureActor):
    """Publishes a few payloads too large for one piece, as bytes or as an iterator.

    Some producers die between two parts.
    """

    share = 0.08
    _PLANS_MAX = 4

    def __init__(self) -> None:
        self._plans: list[PublishPlan] = []
        self._plan_count = 0

    async def set_up(self, sim: ClaimSimulation) -> None:
        now_ns = sim.clock.now_ns() - 365 * 86400 * SECOND_NS
        sim.bucket.uploads.begin(FOREIGN_UPLOAD, {}, now_ns)

    async def act(self, sim: ClaimSimulation) -> None:
        producer = sim.feature_rng.choice(sim.processes["producer"])
        if self._plans and (self._plan_count == self._PLANS_MAX or sim.feature_rng.random() < 0.3):
            producer.start_task(producer.publish(sim.feature_rng.choice(self._plans)))
            return
        if self._plan_count == self._PLANS_MAX:
            return
        moment = sim.feature_rng.choice(("", "", "", "part", "part", "upload", "note"))
        producer.kill_at(moment, sim.feature_rng.randrange(1, 4))
        producer.start_task(producer.publish(self._make_plan(sim)))

    def _make_plan(self, sim: ClaimSimulation) -> PublishPlan:
        self._plan_count += 1
        ident = sim.next_ident()
        size = SINGLE_PUT_MAX_BYTES + sim.feature_rng.choice((1, 700_000, 3_000_000))
        sim.claim_checker.payloads[ident] = hashlib.shake_128(f"{sim.seed} {ident}".encode()).digest(size)
        stream = sim.feature_rng.choice(sim.options.streams).lower()
        has_msg_id = sim.feature_rng.random() < 0.6
        chunk_bytes = sim.feature_rng.choice((0, 0, 300_000, 2_500_000))
        plan = PublishPlan(
            ident,
            f"{stream}.{sim.feature_rng.randrange(3)}",
            f"id {ident}" if has_msg_id else "",
            chunk_bytes,
        )
        if has_msg_id:
            self._plans.append(plan)
        return plan
