"""Maps the rows of a scan to its output schema: stream columns, bucket columns, resolved claims.

Owns the schemas. Invariant: every batch has the schema that the scan reports. Must not know where rows come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.reader.read_source import Backend, Batches, PathLike, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.claims.config import ClaimConfig
    from headrace.reader.options import ReadOptions
    from headrace.storage.snapshot.open_snapshot import ArrowLayout


@dataclass(frozen=True)
class RowFormat:
    """Types of the rows."""

    time_unit: str
    views: bool
    parse_headers: bool

    def make_layout(self, columns: Sequence[str]) -> ArrowLayout:
        from headrace.storage.snapshot.open_snapshot import ArrowLayout

        return ArrowLayout(tuple(columns), self.time_unit, self.views, self.parse_headers)


def make_stream_reader(
    backend: Backend,
    read_range: ReadRange,
    row_format: RowFormat,
    columns: Sequence[str] | None,
    claim_options: ReadOptions | None,
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """Return the schema of a stream's rows, and a function that reads them."""
    wanted = tuple(columns) if columns is not None else backend.columns
    if claim_options is None:
        layout = row_format.make_layout(wanted)
        return layout.schema(), backend.make_batch_reader(read_range, layout)
    if row_format.views:
        raise ValueError(
            "views=True cannot be combined with claims, whose payloads are not in the files of the stream"
        )
    base = [name for name in wanted if name not in ("claim", "claim_error")]
    layout = row_format.make_layout(list(dict.fromkeys([*base, "headers", "data"])))
    schema = _add_claim_columns(layout.schema(), wanted, claim_options)
    read_batches = backend.make_batch_reader(read_range, layout)
    return schema, lambda: _resolve_claims(read_batches(), schema, claim_options)


def _add_claim_columns(base: pa.Schema, wanted: Sequence[str], claim_options: ReadOptions) -> pa.Schema:
    import pyarrow as pa

    from headrace.reader.claim_reference_column import CLAIM_ARROW_TYPE

    fields = {field.name: field.with_nullable(field.nullable or field.name == "data") for field in base}
    fields["claim"] = pa.field("claim", CLAIM_ARROW_TYPE)
    names = [*wanted, *(name for name in ("claim",) if name not in wanted)]
    if claim_options.claims == "inline" and claim_options.claim_errors == "column":
        fields["claim_error"] = pa.field("claim_error", pa.string())
        names += [name for name in ("claim_error",) if name not in names]
    return pa.schema([fields[name] for name in names])


def _resolve_claims(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, claim_options: ReadOptions
) -> Batches:
    from headrace.reader.claim_reference_column import make_claim_column

    def add_claim_column() -> Batches:
        for batch in batches:
            yield batch.append_column(
                "claim", make_claim_column(batch.column("headers"), batch.column("data"))
            )

    if claim_options.claims == "ref":
        return (batch.select(schema.names).cast(schema) for batch in add_claim_column())
    from headrace.reader.claim_inline import inline_payloads

    return inline_payloads(add_claim_column(), schema, claim_options)


def make_claim_options(claims: str, config: ClaimConfig | PathLike | None, errors: str) -> ReadOptions | None:
    """Return how claims are read; None if they are not requested."""
    if not claims:
        return None
    from headrace.reader.blocking_connection import ServerAddress
    from headrace.reader.options import ReadOptions

    if claims not in ("ref", "inline") or errors not in ("fail", "column"):
        raise ValueError(
            f"claims={claims!r} with claim_errors={errors!r}: claims must be ref or inline, claim_errors fail or column"
        )
    options = ReadOptions(ServerAddress(), "", claims=claims, claim_errors=errors)
    if claims == "ref":
        return options
    from headrace.reader.claim_fetch import check_claim_configs, load_claim_configs

    if config is None:
        raise ValueError('claims="inline" needs claim_config, a ClaimConfig or a YAML file')
    configs = (
        load_claim_configs(config) if isinstance(config, str | os.PathLike) else check_claim_configs([config])
    )
    return replace(options, claim_configs=configs)


def make_kv_reader(
    backend: Backend, read_range: ReadRange, row_format: RowFormat, prefix: str, history: bool
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """Return the schema of a bucket's rows, and a function that reads them."""
    import pyarrow as pa

    from headrace.reader import kv_rows as kv
    from headrace.reader.batch_cast import build_batch

    time = pa.timestamp(row_format.time_unit, tz="UTC")
    arrow_types = (pa.string(), pa.binary(), pa.uint64(), time, pa.string(), time)
    schema = pa.schema(list(zip(kv.KV_COLUMNS, arrow_types, strict=True)))
    read_batches = backend.make_batch_reader(read_range, row_format.make_layout(kv.STREAM_COLUMNS))

    def read_rows() -> Batches:
        return (build_batch(kv.to_kv_columns(batch, prefix), schema) for batch in read_batches())

    return schema, read_rows if history else (lambda: kv.latest_per_key(read_rows(), schema))
