"""Replaces claim references in `data` with the payloads of the claims.

Owns the resulting rows. Invariants: no batch is much larger than Spark and notebooks handle well, whatever the size of
the payloads; a claim that cannot be read is reported in a column or fails the query, depending on the option. Must not
know stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.reader.batch_cast import build_batch
from headrace.reader.claim_fetch import ClaimFetcher, FetchLimits, FetchResult
from headrace.reader.claim_reference_column import CLAIM_HEADER, make_claim_mask
from headrace.reader.options import ReadOptions

ERROR_COLUMN = "claim_error"
_BATCH_BYTES = 32 << 20
_HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))


def required_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns to read so that claims can be resolved to this schema."""
    base_fields = [field for field in schema if field.name != ERROR_COLUMN]
    names = {field.name for field in base_fields}
    extra_fields = [("headers", _HEADERS_TYPE), ("data", pa.binary())]
    return pa.schema([*base_fields, *(pa.field(*field) for field in extra_fields if field[0] not in names)])


def inline_payloads(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows with the payloads of claims in `data`."""
    fetcher = ClaimFetcher(
        options.claim_configs, FetchLimits(options.claim_parallel, options.claim_bytes_max)
    )
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[ERROR_COLUMN] = pa.nulls(batch.num_rows, pa.string())
        claim_mask = make_claim_mask(columns["headers"])
        if "data" not in schema.names or not claim_mask.any():
            yield build_batch(columns, schema)
            continue
        yield from _inline_batch(columns, claim_mask, fetcher, schema, options.claim_errors)


def _inline_batch(
    columns: dict[str, pa.Array], claim_mask: Any, fetcher: ClaimFetcher, schema: pa.Schema, errors: str
) -> Iterator[pa.RecordBatch]:
    """Replace references with payloads, in batches of bounded size."""
    start, size = 0, 0
    data: list[bytes | None] = []
    error_texts: list[str | None] = []
    for row, fetch_result in enumerate(fetch_rows(columns["data"].to_pylist(), claim_mask, fetcher)):
        error_texts.append(get_error_text(fetch_result, errors))
        data.append(fetch_result.data)
        size += len(fetch_result.data or b"")
        if size >= _BATCH_BYTES:
            yield _build_slice(columns, claim_mask, start, data, error_texts, schema)
            start, size, data, error_texts = row + 1, 0, [], []
    if data:
        yield _build_slice(columns, claim_mask, start, data, error_texts, schema)


def fetch_rows(payloads: list[bytes], claim_mask: Any, fetcher: ClaimFetcher) -> Iterator[FetchResult]:
    """Yield the payload of each row: its own, or that of its claim."""
    claim_payloads = fetcher.fetch(payloads[row] for row in np.flatnonzero(claim_mask))
    for payload, is_claim in zip(payloads, claim_mask, strict=True):
        yield next(claim_payloads) if is_claim else FetchResult(payload)


def get_error_text(fetch_result: FetchResult, errors: str) -> str | None:
    if fetch_result.error is None:
        return None
    if errors == "fail":
        raise fetch_result.error
    return f"{fetch_result.error.reason}: {fetch_result.error}"


def _build_slice(
    columns: dict[str, pa.Array],
    claim_mask: Any,
    start: int,
    data: list[bytes | None],
    error_texts: list[str | None],
    schema: pa.Schema,
) -> pa.RecordBatch:
    count = len(data)
    sliced = {name: column.slice(start, count) for name, column in columns.items()}
    sliced["data"] = pa.array(data, pa.binary())
    sliced[ERROR_COLUMN] = pa.array(error_texts, pa.string())
    sliced["headers"] = _remove_claim_header(
        sliced["headers"], claim_mask[start : start + count], error_texts
    )
    return build_batch(sliced, schema)


def _remove_claim_header(headers: pa.Array, claim_mask: Any, error_texts: Sequence[str | None]) -> pa.Array:
    """Remove the claim header from messages that carry their payload again."""
    rows = headers.to_pylist()
    for row in np.flatnonzero(claim_mask).tolist():
        if error_texts[row] is None:
            rows[row] = [pair for pair in rows[row] if pair[0] != CLAIM_HEADER] or None
    return pa.array(rows, _HEADERS_TYPE)
