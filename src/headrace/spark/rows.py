"""Rows of a DataFrame become messages.

Owns the sink's columns and the bytes of a publish. Invariant: the same rows give the same bytes, which is how a repeated
task recognises what it has already written. Must not know batches, progress or connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from headrace.spark.schema import SchemaError

#: Columns of the source that a row may still carry; they speak of the message that it was read from.
_IGNORED = {"seq", "time", "expires_at", "claim"}
_COLUMNS = {"subject", "data", "headers", "ttl", "msg_id"}
#: Headers that a server interprets at publishing; those of a message that was read must not act again.
_RESERVED = ("nats-batch-", "nats-expected-", "nats-msg-id", "nats-ttl", "nats-rollup")

_KINDS = {
    "data": (BinaryType, StringType),
    "subject": (StringType,),
    "msg_id": (StringType, IntegralType, NullType),
}

Message = tuple[bytes, bytes, bytes]
Column = tuple[Any, ...]


@dataclass(frozen=True)
class Shape:
    """Which columns the rows have; `subject` is what all rows without one are sent to."""

    names: tuple[str, ...]
    subject: str = ""


def shape_of(schema: StructType, subject: str) -> Shape:
    """The columns of what is to be written, checked."""
    names = tuple(field.name for field in schema.fields)
    unknown = [name for name in names if name not in _COLUMNS | _IGNORED]
    if unknown:
        raise SchemaError(
            f"column {unknown[0]!r} cannot be sent; there are {', '.join(sorted(_COLUMNS))}. Put the rest into `data`, "
            "for example with to_json(struct(...))"
        )
    if "data" not in names:
        raise SchemaError("there is no column `data`, which is what is sent")
    if "subject" not in names and not subject:
        raise SchemaError("there is no column `subject`; add one, or say option `subject`")
    for name, kinds in _KINDS.items():
        if name in names and not isinstance(schema[name].dataType, kinds):
            raise SchemaError(f"column {name!r} is {schema[name].dataType.simpleString()}; cast it to string")
    if "headers" in names and not _holds_headers(schema["headers"].dataType):
        raise SchemaError(
            f"column 'headers' is {schema['headers'].dataType.simpleString()}; it has to be map<string, string> or "
            "map<string, array<string>>"
        )
    return Shape(names, subject)


def _holds_headers(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return isinstance(kind, NullType)
    values = kind.valueType.elementType if isinstance(kind.valueType, ArrayType) else kind.valueType
    # Spark gives an empty map, and one of nulls, no type of its own.
    return all(isinstance(each, (StringType, NullType)) for each in (kind.keyType, values))


@dataclass(frozen=True)
class Lot:
    """Messages in columns, all of Arrow's `binary`; `lines` is None where no message has headers of its own."""

    subjects: pa.Array
    lines: pa.Array | None
    payloads: pa.Array

    def __len__(self) -> int:
        return len(self.subjects)

    def part(self, start: int, stop: int) -> Lot:
        """Some of them; nothing is copied."""
        lines = None if self.lines is None else self.lines[start:stop]
        return Lot(self.subjects[start:stop], lines, self.payloads[start:stop])

    def columns(self) -> tuple[Column, Column, Column]:
        """(offsets, bytes) of subjects, lines and payloads; () for lines that are not there."""
        lines: Column = () if self.lines is None else ends_and_bytes(self.lines)
        return ends_and_bytes(self.subjects), lines, ends_and_bytes(self.payloads)


def ends_and_bytes(array: pa.Array) -> tuple[Any, Any]:
    """What a `binary` array is made of: its offsets, and the bytes they refer to."""
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def lot_of(messages: Sequence[Message]) -> Lot:
    """Messages that came one by one, as columns."""
    subjects, lines, payloads = zip(*messages, strict=True)
    return Lot(*(pa.array(each, pa.binary()) for each in (subjects, lines, payloads)))


def header(lines: bytes, name: bytes) -> bytes | None:
    """The first value of a header among a row's lines; part of a line is no header."""
    start = b"%s: " % name
    return next((line[len(start) :] for line in lines.split(b"\r\n") if line.startswith(start)), None)


def any_has(lot: Lot, name: bytes) -> bool:
    """Whether any of the messages has a header of its own by this name."""
    if lot.lines is None:
        return False
    is_first, is_later = (
        pc.starts_with(lot.lines, b"%s: " % name),
        pc.match_substring(lot.lines, b"\r\n%s: " % name),
    )
    return bool(pc.any(pc.or_(is_first, is_later)).as_py())


def lot(batch: pa.RecordBatch, shape: Shape) -> Lot:
    """The messages that the rows of a batch are."""
    lines = _header_lines(batch, shape)
    return Lot(
        _subjects(batch, shape),
        None if lines is None else pa.array(lines, pa.binary()),
        _filled(batch.column(shape.names.index("data")), b""),
    )


def _subjects(batch: pa.RecordBatch, shape: Shape) -> pa.Array:
    if "subject" not in shape.names:
        return pa.repeat(pa.scalar(shape.subject.encode(), pa.binary()), batch.num_rows)
    found = _filled(batch.column(shape.names.index("subject")), shape.subject.encode())
    if pc.any(pc.equal(pc.binary_length(found), 0)).as_py():
        raise SchemaError("a row has no subject; set one, or filter such rows out")
    return found


def _filled(column: pa.Array, nothing: bytes) -> pa.Array:
    """A column of strings or bytes as bytes, without nulls."""
    raw = column.cast(pa.binary())
    return pc.fill_null(raw, nothing) if raw.null_count else raw


def _column(batch: pa.RecordBatch, shape: Shape, name: str) -> list[Any] | None:
    return batch.column(shape.names.index(name)).to_pylist() if name in shape.names else None


def _header_lines(batch: pa.RecordBatch, shape: Shape) -> list[bytes] | None:
    """The headers of each row as lines; None when no row can have any."""
    maps = _column(batch, shape, "headers")
    ttls, ids = _column(batch, shape, "ttl"), _column(batch, shape, "msg_id")
    if maps is None and ttls is None and ids is None:
        return None
    empty: list[Any] = [None] * batch.num_rows
    return [_lines(*row) for row in zip(maps or empty, ttls or empty, ids or empty, strict=True)]


def _lines(pairs: Any, ttl: Any, msg_id: str | int | None) -> bytes:
    found = []
    for name, values in pairs or ():
        if not name.lower().startswith(_RESERVED):
            for value in [values] if isinstance(values, str) else values or ():
                if value is not None:
                    found.append(f"{name}: {value}\r\n")
    if ttl is not None:
        # The client's package brings much that a sink without TTLs does not need.
        from headrace.client.durations import ttl_text

        found.append(f"Nats-TTL: {ttl_text(ttl)}\r\n")
    if msg_id is not None and msg_id != "":
        found.append(f"Nats-Msg-Id: {msg_id}\r\n")
    if any(line.count("\n") > 1 or line.count("\r") > 1 for line in found):
        raise SchemaError(f"a header contains a line break: {found}")
    return "".join(found).encode()
