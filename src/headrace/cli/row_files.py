"""Files of rows: Parquet, CSV and JSON lines, written batch by batch and complete or not there.

Owns the formats. Invariants: memory is bounded by one row group; a file appears under its name only once it is complete
and synced. Must not know where rows come from.
"""

from __future__ import annotations

import base64
import csv
import errno
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from headrace.cli.exit_codes import USAGE_ERROR, CliError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
#: A Parquet row group ends at the first batch that reaches one of these.
_GROUP_ROWS = 131_072
_GROUP_BYTES = 64 << 20


class RowWriter(Protocol):
    """Writes batches in one format."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None:
        """Write what is left; the file itself stays open."""


def choose_format(file: Path) -> str:
    """Return the format that a file's name says; raise CliError for others."""
    try:
        return FORMATS[file.suffix.lower()]
    except KeyError:
        endings = ", ".join(FORMATS)
        raise CliError(f"{file}: choose the format with one of the endings {endings}", USAGE_ERROR) from None


def make_writer(file_format: str, file: IO[bytes], schema: pa.Schema) -> RowWriter:
    """Return the writer of a format."""
    writers: dict[str, Callable[[IO[bytes], pa.Schema], RowWriter]] = {
        "parquet": ParquetWriter,
        "csv": CsvWriter,
        "json": JsonArrayWriter,
        "jsonl": JsonWriter,
    }
    return writers[file_format](file, schema)


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when the block ends without an error, and is removed otherwise."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            partial.unlink()
        raise
    _sync_folder(path.parent)


@contextmanager
def open_writer(file_format: str, path: Path, schema: pa.Schema) -> Iterator[RowWriter]:
    """Open the writer of a file that appears when the block ends without an error."""
    with open_atomic(path) as file:
        writer = make_writer(file_format, file, schema)
        try:
            yield writer
        finally:
            # Also after an error: a Parquet writer writes when it is closed, and the file is still open here.
            writer.close()


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ParquetWriter:
    """Parquet with zstd, in row groups of bounded size."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class JsonWriter:
    """One JSON object per line. A binary value that is not UTF-8 is in `<name>_base64` instead."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        lines = (json.dumps(row, ensure_ascii=False) for row in iter_json_rows(batch))
        self._file.write("".join(f"{line}\n" for line in lines).encode(errors="surrogatepass"))

    def close(self) -> None:
        self._file.flush()


class JsonArrayWriter:
    """One JSON array of objects, an object per line."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._separator = "[\n"

    def write(self, batch: pa.RecordBatch) -> None:
        for row in iter_json_rows(batch):
            self._file.write(f"{self._separator}{json.dumps(row, ensure_ascii=False)}".encode())
            self._separator = ",\n"

    def close(self) -> None:
        self._file.write(b"[]\n" if self._separator == "[\n" else b"\n]\n")
        self._file.flush()


class CsvWriter:
    """CSV with a header line; maps and lists are JSON, and each binary column has a second one, `<name>_base64`."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._names: list[str] = []
        for field in schema:
            self._names += [field.name, f"{field.name}_base64"] if _is_binary(field.type) else [field.name]
        self._write_rows([dict(zip(self._names, self._names, strict=True))])

    def write(self, batch: pa.RecordBatch) -> None:
        self._write_rows(iter_json_rows(batch))

    def _write_rows(self, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
        import io

        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([_to_cell(row.get(name)) for name in self._names] for row in rows)
        self._file.write(text.getvalue().encode(errors="surrogatepass"))

    def close(self) -> None:
        self._file.flush()


def _to_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return ("true" if value else "false") if isinstance(value, bool) else value


def iter_json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows of values that JSON has: times as ISO 8601 with all their digits, maps as objects."""
    columns = [_to_list(batch.column(at)) for at in range(batch.num_columns)]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        row: dict[str, Any] = {}
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bytes):
                row |= encode_bytes(name, value)
            else:
                row[name] = _to_json(value)
        yield row


def encode_bytes(name: str, value: bytes) -> dict[str, str]:
    """Return a binary value as text if it is UTF-8, else in base64 under another name."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _to_list(column: pa.Array) -> list[Any]:
    """Convert a column to Python values; times become text, because `datetime` has no nanoseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        local = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
        zone = "Z" if column.type.tz else ""
        column = pc.binary_join_element_wise(pc.replace_substring(local, " ", "T"), zone, "")
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    return list(column.to_pylist())


def _is_binary(arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))


def _to_json(value: Any) -> Any:
    """Return a value of any SQL type as one that JSON has."""
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(name): _to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
