"""The `claim` column: for a payload too large for a stream, where it is stored.

Owns the conversion from messages to the `claim` struct. Invariant: messages without a claim cost only one look at their
headers; a message that is marked as a claim but has no valid reference gets null. Must not fetch anything.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: As in `headrace.claims.reference`, which is not imported here: it imports the clients of object stores, and Spark
#: imports this module in every session, with or without claims. A test compares the two.
CLAIM_HEADER = "prism-claim-check"
#: Names and Arrow types of a reference's fields; their Spark types are in `schema`.
CLAIM_FIELDS = (
    ("claim_id", pa.string()),
    ("bucket", pa.string()),
    ("object_key", pa.string()),
    ("original_size", pa.int64()),
    ("compression", pa.string()),
    ("checksum", pa.string()),
    ("stored_size", pa.int64()),
    ("stored_checksum", pa.string()),
    ("content_type", pa.string()),
    ("created_at", pa.timestamp("us", tz="UTC")),
    ("expires_at", pa.timestamp("us", tz="UTC")),
)
CLAIM_ARROW_TYPE = pa.struct(CLAIM_FIELDS)


#: The first second of the year 10000, beyond every Spark timestamp.
_TIME_END = 253_402_300_800


def _kind_in_json(arrow_type: pa.DataType) -> Any:
    """Return the type of a value in a reference, bounded to what a column can hold."""
    if arrow_type == pa.string():
        return str
    if pa.types.is_timestamp(arrow_type):
        return Annotated[int, msgspec.Meta(ge=0, lt=_TIME_END)]
    return Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def make_claim_column(headers: pa.Array, data: pa.Array) -> pa.Array:
    """Return the references of the messages that have one, null for the others."""
    if headers.null_count == len(headers):
        return _make_nulls(len(headers))
    claim_mask = make_claim_mask(headers)
    if not claim_mask.any():
        return _make_nulls(len(headers))
    pairs = zip(claim_mask, data.to_pylist(), strict=True)
    return pa.array(
        [_parse_reference(payload) if is_claim else None for is_claim, payload in pairs], CLAIM_ARROW_TYPE
    )


def make_claim_mask(headers: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which messages are marked as claims."""
    if headers.null_count == len(headers):
        return np.zeros(len(headers), bool)
    header_values = pc.list_element(
        pc.fill_null(pc.map_lookup(headers, pa.scalar(CLAIM_HEADER), "first"), [None]), 0
    )
    return np.asarray(
        pc.fill_null(pc.equal(header_values, "true"), False).to_numpy(zero_copy_only=False), bool
    )


@lru_cache(maxsize=8)
def _make_nulls(length: int) -> pa.Array:
    """Return nulls for a whole batch; cached, because Arrow fills all columns of the struct with zeros."""
    return pa.nulls(length, CLAIM_ARROW_TYPE)


_DECODER = msgspec.json.Decoder(
    msgspec.defstruct("_Reference", [(name, _kind_in_json(arrow_type)) for name, arrow_type in CLAIM_FIELDS])
)


def _parse_reference(payload: bytes) -> dict[str, Any] | None:
    try:
        found = _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return {name: _convert_value(getattr(found, name), arrow_type) for name, arrow_type in CLAIM_FIELDS}


def _convert_value(value: Any, arrow_type: pa.DataType) -> Any:
    # Times are whole seconds in a reference.
    return value * 1_000_000 if pa.types.is_timestamp(arrow_type) else value
