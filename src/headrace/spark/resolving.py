"""Claims become payloads inside a query: in the rows (`claims=inline`), or in a function that runs where they are.

Owns what becomes of rows. Invariants: no batch is much larger than what Spark takes well, whatever the payloads; a bad
claim is told of as was chosen, in a column or as an error of the query. Must not know stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.claims.config import ClaimConfig
from headrace.spark.claims import CLAIM_HEADER, marked
from headrace.spark.columns import assemble
from headrace.spark.options import OptionError, Options
from headrace.spark.payloads import PARALLEL, SIZE_MAX, Fetcher, Limits, Outcome, configs_of, usable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_BYTES = 32 << 20
_ERROR = "claim_error"
_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))


def needed_for(schema: pa.Schema) -> pa.Schema:
    """The columns to read so that claims of these can be resolved."""
    kept = [field for field in schema if field.name != _ERROR]
    names = {field.name for field in kept}
    more = [("headers", _HEADERS), ("data", pa.binary())]
    return pa.schema([*kept, *(pa.field(*field) for field in more if field[0] not in names)])


def inlined(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, options: Options
) -> Iterator[pa.RecordBatch]:
    """The same rows with the payloads of claims in `data`."""
    fetcher = Fetcher(options.claim_configs, Limits(options.claim_parallel, options.claim_bytes_max))
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[_ERROR] = pa.nulls(batch.num_rows, pa.string())
        marks = marked(columns["headers"])
        if "data" not in schema.names or not marks.any():
            yield assemble(columns, schema)
            continue
        yield from _filled(columns, marks, fetcher, schema, options.claim_errors)


def _filled(
    columns: dict[str, pa.Array], marks: Any, fetcher: Fetcher, schema: pa.Schema, errors: str
) -> Iterator[pa.RecordBatch]:
    """Payloads in place of references, in batches of bounded size."""
    start, size = 0, 0
    data: list[bytes | None] = []
    told: list[str | None] = []
    for row, outcome in enumerate(_outcomes(columns["data"].to_pylist(), marks, fetcher)):
        told.append(_complaint(outcome, errors))
        data.append(outcome.data)
        size += len(outcome.data or b"")
        if size >= _BATCH_BYTES:
            yield _made(columns, marks, start, data, told, schema)
            start, size, data, told = row + 1, 0, [], []
    if data:
        yield _made(columns, marks, start, data, told, schema)


def _outcomes(payloads: list[bytes], marks: Any, fetcher: Fetcher) -> Iterator[Outcome]:
    """For each row its payload: its own, or that of its claim."""
    fetched = fetcher.fetch(payloads[row] for row in np.flatnonzero(marks))
    for payload, is_claim in zip(payloads, marks, strict=True):
        yield next(fetched) if is_claim else Outcome(payload)


def _complaint(outcome: Outcome, errors: str) -> str | None:
    if outcome.error is None:
        return None
    if errors == "fail":
        raise outcome.error
    return f"{outcome.error.reason}: {outcome.error}"


def _made(
    columns: dict[str, pa.Array],
    marks: Any,
    start: int,
    data: list[bytes | None],
    told: list[str | None],
    schema: pa.Schema,
) -> pa.RecordBatch:
    count = len(data)
    part = {name: column.slice(start, count) for name, column in columns.items()}
    part["data"] = pa.array(data, pa.binary())
    part[_ERROR] = pa.array(told, pa.string())
    part["headers"] = _unmarked(part["headers"], marks[start : start + count], told)
    return assemble(part, schema)


def _unmarked(headers: pa.Array, marks: Any, told: Sequence[str | None]) -> pa.Array:
    """A message that carries its payload again must not say that it is a claim."""
    rows = headers.to_pylist()
    for row in np.flatnonzero(marks).tolist():
        if told[row] is None:
            rows[row] = [pair for pair in rows[row] if pair[0] != CLAIM_HEADER] or None
    return pa.array(rows, _HEADERS)


@dataclass(frozen=True)
class _Resolver:
    """What runs in the tasks; everything in it can be pickled."""

    fn: Callable[..., Any]
    columns: tuple[str, ...]
    result: str
    schema: pa.Schema
    configs: tuple[ClaimConfig, ...]
    limits: Limits
    errors: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fetcher = Fetcher(self.configs, self.limits)
        for batch in batches:
            marks = marked(batch.column("headers"))
            results: list[Any] = []
            told: list[str | None] = []
            extra = [batch.column(name).to_pylist() for name in self.columns]
            outcomes = _outcomes(batch.column("data").to_pylist(), marks, fetcher)
            for row, outcome in enumerate(outcomes):
                told.append(_complaint(outcome, self.errors))
                good = told[-1] is None
                results.append(self.fn(outcome.data, *(each[row] for each in extra)) if good else None)
            yield self._with(batch, results, told)

    def _with(self, batch: pa.RecordBatch, results: list[Any], told: list[str | None]) -> pa.RecordBatch:
        made = [*batch.columns, pa.array(results, self.schema.field(self.result).type)]
        if self.errors == "column":
            made.append(pa.array(told, pa.string()))
        names = [*batch.schema.names, *self.schema.names]
        return pa.RecordBatch.from_arrays(made, names)


def resolve(
    df: DataFrame,
    fn: Callable[..., Any],
    returns: str,
    *,
    claims: ClaimConfig | Sequence[ClaimConfig] | str | os.PathLike[str],
    columns: Sequence[str] = (),
    result: str = "result",
    errors: str = "fail",
    parallel: int = PARALLEL,
    max_bytes: int = SIZE_MAX,
) -> DataFrame:
    """`df`, read from a stream, with `fn(payload)` of every row in column `result`, of the SQL type `returns`.

    The function runs in the executors, where the payload of a claim is fetched; only what it returns crosses to Spark.
    `columns` names further columns that it is called with. A message that carries its payload itself is handed to it
    as well. Bad claims fail the query, or with `errors="column"` are told of in column `claim_error`.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    # Column `claim` is null for a reference that cannot be read too, so that only the headers tell it from a payload.
    missing = [name for name in ("data", "headers", *columns) if name not in df.columns]
    if missing:
        raise OptionError(
            f"there is no column {missing[0]!r}: resolve works on what the source reads, with `data` and `headers`"
        )
    if errors not in ("fail", "column"):
        raise OptionError(f"errors={errors!r} is neither fail nor column")
    added = [StructField(result, DataType.fromDDL(returns))]
    if errors == "column":
        added.append(StructField(_ERROR, StringType()))
    resolver = _Resolver(
        fn,
        tuple(columns),
        result,
        to_arrow_schema(StructType(added), timezone="UTC", prefers_large_types=False),
        _configs(claims),
        Limits(parallel, max_bytes),
        errors,
    )
    return df.mapInArrow(resolver, StructType([*df.schema.fields, *added]))


def _configs(
    claims: ClaimConfig | Sequence[ClaimConfig] | str | os.PathLike[str],
) -> tuple[ClaimConfig, ...]:
    if isinstance(claims, ClaimConfig):
        return usable([claims])
    if isinstance(claims, str | os.PathLike):
        return configs_of(claims)
    return usable(claims)
