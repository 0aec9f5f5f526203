"""Readers that never acknowledge, like Spark's queries: leases protect what they still have to read.

Owns what such readers do and remember. A query's lease exists before the first message it reads, its floor is never
above what the query has finished, and it is renewed only while the query runs. A reader that dies leaves its lease to
expire; another one continues where its query stopped.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.claims import ClaimError, register_reader
from headrace.claims.payload_fetch import fetch
from headrace.sim.checkers.claim_checker import parse_claim_message
from headrace.sim.checkers.claim_reachability import LeaseTerms
from headrace.sim.workloads.claim_actors import ActorProcess
from headrace.sim.workloads.claim_feature_actors import ClaimFeatureActor, wait_grace_period

if TYPE_CHECKING:
    from headrace.sim.claim_simulation import ClaimSimulation

LATE_CONSUMER = "late"
#: More than a server returns in one reply.
_LEASE_COUNT = 1_100
_LEASE_S = 30
_QUERIES_MAX = 4


@dataclass(slots=True)
class LeasedQuery:
    """What a reader keeps on its own disk: where it began and what it has finished."""

    name: str
    stream: str
    start_seq: int
    finished_seq: int
    filters: tuple[str, ...]
    lease_s: int
    lease_has_start: bool
    #: One process runs it at a time, like one Spark driver.
    is_running: bool = False

    def make_terms(self) -> LeaseTerms:
        start = self.start_seq if self.lease_has_start else None
        return LeaseTerms(self.stream, self.name, self.finished_seq, start, self.filters)


class LeaseActor(ClaimFeatureActor):
    """Queries start, continue and are abandoned; consumers are created after messages, and deleted."""

    share = 0.6

    def __init__(self) -> None:
        self._queries: list[LeasedQuery] = []
        self._query_count = 0
        self._has_written_many = False

    async def set_up(self, sim: ClaimSimulation) -> None:
        sim.processes["reader"] = [await sim.start_process("reader") for _ in range(2)]

    async def act(self, sim: ClaimSimulation) -> None:
        rng, reader = sim.feature_rng, sim.feature_rng.choice(sim.processes["reader"])
        roll = rng.random()
        if roll < 0.03:
            await wait_grace_period(sim)
        elif roll < 0.12:
            await self._use_late_consumer(sim)
        elif not self._queries or (roll < 0.3 and len(self._queries) < _QUERIES_MAX):
            query = self._make_query(sim)
            self._queries.append(query)
            reader.start_task(run_query(reader, query, rng.randrange(3)))
        elif roll < 0.4:
            self._queries.remove(rng.choice(self._queries))
        elif roll < 0.42 and not self._has_written_many and _find_streams_for_many_leases(sim):
            self._has_written_many = True
            await _run_many_leases(sim, reader)
        else:
            reader.start_task(run_query(reader, rng.choice(self._queries), rng.randrange(1, 8)))

    def _make_query(self, sim: ClaimSimulation) -> LeasedQuery:
        """Start a query from the beginning, or from now on."""
        rng = sim.feature_rng
        self._query_count += 1
        name, stream = _pick_stream(sim)
        start = 1 if rng.random() < 0.7 else stream.log.last_seq + 1
        filters = (f"{name.lower()}.1",) if name in sim.options.streams and rng.random() < 0.2 else ()
        longest = sim.options.ttl.max_age
        lease_s = rng.choice((5, 60, longest // 2, longest + 600))
        return LeasedQuery(
            f"q{self._query_count}", name, start, start - 1, filters, lease_s, rng.random() < 0.8
        )

    async def _use_late_consumer(self, sim: ClaimSimulation) -> None:
        """Create, use or delete a consumer of new messages only."""
        rng, (name, stream) = sim.feature_rng, _pick_stream(sim)
        operator, process = sim.processes["operator"][0], rng.choice(sim.processes["consumer"])
        if LATE_CONSUMER not in stream.consumers:
            operator.start_task(_create_late_consumer(operator, name))
        elif rng.random() < 0.2:
            operator.start_task(operator.jetstream.api_request(f"CONSUMER.DELETE.{name}.{LATE_CONSUMER}"))
        else:
            process.start_task(process.consume(name, LATE_CONSUMER, rng.randrange(1, 6)))


def _pick_stream(sim: ClaimSimulation) -> tuple[str, Any]:
    """Often choose the stream without its own consumers, where only such readers matter."""
    carriers = sim.get_claim_streams()
    without_consumers = [(name, stream) for name, stream in carriers if name == "O"]
    return sim.feature_rng.choice(
        without_consumers if without_consumers and sim.feature_rng.random() < 0.5 else carriers
    )


async def _create_late_consumer(operator: ActorProcess, stream: str) -> str:
    config = {"durable_name": LATE_CONSUMER, "ack_policy": "explicit", "deliver_policy": "new"}
    body = {"stream_name": stream, "config": config}
    with operator.claim_checker.requirements.changing_position(stream, LATE_CONSUMER):
        response = await operator.jetstream.api_request(
            f"CONSUMER.DURABLE.CREATE.{stream}.{LATE_CONSUMER}", body
        )
    operator.claim_checker.requirements.record_consumer_start(
        stream, LATE_CONSUMER, response["delivered"]["stream_seq"] + 1
    )
    return f"{stream}/{LATE_CONSUMER} is there"


def _find_streams_for_many_leases(sim: ClaimSimulation) -> list[str]:
    """Return streams where many leases may matter: messages that were read stay, and their claims are removed soon."""
    ttl = sim.options.ttl
    if not ttl.delete_after_read or ttl.retention_after_read > _LEASE_S // 4:
        return []
    return [name for name in sim.options.streams if name in "ABN"]


async def _run_many_leases(sim: ClaimSimulation, reader: ActorProcess) -> None:
    """Write many leases of readers that have read everything, then one that has not; all other readers read everything."""
    stream = sim.feature_rng.choice(_find_streams_for_many_leases(sim))
    found = sim.host.broker.jetstream.streams[stream]
    query = LeasedQuery("lonely", stream, 1, found.log.last_seq, (), 2 * _LEASE_S, True)
    producer = sim.feature_rng.choice(sim.processes["producer"])
    producer.start_task(producer.publish(sim.make_plan(has_msg_id=False, stream=stream)))
    reader.start_task(_write_many_leases(reader, query))
    await asyncio.sleep(3)
    for name in sorted(found.consumers):
        consumer = sim.feature_rng.choice(sim.processes["consumer"])
        consumer.start_task(consumer.consume(stream, name, 50, handle_all=True))
    await asyncio.sleep(_LEASE_S / 3)
    collector = sim.feature_rng.choice(sim.processes["collector"])
    collector.start_task(collector.collect())


async def _write_many_leases(reader: ActorProcess, query: LeasedQuery) -> str:
    for start in range(0, _LEASE_COUNT, 100):
        names = [f"c{number}" for number in range(start, start + 100)]
        await asyncio.gather(
            *(register_reader(reader.jetstream, query.stream, name, 1 << 40, _LEASE_S) for name in names)
        )
    return f"in a crowd {await run_query(reader, query, 0)}"


async def run_query(reader: ActorProcess, query: LeasedQuery, count: int) -> str:
    """Read up to `count` messages: write the lease first, and again when more is finished."""
    if query.is_running:
        return f"somebody follows {query.name}"
    query.is_running = True
    try:
        await _renew_lease(reader, query)
        query.finished_seq = await _read_messages(reader, query, count)
        await _renew_lease(reader, query)
    finally:
        query.is_running = False
    return f"{query.name} has finished {query.finished_seq} of {query.stream}"


async def _read_messages(reader: ActorProcess, query: LeasedQuery, count: int) -> int:
    state = (await reader.jetstream.api_request(f"STREAM.INFO.{query.stream}"))["state"]
    seq = max(query.finished_seq, state["first_seq"] - 1)
    for _ in range(min(count, state["last_seq"] - seq)):
        seq += 1
        message = await reader.jetstream.get_message(query.stream, seq)
        if message is not None:
            await _read_row(reader, query, message)
    return int(seq)


async def _renew_lease(reader: ActorProcess, query: LeasedQuery) -> None:
    terms = query.make_terms()
    with reader.claim_checker.requirements.writing_lease(terms, query.lease_s):
        await register_reader(
            reader.jetstream,
            query.stream,
            query.name,
            terms.ack_floor,
            query.lease_s,
            start=terms.start_seq,
            filters=terms.filters,
        )


async def _read_row(reader: ActorProcess, query: LeasedQuery, message: dict[str, Any]) -> None:
    """Read one row of the query; a missing payload is reported as missing."""
    found = parse_claim_message(
        query.stream,
        message["seq"],
        message["subject"].encode(),
        b64decode(message.get("hdrs", "")),
        b64decode(message.get("data", "")),
    )
    if found is None or not query.make_terms().matches_filter(found):
        return
    try:
        chunks = [bytes(chunk) async for chunk in fetch(reader.object_store, found.reference)]
    except ClaimError:
        return
    reader.claim_checker.record_read(found.ident, b"".join(chunks))
