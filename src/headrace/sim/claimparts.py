"""What only some worlds of claims have: copies of streams, consumers that are reset, payloads that come in parts.

Each part owns what it brings into a world and what it does there; what must hold of it is the ledger's business. All that
a part decides it draws from the world's second source of chance, so worlds without parts are what they were before there
were any. Readers under leases are in `claimreaders`.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.claims.stores.base import WHOLE_MAX
from headrace.sim.claimactors import Parcel, Process
from headrace.sim.clock import SECOND_NS

if TYPE_CHECKING:
    from headrace.sim.claimworld import ClaimWorld

#: Streams that others may copy: what is acknowledged in them stays.
ORIGINS = ("A", "B", "N", "O")
#: An upload of somebody else's in the same bucket.
FOREIGN_UPLOAD = "other/a/2026010100/parts"


class ClaimPart(ABC):
    """Something that a world has besides; `share` is how often it acts, an event of the world."""

    share: ClassVar[float]

    @abstractmethod
    async def found(self, world: ClaimWorld) -> None:
        """What must be there before anything happens."""

    @abstractmethod
    async def act(self, world: ClaimWorld) -> None:
        """Somebody does something about it."""


class Copying(ClaimPart):
    """Mirrors and streams with sources, with consumers of the same names as those of their origins."""

    share = 0.5

    def __init__(self) -> None:
        self._copies: list[str] = []

    async def found(self, world: ClaimWorld) -> None:
        origins = [name for name in world.options.streams if name in ORIGINS]
        for origin in origins:
            if world.chance.random() < 0.6:
                await self._copy(world, f"{origin}C", {"mirror": {"name": origin}}, f"{origin.lower()}.1")
        if origins and (not self._copies or world.chance.random() < 0.4):
            chosen = world.chance.sample(origins, world.chance.randrange(1, len(origins) + 1))
            await self._copy(world, "S", {"sources": [_source(origin) for origin in chosen]}, "s.*.1")

    async def _copy(self, world: ClaimWorld, name: str, origin: dict[str, Any], filtered: str) -> None:
        self._copies.append(name)
        world.ledger.needs.copies.add(name)
        config = {"name": name, "allow_msg_ttl": world.chance.random() < 0.5, **origin}
        await world.processes["operator"][0].wire.api(f"STREAM.CREATE.{name}", config)
        await world.consumer(name, "one", {})
        await world.consumer(name, "two", {"filter_subject": filtered} if world.chance.random() < 0.5 else {})

    async def act(self, world: ClaimWorld) -> None:
        if not self._copies:
            return
        if world.chance.random() < 0.1:
            producer = world.chance.choice(world.processes["producer"])
            producer.die_at("note")
            producer.do(producer.publish(world.parcel(named=False)))
        copy = world.chance.choice(self._copies)
        for consumer in ("one", "two"):
            if world.chance.random() < 0.6:
                process = world.chance.choice(world.processes["consumer"])
                process.do(process.consume(copy, consumer, world.chance.randrange(1, 6)))


async def grace_passes(world: ClaimWorld) -> None:
    """Long enough that whatever was read, or is taken for it, is collected."""
    await asyncio.sleep(world.options.ttl.grace_period + 2 * world.options.skew_s + 1)
    collector = world.chance.choice(world.processes["collector"])
    for _ in range(2):
        collector.do(collector.collect())
        await asyncio.sleep(world.options.ttl.retention_after_read + 5)


def _source(origin: str) -> dict[str, Any]:
    token = origin.lower()
    return {
        "name": origin,
        "subject_transforms": [{"src": f"{token}.*", "dest": f"s.{token}.{{{{wildcard(1)}}}}"}],
    }


class Resetting(ClaimPart):
    """Consumers are sent back, to their floors or forward, and read on from there."""

    share = 0.25

    async def found(self, world: ClaimWorld) -> None:
        """It takes the consumers that there are."""

    async def act(self, world: ClaimWorld) -> None:
        choices = [
            (name, consumer) for name, stream in world.carriers() for consumer in sorted(stream.consumers)
        ]
        if not choices:
            return
        stream, consumer = world.chance.choice(choices)
        log = world.host.broker.jetstream.streams[stream].log
        body = None
        if world.chance.random() < 0.85:
            last = log.last_seq + (3 if world.chance.random() < 0.1 else 0)
            body = {"seq": world.chance.randint(max(log.first_seq, 1), max(last, log.first_seq, 1))}
        operator, reader = world.processes["operator"][0], world.chance.choice(world.processes["consumer"])
        operator.do(reset(operator, stream, consumer, body))
        if world.chance.random() < 0.7:
            reader.do(reader.consume(stream, consumer, world.chance.randrange(1, 6)))


async def reset(operator: Process, stream: str, consumer: str, body: dict[str, int] | None) -> str:
    """Reset a consumer; where to."""
    with operator.ledger.needs.moving(stream, consumer):
        answer = await operator.wire.api(f"CONSUMER.RESET.{stream}.{consumer}", body)
    return f"{stream}/{consumer} is reset to {answer['reset_seq']}"


class Parting(ClaimPart):
    """A few payloads too large for one piece, as bytes or as an iterator, and producers that die between two parts."""

    share = 0.08
    _MOST = 4

    def __init__(self) -> None:
        self._parcels: list[Parcel] = []
        self._made = 0

    async def found(self, world: ClaimWorld) -> None:
        now_ns = world.clock.now_ns() - 365 * 86400 * SECOND_NS
        world.objects.uploads.begin(FOREIGN_UPLOAD, {}, now_ns)

    async def act(self, world: ClaimWorld) -> None:
        producer = world.chance.choice(world.processes["producer"])
        if self._parcels and (self._made == self._MOST or world.chance.random() < 0.3):
            producer.do(producer.publish(world.chance.choice(self._parcels)))
            return
        if self._made == self._MOST:
            return
        moment = world.chance.choice(("", "", "", "part", "part", "upload", "note"))
        producer.die_at(moment, world.chance.randrange(1, 4))
        producer.do(producer.publish(self._parcel(world)))

    def _parcel(self, world: ClaimWorld) -> Parcel:
        self._made += 1
        ident = world.ident()
        size = WHOLE_MAX + world.chance.choice((1, 700_000, 3_000_000))
        world.ledger.payloads[ident] = hashlib.shake_128(f"{world.seed} {ident}".encode()).digest(size)
        stream = world.chance.choice(world.options.streams).lower()
        is_named = world.chance.random() < 0.6
        piece = world.chance.choice((0, 0, 300_000, 2_500_000))
        parcel = Parcel(
            ident, f"{stream}.{world.chance.randrange(3)}", f"id {ident}" if is_named else "", piece
        )
        if is_named:
            self._parcels.append(parcel)
        return parcel
