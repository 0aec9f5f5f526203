"""Readers that never acknowledge, as Spark's queries: they hold what they have still to read under leases.

Owns what such readers do and remember. A query's lease is there before the first message it reads, its floor is never above
what the query has finished, and it is renewed only while the query goes on. A reader that dies leaves its lease to run
out; another goes on where its query stood.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.claims import ClaimError, register_reader
from headrace.claims.consumer import fetched
from headrace.sim.claimactors import Process
from headrace.sim.claimledger import carried
from headrace.sim.claimneeds import Terms
from headrace.sim.claimparts import ClaimPart, grace_passes

if TYPE_CHECKING:
    from headrace.sim.claimworld import ClaimWorld

LATE = "late"
#: More than a server tells in one answer.
_CROWD = 1_100
_CROWD_S = 30
_QUERIES = 4


@dataclass(slots=True)
class Query:
    """What a reader remembers on a disk of its own: where it began and what it has finished."""

    name: str
    stream: str
    start: int
    finished: int
    filters: tuple[str, ...]
    lease_s: int
    says_start: bool
    #: One process goes on with it at a time, as one driver does with Spark's.
    is_followed: bool = False

    def terms(self) -> Terms:
        start = self.start if self.says_start else None
        return Terms(self.stream, self.name, self.finished, start, self.filters)


class Leasing(ClaimPart):
    """Queries begin, read on, are forgotten; consumers come later than messages, and go."""

    share = 0.6

    def __init__(self) -> None:
        self._queries: list[Query] = []
        self._made = 0
        self._is_crowded = False

    async def found(self, world: ClaimWorld) -> None:
        world.processes["reader"] = [await world.start("reader") for _ in range(2)]

    async def act(self, world: ClaimWorld) -> None:
        rng, reader = world.chance, world.chance.choice(world.processes["reader"])
        luck = rng.random()
        if luck < 0.03:
            await grace_passes(world)
        elif luck < 0.12:
            await self._late(world)
        elif not self._queries or (luck < 0.3 and len(self._queries) < _QUERIES):
            query = self._begun(world)
            self._queries.append(query)
            reader.do(follow(reader, query, rng.randrange(3)))
        elif luck < 0.4:
            self._queries.remove(rng.choice(self._queries))
        elif luck < 0.42 and not self._is_crowded and _crowded_streams(world):
            self._is_crowded = True
            await _crowd(world, reader)
        else:
            reader.do(follow(reader, rng.choice(self._queries), rng.randrange(1, 8)))

    def _begun(self, world: ClaimWorld) -> Query:
        """A query from the beginning, or from now on."""
        rng = world.chance
        self._made += 1
        name, stream = _some_stream(world)
        start = 1 if rng.random() < 0.7 else stream.log.last_seq + 1
        filters = (f"{name.lower()}.1",) if name in world.options.streams and rng.random() < 0.2 else ()
        longest = world.options.ttl.max_age
        lease_s = rng.choice((5, 60, longest // 2, longest + 600))
        return Query(f"q{self._made}", name, start, start - 1, filters, lease_s, rng.random() < 0.8)

    async def _late(self, world: ClaimWorld) -> None:
        """A consumer of new messages only comes, reads or goes."""
        rng, (name, stream) = world.chance, _some_stream(world)
        operator, process = world.processes["operator"][0], rng.choice(world.processes["consumer"])
        if LATE not in stream.consumers:
            operator.do(_come(operator, name))
        elif rng.random() < 0.2:
            operator.do(operator.wire.api(f"CONSUMER.DELETE.{name}.{LATE}"))
        else:
            process.do(process.consume(name, LATE, rng.randrange(1, 6)))


def _some_stream(world: ClaimWorld) -> tuple[str, Any]:
    """Often the one without consumers of its own, where only such readers matter."""
    carriers = world.carriers()
    alone = [(name, stream) for name, stream in carriers if name == "O"]
    return world.chance.choice(alone if alone and world.chance.random() < 0.5 else carriers)


async def _come(operator: Process, stream: str) -> str:
    config = {"durable_name": LATE, "ack_policy": "explicit", "deliver_policy": "new"}
    body = {"stream_name": stream, "config": config}
    with operator.ledger.needs.moving(stream, LATE):
        answer = await operator.wire.api(f"CONSUMER.DURABLE.CREATE.{stream}.{LATE}", body)
    operator.ledger.needs.began(stream, LATE, answer["delivered"]["stream_seq"] + 1)
    return f"{stream}/{LATE} is there"


def _crowded_streams(world: ClaimWorld) -> list[str]:
    """Where a crowd may matter: what is read there stays, and its claims go soon."""
    ttl = world.options.ttl
    if not ttl.delete_after_read or ttl.retention_after_read > _CROWD_S // 4:
        return []
    return [name for name in world.options.streams if name in "ABN"]


async def _crowd(world: ClaimWorld, reader: Process) -> None:
    """Many that have read everything say so at once, then one that has not; and everybody else reads all there is."""
    stream = world.chance.choice(_crowded_streams(world))
    found = world.host.broker.jetstream.streams[stream]
    query = Query("lonely", stream, 1, found.log.last_seq, (), 2 * _CROWD_S, True)
    producer = world.chance.choice(world.processes["producer"])
    producer.do(producer.publish(world.parcel(named=False, stream=stream)))
    reader.do(_say(reader, query))
    await asyncio.sleep(3)
    for name in sorted(found.consumers):
        consumer = world.chance.choice(world.processes["consumer"])
        consumer.do(consumer.consume(stream, name, 50, diligent=True))
    await asyncio.sleep(_CROWD_S / 3)
    collector = world.chance.choice(world.processes["collector"])
    collector.do(collector.collect())


async def _say(reader: Process, query: Query) -> str:
    for start in range(0, _CROWD, 100):
        names = [f"c{number}" for number in range(start, start + 100)]
        await asyncio.gather(
            *(register_reader(reader.wire, query.stream, name, 1 << 40, _CROWD_S) for name in names)
        )
    return f"in a crowd {await follow(reader, query, 0)}"


async def follow(reader: Process, query: Query, count: int) -> str:
    """Read on, up to so many messages: the lease first, and again when more is finished."""
    if query.is_followed:
        return f"somebody follows {query.name}"
    query.is_followed = True
    try:
        await _hold(reader, query)
        query.finished = await _read_on(reader, query, count)
        await _hold(reader, query)
    finally:
        query.is_followed = False
    return f"{query.name} has finished {query.finished} of {query.stream}"


async def _read_on(reader: Process, query: Query, count: int) -> int:
    state = (await reader.wire.api(f"STREAM.INFO.{query.stream}"))["state"]
    seq = max(query.finished, state["first_seq"] - 1)
    for _ in range(min(count, state["last_seq"] - seq)):
        seq += 1
        message = await reader.wire.message(query.stream, seq)
        if message is not None:
            await _read(reader, query, message)
    return int(seq)


async def _hold(reader: Process, query: Query) -> None:
    terms = query.terms()
    with reader.ledger.needs.telling(terms, query.lease_s):
        await register_reader(
            reader.wire,
            query.stream,
            query.name,
            terms.acked,
            query.lease_s,
            start=terms.start,
            filters=terms.filters,
        )


async def _read(reader: Process, query: Query, message: dict[str, Any]) -> None:
    """What a row of the query shows; a payload that is not there is shown as missing."""
    found = carried(
        query.stream,
        message["seq"],
        message["subject"].encode(),
        b64decode(message.get("hdrs", "")),
        b64decode(message.get("data", "")),
    )
    if found is None or not query.terms().concerns(found):
        return
    try:
        pieces = [bytes(piece) async for piece in fetched(reader.door, found.reference)]
    except ClaimError:
        return
    reader.ledger.received(found.ident, b"".join(pieces))
