"""Encodes rows of a DataFrame as messages.

Owns the sink's columns and the bytes of a message. Invariant: the same row gives the same bytes, whatever rows are
around it. Must not know batches, progress or connections.
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

#: Columns of the source that a row may still have; they describe the message from which it was read.
_IGNORED_COLUMNS = {"seq", "time", "expires_at", "claim", "stream"}
_COLUMNS = {"subject", "data", "headers", "ttl", "msg_id"}
#: Headers that a server interprets on publish; those of a message that was read must not take effect again.
_RESERVED_HEADERS = ("nats-batch-", "nats-expected-", "nats-msg-id", "nats-ttl", "nats-rollup")

_COLUMN_TYPES = {
    "data": (BinaryType, StringType),
    "subject": (StringType,),
    "msg_id": (StringType, IntegralType, NullType),
}

RawMessage = tuple[bytes, bytes, bytes]
BinaryColumn = tuple[Any, ...]


@dataclass(frozen=True)
class RowLayout:
    """Which columns the rows have; `subject` applies to all rows without one."""

    names: tuple[str, ...]
    subject: str = ""


def make_row_layout(schema: StructType, subject: str) -> RowLayout:
    """Return the checked columns of what is to be written."""
    names = tuple(field.name for field in schema.fields)
    unknown = [name for name in names if name not in _COLUMNS | _IGNORED_COLUMNS]
    if unknown:
        raise SchemaError(
            f"column {unknown[0]!r} cannot be written; available columns: {', '.join(sorted(_COLUMNS))}. Put the rest into "
            "`data`, for example with to_json(struct(...))"
        )
    if "data" not in names:
        raise SchemaError("there is no column `data`, the payload")
    if "subject" not in names and not subject:
        raise SchemaError("there is no column `subject`; add one, or set option `subject`")
    for name, allowed_types in _COLUMN_TYPES.items():
        if name in names and not isinstance(schema[name].dataType, allowed_types):
            raise SchemaError(f"column {name!r} is {schema[name].dataType.simpleString()}; cast it to string")
    if "headers" in names and not _is_headers_type(schema["headers"].dataType):
        raise SchemaError(
            f"column 'headers' is {schema['headers'].dataType.simpleString()}; it must be map<string, string> or "
            "map<string, array<string>>"
        )
    return RowLayout(names, subject)


def _is_headers_type(data_type: DataType) -> bool:
    if not isinstance(data_type, MapType):
        return isinstance(data_type, NullType)
    values = (
        data_type.valueType.elementType if isinstance(data_type.valueType, ArrayType) else data_type.valueType
    )
    # Spark gives an empty map, or one of nulls, no type of its own.
    return all(isinstance(each, (StringType, NullType)) for each in (data_type.keyType, values))


@dataclass(frozen=True)
class MessageColumns:
    """Messages in columns, all of Arrow's `binary`; `header_lines` is None if no message has headers of its own."""

    subjects: pa.Array
    header_lines: pa.Array | None
    payloads: pa.Array

    def __len__(self) -> int:
        return len(self.subjects)

    def slice(self, start: int, stop: int) -> MessageColumns:
        """Return some of the messages; nothing is copied."""
        header_lines = None if self.header_lines is None else self.header_lines[start:stop]
        return MessageColumns(self.subjects[start:stop], header_lines, self.payloads[start:stop])

    def take(self, rows: Sequence[int]) -> MessageColumns:
        """Return the messages at `rows`."""
        indexes = pa.array(rows, pa.int32())
        header_lines = None if self.header_lines is None else self.header_lines.take(indexes)
        return MessageColumns(self.subjects.take(indexes), header_lines, self.payloads.take(indexes))

    def get_message(self, row: int) -> RawMessage:
        """Return one message."""
        header_lines = b"" if self.header_lines is None else self.header_lines[row].as_py()
        return self.subjects[row].as_py(), header_lines, self.payloads[row].as_py()

    def to_buffers(self) -> tuple[BinaryColumn, BinaryColumn, BinaryColumn]:
        """Return (offsets, bytes) of subjects, header lines and payloads; () if there are no header lines."""
        header_lines: BinaryColumn = (
            () if self.header_lines is None else get_offsets_and_bytes(self.header_lines)
        )
        return get_offsets_and_bytes(self.subjects), header_lines, get_offsets_and_bytes(self.payloads)


def get_offsets_and_bytes(array: pa.Array) -> tuple[Any, Any]:
    """Return the buffers of a `binary` array: its offsets, and the bytes they refer to."""
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def make_message_columns(messages: Sequence[RawMessage]) -> MessageColumns:
    """Convert single messages to columns."""
    subjects, header_lines, payloads = zip(*messages, strict=True)
    return MessageColumns(*(pa.array(each, pa.binary()) for each in (subjects, header_lines, payloads)))


def join_columns(groups: Sequence[MessageColumns]) -> MessageColumns:
    """Return all messages of some groups; nothing is copied if there is only one."""
    if len(groups) == 1:
        return groups[0]
    header_lines = None
    if any(each.header_lines is not None for each in groups):
        header_lines = pa.concat_arrays(
            pa.repeat(pa.scalar(b"", pa.binary()), len(each))
            if each.header_lines is None
            else each.header_lines
            for each in groups
        )
    return MessageColumns(
        pa.concat_arrays(each.subjects for each in groups),
        header_lines,
        pa.concat_arrays(each.payloads for each in groups),
    )


def find_header(header_lines: bytes, name: bytes) -> bytes | None:
    """Return the first value of a header in a row's lines; matches whole lines only."""
    start = b"%s: " % name
    return next((line[len(start) :] for line in header_lines.split(b"\r\n") if line.startswith(start)), None)


def any_has_header(columns: MessageColumns, name: bytes) -> bool:
    """Return whether any message has a header of this name."""
    return columns.header_lines is not None and bool(pc.any(_have_header(columns.header_lines, name)).as_py())


def has_server_header(columns: MessageColumns) -> bool:
    """Return whether any message has a header that servers interpret, so that one may refuse the message for its sake."""
    if columns.header_lines is None:
        return False
    return bool(pc.any(pc.match_substring(columns.header_lines, b"nats-", ignore_case=True)).as_py())


def find_row_without_header(columns: MessageColumns, name: bytes) -> int | None:
    """Return the first message without a header of this name; None if all have it."""
    if columns.header_lines is None:
        return 0
    row = pc.index(_have_header(columns.header_lines, name), False).as_py()
    return None if row < 0 else int(row)


def _have_header(header_lines: pa.Array, name: bytes) -> pa.Array:
    is_first, is_later = (
        pc.starts_with(header_lines, b"%s: " % name),
        pc.match_substring(header_lines, b"\r\n%s: " % name),
    )
    return pc.or_(is_first, is_later)


def encode_batch(batch: pa.RecordBatch, layout: RowLayout) -> MessageColumns:
    """Convert the rows of a batch to messages."""
    return MessageColumns(
        _get_subjects(batch, layout),
        _encode_headers(batch, layout),
        _to_binary(batch.column(layout.names.index("data")), b""),
    )


def _get_subjects(batch: pa.RecordBatch, layout: RowLayout) -> pa.Array:
    if "subject" not in layout.names:
        return pa.repeat(pa.scalar(layout.subject.encode(), pa.binary()), batch.num_rows)
    found = _to_binary(batch.column(layout.names.index("subject")), layout.subject.encode())
    if pc.any(pc.equal(pc.binary_length(found), 0)).as_py():
        raise SchemaError("a row has no subject; set one, or filter such rows out")
    return found


def _to_binary(column: pa.Array, default: bytes) -> pa.Array:
    """Convert a column of strings or bytes to bytes, without nulls."""
    raw = column.cast(pa.binary())
    return pc.fill_null(raw, default) if raw.null_count else raw


def _get_column(batch: pa.RecordBatch, layout: RowLayout, name: str) -> list[Any] | None:
    return batch.column(layout.names.index(name)).to_pylist() if name in layout.names else None


def _encode_headers(batch: pa.RecordBatch, layout: RowLayout) -> pa.Array | None:
    """Encode the headers of each row as lines; None if no row can have any."""
    if "msg_id" in layout.names and not {"headers", "ttl"} & set(layout.names):
        return _encode_ids(batch.column(layout.names.index("msg_id")))
    maps = _get_column(batch, layout, "headers")
    ttls, ids = _get_column(batch, layout, "ttl"), _get_column(batch, layout, "msg_id")
    if maps is None and ttls is None and ids is None:
        return None
    empty: list[Any] = [None] * batch.num_rows
    lines = [
        _encode_header_lines(*row) for row in zip(maps or empty, ttls or empty, ids or empty, strict=True)
    ]
    return pa.array(lines, pa.binary())


def _encode_ids(column: pa.Array) -> pa.Array:
    """Encode message ids as header lines, all at once; a row without one has no header."""
    ids = column.cast(pa.string())
    if pc.any(pc.match_substring_regex(ids, "[\r\n]")).as_py():
        raise SchemaError("a msg_id contains a line break")
    lines = pc.binary_join_element_wise("Nats-Msg-Id: ", ids, "\r\n", "")
    lines = pc.if_else(pc.equal(ids, ""), pa.scalar("", pa.string()), lines)
    return _to_binary(lines, b"")


def _encode_header_lines(pairs: Any, ttl: Any, msg_id: str | int | None) -> bytes:
    found = []
    for name, values in pairs or ():
        if not name.lower().startswith(_RESERVED_HEADERS):
            for value in [values] if isinstance(values, str) else values or ():
                if value is not None:
                    found.append(f"{name}: {value}\r\n")
    if ttl is not None:
        # Importing the client package is expensive, and a sink without TTLs does not need it.
        from headrace.client.durations import format_ttl

        found.append(f"Nats-TTL: {format_ttl(ttl)}\r\n")
    if msg_id is not None and msg_id != "":
        found.append(f"Nats-Msg-Id: {msg_id}\r\n")
    for line in found:
        if line.count("\n") > 1 or line.count("\r") > 1:
            # Not its value, which may be a secret.
            raise SchemaError(f"header {line.partition(':')[0]!r} of a row contains a line break")
    return "".join(found).encode()
