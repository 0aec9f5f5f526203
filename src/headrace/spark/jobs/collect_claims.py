"""Collects claims at scale: joins the object inventory with the claim records and deletes in tasks what is no longer needed.

Owns the join and the work of a task. It makes no decisions of its own: `headrace.claims.gc_policy` decides from record,
time and floors, as for every collector; orphans follow the sweeper's rule. Invariants: a task checks record and floors
again immediately before it deletes, so that anything that changed since the join is left alone; nothing younger than
the grace period, by the store's clock, is touched; every removal is in the audit trail. It can run beside any number of
collectors. See ADR 56.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from headrace.claims.ack_floors import Floors
from headrace.claims.claim_deletion import ClaimDeleter, CollectReport
from headrace.claims.claims import Claims
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.gc_policy import decide
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.records import ClaimEntry, MalformedRecord, RejectedRecord, decode_entry, is_stream_name
from headrace.claims.reference import is_claim_id, parse_claim_id, parse_hour_end_ns
from headrace.claims.registry import STREAM
from headrace.claims.sweeper import Sweeper
from headrace.errors import RequestError
from headrace.reader import claim_fetch
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.options import OptionError, normalize_names, parse_address
from headrace.reader.stream_admin import StreamError, fetch_stream_info
from headrace.spark.claims.nats_connection import connect
from headrace.spark.jobs.job_result import OptionMap, Progress, no_progress
from headrace.spark.jobs.kv_snapshot import replace_table
from headrace.spark.jobs.object_inventory import list_objects as list_objects
from headrace.spark.schema import CLAIM_TYPE

_ROWS_PER_CHUNK = 500
_RESULT = "claim_id string, key string, action string, reason string, size bigint"
_RESULT_ARROW = pa.schema(
    [(name, pa.string()) for name in ("claim_id", "key", "action", "reason")] + [("size", pa.int64())]
)
#: Actions that remove a claim or an object (in a dry run: would remove).
REMOVED_ACTIONS = ("collected", "expired", "orphan")
#: A claim record that cannot be read, or that names an object that is not the claim's.
REJECTED = "rejected"


@dataclass(frozen=True)
class CollectSummary:
    """What a collection did or, in a dry run, would do."""

    actions: Mapping[str, int]
    bytes: Mapping[str, int] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def removed(self) -> int:
        return sum(self.actions.get(action, 0) for action in REMOVED_ACTIONS)

    @property
    def freed_bytes(self) -> int:
        return sum(self.bytes.get(action, 0) for action in REMOVED_ACTIONS)


def claims_collect(
    spark: SparkSession,
    source: OptionMap,
    *,
    config: ClaimConfig,
    streams: Sequence[str] | None = None,
    inventory: str = "",
    target: str = "",
    tasks: int = 0,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> CollectSummary:
    """Delete the claims of a namespace that are no longer needed, and orphaned objects.

    `source` has `servers` and the other options of a read. References are looked up in the streams that the registry
    names. With `streams`, the caller guarantees that no other stream refers to claims of this namespace: orphans are
    then deleted as soon as they are older than the grace period, not only when their own time is over. Raises
    `StreamError` if one of these streams cannot be read: objects that it refers to would be taken for orphans.
    `inventory` is an existing table of objects. `target` is a folder for a table with the result for each claim.
    """
    claim_fetch.check_claim_configs([config])
    address = _parse_source_address(source)
    metadata = _read_metadata(spark, source, config)
    named = list(streams) if streams is not None else _find_streams(metadata)
    progress(f"reading references from {', '.join(named) or 'no stream'}")
    readable = _filter_readable(address, named, streams_complete=streams is not None)
    references = _find_references(spark, source, readable)
    joined = _join_objects(metadata, references, list_objects(spark, [config], table=inventory))
    worker = _CollectTask(address, config, streams_complete=streams is not None, dry_run=dry_run)
    results = joined.repartition(tasks or 8, "key").mapInArrow(worker, _RESULT)
    if target:
        # Written first, then aggregated, so that the work is done once.
        replace_table(results, target, "parquet")
        results = spark.read.parquet(target)
    rows = results.groupBy("action").agg(f.count("*").alias("claims"), f.sum("size").alias("bytes")).collect()
    progress(f"{sum(row.claims for row in rows)} claims and objects checked")
    return CollectSummary(
        {row.action: row.claims for row in rows}, {row.action: row.bytes or 0 for row in rows}, dry_run
    )


def _read_metadata(spark: SparkSession, source: OptionMap, config: ClaimConfig) -> DataFrame:
    """Return the claim records: record (as stored), subject, revision, object_key, streams.

    If a record is bad its object_key is null and its streams are empty.
    """
    reader = spark.read.schema("seq bigint, subject string, data binary").format("headrace")
    subject = f"$CLAIMS.claim.{config.namespace}.*"
    df = reader.options(**{**source, "stream": STREAM, "subject": subject}).load()
    text = f.col("data").cast("string")
    parsed = f.from_json(text, "claim_id string, object_key string, places map<string, string>")
    found = df.where(f.length("data") > 0).select(
        f.col("data").alias("record"), "subject", f.col("seq").alias("revision"), parsed.alias("p")
    )
    streams = f.coalesce(f.map_keys("p.places"), f.array().cast("array<string>"))
    return found.select("record", "subject", "revision", "p.object_key", streams.alias("streams"))


def _find_streams(metadata: DataFrame) -> list[str]:
    rows = metadata.select(f.explode("streams").alias("stream")).distinct().collect()
    # A name becomes part of a request's subject, and anybody who may write records can put anything there.
    return sorted(row.stream for row in rows if is_stream_name(row.stream))


def _find_references(spark: SparkSession, source: OptionMap, streams: Sequence[str]) -> DataFrame:
    """Return the existing messages that refer to a claim: referred_key, referring (streams)."""
    found = spark.createDataFrame([], "referred_key string, stream string")
    for stream in streams:
        reader = spark.read.schema(StructType([StructField("claim", CLAIM_TYPE)])).format("headrace")
        # The collection must not register as a reader, for which everything would be kept.
        df = reader.options(**{**source, "stream": stream, "claimReader": "none"}).load()
        keys = df.where("claim is not null").select(
            f.col("claim.object_key").alias("referred_key"), f.lit(stream).alias("stream")
        )
        found = found.unionByName(keys)
    return found.groupBy("referred_key").agg(f.collect_set("stream").alias("referring"))


def _parse_source_address(source: OptionMap) -> ServerAddress:
    options = normalize_names({name: str(value) for name, value in source.items()})
    if options.get("domain"):
        raise OptionError(
            "option `domain` is not supported: claims are collected on the server that stores them; connect to that server"
        )
    return parse_address(options)


def _filter_readable(address: ServerAddress, streams: Sequence[str], *, streams_complete: bool) -> list[str]:
    """Return the streams that can be read as tables.

    Tasks query the others message by message, if claim records name them.
    """
    readable = [stream for stream in streams if _is_readable(address, stream)]
    if streams_complete and len(readable) < len(streams):
        others = ", ".join(repr(stream) for stream in streams if stream not in readable)
        raise StreamError(
            f"cannot read the references in {others}: there is no such stream; "
            "name only streams that exist, or none"
        )
    return readable


def _is_readable(address: ServerAddress, stream: str) -> bool:
    try:
        fetch_stream_info(address, "$JS.API", stream, 0.0)
    except StreamError:
        return False
    return True


def _join_objects(metadata: DataFrame, references: DataFrame, objects: DataFrame) -> DataFrame:
    """Return one row per claim or object: its record, the streams that refer to it, and its object."""
    object_columns = objects.select("key", "size", "modified")
    with_objects = metadata.join(object_columns, metadata.object_key == object_columns.key, "full_outer")
    named = with_objects.select(
        f.coalesce("key", "object_key", "subject").alias("key"),
        "record",
        "subject",
        "revision",
        f.col("size"),
        f.unix_micros("modified").alias("modified_us"),
    )
    return named.join(references, f.col("key") == f.col("referred_key"), "left").select(
        "key", "record", "subject", "revision", "size", "modified_us", "referring"
    )


@dataclass(frozen=True)
class _JoinedRow:
    """One row of the join."""

    key: str
    record: bytes | None
    subject: str | None
    revision: int | None
    size: int | None
    modified_us: int | None
    referring: list[str] | None

    def entry(self, config: ClaimConfig) -> ClaimEntry:
        """Return the claim record, or raise `MalformedRecord`; for an orphan, return what its key contains."""
        if self.record is not None:
            return decode_entry(self.subject or "", self.record, self.revision or 0, 0)
        namespace, topic, _, _ = self.key.split("/")
        size = self.size or 0
        created = (self.modified_us or 0) * 1000
        return ClaimEntry(
            parse_claim_id(self.key), namespace, topic, config.bucket, self.key, size, size, created, 0
        )


class _JoinedFloors(Floors):
    """Current floors plus the messages that the join found: one request per claim would take too long."""

    #: The streams that refer to the current claim.
    referring: frozenset[str] = frozenset()

    async def is_gone(self, stream: str, seq: int) -> bool:
        return stream not in self.referring and await super().is_gone(stream, seq)


@dataclass(frozen=True)
class _CollectTask:
    """The work of a task; everything in it can be pickled."""

    address: ServerAddress
    config: ClaimConfig
    streams_complete: bool
    dry_run: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        claims = claim_fetch.run_blocking(self._open())
        try:
            for batch in batches:
                rows = [_JoinedRow(**row) for row in batch.to_pylist()]
                for start in range(0, len(rows), _ROWS_PER_CHUNK):
                    yield claim_fetch.run_blocking(
                        self._collect(claims, rows[start : start + _ROWS_PER_CHUNK])
                    )
        finally:
            claim_fetch.run_blocking(_flush_and_close(claims))

    async def _open(self) -> Claims:
        return Claims(await connect(self.address), self.config)

    async def _collect(self, claims: Claims, rows: list[_JoinedRow]) -> pa.RecordBatch:
        now_ns = await claims.registry.get_server_time_ns()
        floors = _JoinedFloors(claims.jetstream, claims.registry.on_rejected)
        current = await claims.registry.find_all(
            self.config.namespace,
            [parse_claim_id(row.key) for row in rows if is_claim_id(parse_claim_id(row.key))],
        )
        to_delete: list[tuple[ClaimEntry, str]] = []
        outcomes: dict[str, tuple[str, str]] = {}
        deleter = ClaimDeleter(self.config, claims.store, claims.registry, claims.audit, claims.metrics)
        sweeper = Sweeper(self.config, claims.store, claims.registry, deleter, claims.metrics)
        for row in rows:
            try:
                entry = row.entry(self.config)
            except MalformedRecord as error:
                await claims.registry.on_rejected(
                    RejectedRecord("claim", row.subject or "", row.revision or 0, str(error))
                )
                outcomes[row.key] = (REJECTED, str(error))
                continue
            event, reason = await self._look_at(
                row, entry, current.get(entry.claim_id), now_ns, floors, sweeper
            )
            outcomes[row.key] = (event or "live", reason)
            if event in REMOVED_ACTIONS:
                to_delete.append((entry, "expired" if event == "orphan" else event))
        if not self.dry_run:
            deleted, failed = await deleter.delete(to_delete, now_ns, CollectReport())
            await claims.registry.cancel_timers(entry for entry in deleted if entry.revision)
            left = {entry.object_key for entry, _ in to_delete} - {entry.object_key for entry in deleted}
            for key in left:
                outcomes[key] = (REJECTED, "not in the configured bucket")
            for entry in failed:
                outcomes[entry.object_key] = (
                    "failed",
                    "the object store failed to delete it; the next run will retry",
                )
        return _make_result_batch(rows, outcomes)

    async def _look_at(
        self,
        row: _JoinedRow,
        entry: ClaimEntry,
        current: ClaimEntry | None,
        now_ns: int,
        floors: _JoinedFloors,
        sweeper: Sweeper,
    ) -> tuple[str, str]:
        """Return (action, reason) for a claim, and release it if its readers did not.

        A claim whose need cannot be checked stays.
        """
        try:
            event, reason = await self._decide(row, entry, current, now_ns, floors)
            if event or not row.record or not await sweeper.needs_release(entry, now_ns, floors):
                return event, reason
        except (RequestTimeout, RequestError) as error:
            return "", f"cannot determine whether it is still needed: {error}"
        if not self.dry_run and not await sweeper.try_release(entry, now_ns):
            return "", "could not be released; the next run will retry"
        return "released", "read or removed, but not released; deleted after its retention"

    async def _decide(
        self,
        row: _JoinedRow,
        entry: ClaimEntry,
        current: ClaimEntry | None,
        now_ns: int,
        floors: _JoinedFloors,
    ) -> tuple[str, str]:
        """Return (action, reason) for a claim; "" if it stays."""
        if row.record is None:
            return self._decide_orphan(row, current, now_ns)
        if current is None or current.revision != entry.revision:
            return "", "changed meanwhile"
        floors.referring = frozenset(row.referring or ())
        decision = await decide(current, self.config, now_ns, floors)
        if not decision.event and row.size is None and now_ns > entry.created_ns + self._grace_ns:
            return "missing", "its object is not in the store"
        return decision.event, decision.reason

    def _decide_orphan(self, row: _JoinedRow, current: ClaimEntry | None, now_ns: int) -> tuple[str, str]:
        if current is not None and current.object_key == row.key:
            return "", "registered meanwhile"
        limit_ns = now_ns - self._grace_ns
        hour_ns = parse_hour_end_ns(row.key.split("/")[2])
        if hour_ns is None or (row.modified_us or 0) * 1000 > limit_ns:
            return "", "younger than grace_period"
        if hour_ns <= now_ns - self.config.end_grace_s * SECOND_NS:
            return "orphan", "no claim record, and expired"
        if row.referring:
            return "", f"referred to from {', '.join(row.referring)}"
        if self.streams_complete:
            return "orphan", "no claim record, and no stream refers to it"
        return "", "not expired, and other streams may refer to it"

    @property
    def _grace_ns(self) -> int:
        return self.config.ttl.grace_period * SECOND_NS


async def _flush_and_close(claims: Claims) -> None:
    """Flush before closing: audit events are sent without waiting and must have left."""
    connection = claims.jetstream.connection
    try:
        await connection.flush()
        await claims.close()
    finally:
        await connection.close()


def _make_result_batch(rows: Sequence[_JoinedRow], outcomes: Mapping[str, tuple[str, str]]) -> pa.RecordBatch:
    columns = [
        [parse_claim_id(row.key) for row in rows],
        [row.key for row in rows],
        [outcomes[row.key][0] for row in rows],
        [outcomes[row.key][1] for row in rows],
        [row.size for row in rows],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _RESULT_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_RESULT_ARROW)
