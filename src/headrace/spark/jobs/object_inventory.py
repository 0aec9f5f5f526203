"""Inventory of an object store as a DataFrame: key, size, modification time, and the parts of a claim's key.

Owns the listing. Tasks list one prefix each, so that the listing scales with the store; alternatively it reads a table
made by the store's vendor (such as S3 Inventory). Must not know how the objects are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.claims.config import ClaimConfig
from headrace.claims.reference import KEY_PATTERN
from headrace.claims.stores import ObjectInfo, open_store
from headrace.reader import claim_fetch

_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modified", pa.timestamp("us", tz="UTC")),
    ]
)
_DDL = "key string, size bigint, modified timestamp"
_PARALLEL = 32


def list_objects(
    spark: SparkSession, configs: Sequence[ClaimConfig], *, table: str = "", table_format: str = "parquet"
) -> DataFrame:
    """Return the objects of some namespaces: key, size, modified, namespace, topic, hour, claim_id.

    `table` is an existing inventory with columns key, size and modified (or last_modified).
    """
    if table:
        found = spark.read.format(table_format).load(table)
        names = {name.lower(): name for name in found.columns}
        modified = names.get("modified") or names.get("last_modified") or names["lastmodified"]
        listed = found.select(
            f.col(names["key"]).alias("key"),
            f.col(names["size"]).cast("bigint").alias("size"),
            f.col(modified).cast("timestamp").alias("modified"),
        )
    else:
        listed = _list_in_tasks(spark, configs)
    parts = f.split("key", "/")
    named = listed.where(f.col("key").rlike(KEY_PATTERN)).select(
        "*",
        f.get(parts, 0).alias("namespace"),
        f.get(parts, 1).alias("topic"),
        f.get(parts, 2).alias("hour"),
        f.substring_index(f.get(parts, 3), ".", 1).alias("claim_id"),
    )
    return named.where(f.col("namespace").isin([config.namespace for config in configs]))


def _list_in_tasks(spark: SparkSession, configs: Sequence[ClaimConfig]) -> DataFrame:
    found = claim_fetch.run_blocking(_list_prefixes(configs))
    if not found:
        return spark.createDataFrame([], _DDL)
    tasks = min(len(found), spark.sparkContext.defaultParallelism * 4) if _has_context(spark) else 8
    df = spark.createDataFrame(found, "place int, prefix string").repartition(max(tasks, 1))
    return df.mapInArrow(_ListTask(tuple(configs)), _DDL)


def _has_context(spark: SparkSession) -> bool:
    """Return whether this session has a Spark context; with Spark Connect it has none."""
    return hasattr(spark, "_jsc")


async def _list_prefixes(configs: Sequence[ClaimConfig]) -> list[tuple[int, str]]:
    """Return (configuration, prefix) of every hour of every topic."""
    semaphore = asyncio.Semaphore(_PARALLEL)
    found: list[tuple[int, str]] = []
    for config_index, config in enumerate(configs):
        store = open_store(config)
        topics = await store.prefixes(f"{config.namespace}/")

        async def list_hours(topic: str) -> Sequence[str]:
            async with semaphore:
                return await store.prefixes(topic)  # noqa: B023 - awaited before the loop goes on

        for each in await asyncio.gather(*(list_hours(topic) for topic in topics)):
            found += [(config_index, prefix) for prefix in each]
        await store.close()
    return found


@dataclass(frozen=True)
class _ListTask:
    """Lists prefixes in a Spark task."""

    configs: tuple[ClaimConfig, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for config_index, prefix in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from _list_pages(self.configs[config_index], prefix)


def _list_pages(config: ClaimConfig, prefix: str) -> Iterator[pa.RecordBatch]:
    pages = _iter_pages(config, prefix)
    while (page := claim_fetch.run_blocking(_next_page(pages))) is not None:
        columns = [
            [info.key for info in page],
            [info.size for info in page],
            [info.modified_ns // 1000 for info in page],
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


async def _iter_pages(config: ClaimConfig, prefix: str) -> AsyncIterator[Sequence[ObjectInfo]]:
    store = open_store(config)
    try:
        async for page in store.list(prefix):
            yield page
    finally:
        await store.close()


async def _next_page(pages: AsyncIterator[Sequence[ObjectInfo]]) -> Sequence[ObjectInfo] | None:
    return await anext(pages, None)
