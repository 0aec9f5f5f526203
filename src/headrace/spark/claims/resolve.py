"""Resolves claims to payloads inside a query: in the rows (`claims=inline`), or in a function that runs on the
executors.

Owns the resulting rows. Invariants: no batch is much larger than Spark handles well, whatever the size of the payloads;
a claim that cannot be read is reported in a column or fails the query, depending on the option. Must not know stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.claims.config import ClaimConfig
from headrace.reader.claim_fetch import (
    DEFAULT_PARALLEL,
    DEFAULT_SIZE_MAX,
    ClaimFetcher,
    FetchLimits,
    check_claim_configs,
    load_claim_configs,
)
from headrace.reader.claim_inline import ERROR_COLUMN, fetch_rows, get_error_text
from headrace.reader.claim_reference_column import make_claim_mask
from headrace.reader.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))


@dataclass(frozen=True)
class _ResolveTask:
    """The function that runs in the tasks; everything in it can be pickled."""

    fn: Callable[..., Any]
    columns: tuple[str, ...]
    result: str
    schema: pa.Schema
    configs: tuple[ClaimConfig, ...]
    limits: FetchLimits
    errors: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fetcher = ClaimFetcher(self.configs, self.limits)
        for batch in batches:
            claim_mask = make_claim_mask(batch.column("headers"))
            results: list[Any] = []
            error_texts: list[str | None] = []
            extra = [batch.column(name).to_pylist() for name in self.columns]
            fetch_results = fetch_rows(batch.column("data").to_pylist(), claim_mask, fetcher)
            for row, fetch_result in enumerate(fetch_results):
                error_texts.append(get_error_text(fetch_result, self.errors))
                is_ok = error_texts[-1] is None
                results.append(self.fn(fetch_result.data, *(each[row] for each in extra)) if is_ok else None)
            yield self._append_columns(batch, results, error_texts)

    def _append_columns(
        self, batch: pa.RecordBatch, results: list[Any], error_texts: list[str | None]
    ) -> pa.RecordBatch:
        arrays = [*batch.columns, pa.array(results, self.schema.field(self.result).type)]
        if self.errors == "column":
            arrays.append(pa.array(error_texts, pa.string()))
        names = [*batch.schema.names, *self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, names)


def resolve(
    df: DataFrame,
    fn: Callable[..., Any],
    returns: str,
    *,
    claims: ClaimConfig | Sequence[ClaimConfig] | str | os.PathLike[str],
    columns: Sequence[str] = (),
    result: str = "result",
    errors: str = "fail",
    parallel: int = DEFAULT_PARALLEL,
    max_bytes: int = DEFAULT_SIZE_MAX,
) -> DataFrame:
    """Return `df`, read from a stream, with `fn(payload)` of every row in column `result`, of the SQL type `returns`.

    The function runs in the executors, where the payload of a claim is fetched; only its result is passed to Spark.
    `columns` names further columns to pass to it. It is also called for messages that carry their payload themselves.
    Bad claims fail the query, or with `errors="column"` are reported in column `claim_error`.
    """
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    from headrace.spark.pyspark_compat import make_utc_arrow_schema

    # Column `claim` is also null for an invalid reference, so only the headers distinguish that from a payload.
    missing = [name for name in ("data", "headers", *columns) if name not in df.columns]
    if missing:
        raise OptionError(
            f"there is no column {missing[0]!r}: resolve needs the columns `data` and `headers` as the source reads them"
        )
    if errors not in ("fail", "column"):
        raise OptionError(f"errors={errors!r} is neither fail nor column")
    added = [StructField(result, DataType.fromDDL(returns))]
    if errors == "column":
        added.append(StructField(ERROR_COLUMN, StringType()))
    resolver = _ResolveTask(
        fn,
        tuple(columns),
        result,
        make_utc_arrow_schema(StructType(added)),
        _load_configs(claims),
        FetchLimits(parallel, max_bytes),
        errors,
    )
    return df.mapInArrow(resolver, StructType([*df.schema.fields, *added]))


def _load_configs(
    claims: ClaimConfig | Sequence[ClaimConfig] | str | os.PathLike[str],
) -> tuple[ClaimConfig, ...]:
    if isinstance(claims, ClaimConfig):
        return check_claim_configs([claims])
    if isinstance(claims, str | os.PathLike):
        return load_claim_configs(claims)
    return check_claim_configs(claims)
