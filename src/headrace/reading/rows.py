"""What becomes of the rows of a reading: a stream's columns, those of a bucket, and claims resolved.

Owns the schemas. Invariant: every batch has the schema that the reading says. Must not know where rows come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.reading.origins import Batches, Bounds, Files, Origin, Path

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.claims.config import ClaimConfig
    from headrace.spark.options import Options
    from headrace.store.snapshots import Shape


@dataclass(frozen=True)
class Dress:
    """In which types they are wanted."""

    unit: str
    views: bool
    parsed: bool

    def shape(self, columns: Sequence[str]) -> Shape:
        from headrace.store.snapshots import Shape

        return Shape(tuple(columns), self.unit, self.views, self.parsed)


def stream_rows(
    origin: Origin,
    bounds: Bounds,
    dress: Dress,
    columns: Sequence[str] | None,
    resolving: Options | None,
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """The schema of a stream's rows, and a way to read them."""
    from headrace.store.snapshots import COLUMNS

    known = COLUMNS if isinstance(origin, Files) else tuple(name for name in COLUMNS if name != "size")
    wanted = tuple(columns) if columns is not None else known
    if resolving is None:
        shape = dress.shape(wanted)
        return shape.schema(), origin.batches(bounds, shape)
    if dress.views:
        raise ValueError("views=True leaves payloads in the files of the stream; claims are elsewhere")
    base = [name for name in wanted if name not in ("claim", "claim_error")]
    shape = dress.shape(list(dict.fromkeys([*base, "headers", "data"])))
    schema = _claim_schema(shape.schema(), wanted, resolving)
    plain = origin.batches(bounds, shape)
    return schema, lambda: _with_claims(plain(), schema, resolving)


def _claim_schema(base: pa.Schema, wanted: Sequence[str], resolving: Options) -> pa.Schema:
    import pyarrow as pa

    from headrace.spark.claims import CLAIM_KIND

    fields = {field.name: field.with_nullable(field.nullable or field.name == "data") for field in base}
    fields["claim"] = pa.field("claim", CLAIM_KIND)
    names = [*wanted, *(name for name in ("claim",) if name not in wanted)]
    if resolving.claims == "inline" and resolving.claim_errors == "column":
        fields["claim_error"] = pa.field("claim_error", pa.string())
        names += [name for name in ("claim_error",) if name not in names]
    return pa.schema([fields[name] for name in names])


def _with_claims(batches: Iterable[pa.RecordBatch], schema: pa.Schema, resolving: Options) -> Batches:
    from headrace.spark.claims import claim_column

    def told() -> Batches:
        for batch in batches:
            yield batch.append_column("claim", claim_column(batch.column("headers"), batch.column("data")))

    if resolving.claims == "ref":
        return (batch.select(schema.names).cast(schema) for batch in told())
    from headrace.spark.resolving import inlined

    return inlined(told(), schema, resolving)


def claims_of(claims: str, config: ClaimConfig | Path | None, errors: str) -> Options | None:
    """How claims are read; None when nobody asked for them."""
    if not claims:
        return None
    from headrace.spark.link import Address
    from headrace.spark.options import Options

    if claims not in ("ref", "inline") or errors not in ("fail", "column"):
        raise ValueError(f"claims={claims!r} with claim_errors={errors!r}: say ref or inline, fail or column")
    options = Options(Address(), "", claims=claims, claim_errors=errors)
    if claims == "ref":
        return options
    from headrace.spark.payloads import configs_of, usable

    if config is None:
        raise ValueError('claims="inline" needs claim_config, a ClaimConfig or a YAML file')
    found = configs_of(config) if isinstance(config, str | os.PathLike) else usable([config])
    return replace(options, claim_configs=found)


def bucket_rows(
    origin: Origin, bounds: Bounds, dress: Dress, prefix: str, history: bool
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """The schema of a bucket's rows, and a way to read them."""
    import pyarrow as pa

    from headrace.spark import entries as kv
    from headrace.spark.columns import assemble

    time = pa.timestamp(dress.unit, tz="UTC")
    kinds = (pa.string(), pa.binary(), pa.uint64(), time, pa.string(), time)
    schema = pa.schema(list(zip(kv.COLUMNS, kinds, strict=True)))
    plain = origin.batches(bounds, dress.shape(kv.NEEDED))

    def rows() -> Batches:
        return (assemble(kv.entries(batch, prefix), schema) for batch in plain())

    return schema, rows if history else (lambda: kv.live(rows(), schema))
