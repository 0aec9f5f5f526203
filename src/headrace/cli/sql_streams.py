"""Streams as tables of DuckDB: each stream of the account under its name, read when a query needs it.

Owns the connection to DuckDB. Invariants: a query opens only streams that it names; every scan of a table reads a range of
sequences that is fixed when the scan starts. Must not know how results are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.cli import stream_scan
from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.output import ProgressCallback, progress_bar

if TYPE_CHECKING:
    import pyarrow as pa

#: Functions for payloads and headers, in every query.
MACROS = (
    "create macro as_text(data) as try(decode(data))",
    "create macro as_json(data) as try_cast(try(decode(data)) as json)",
    "create macro header(headers, name) as headers[name][1]",
)
_RESULT_ROWS = 8192
#: Advice of DuckDB that names one of its system tables, which never helps.
_OWN_TABLE_ADVICE = re.compile(r'\nDid you mean "(?:pg_|duckdb_|sqlite_|pragma_)\w*"\?')


@dataclass(frozen=True)
class ScanSettings:
    """Which messages of each stream a query sees."""

    since: int | datetime | None = None
    until: int | datetime | None = None
    subjects: tuple[str, ...] = ()


class ReadCounter:
    """Counts the messages that a query has read, and shows them while it is asked to."""

    def __init__(self) -> None:
        self._step: ProgressCallback | None = None

    def advance(self, rows: int) -> None:
        step = self._step
        if step is not None:
            step(rows)

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show the number on a terminal."""
        with progress_bar("reading messages", None) as step:
            self._step = step
            try:
                yield
            finally:
                self._step = None


class StreamTable:
    """A stream as DuckDB reads it: the Arrow stream interface, which opens the stream at the first batch."""

    def __init__(self, database: StreamDatabase, stream: str) -> None:
        self._database = database
        self._stream = stream

    def __arrow_c_schema__(self) -> object:
        return stream_scan.make_schema().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(
            stream_scan.make_schema(), self._database.iter_rows(self._stream)
        )
        return reader.__arrow_c_stream__(requested_schema)


class StreamDatabase:
    """A database in memory whose tables are the streams of a server; a context manager."""

    def __init__(self, target: ConnectionTarget, settings: ScanSettings) -> None:
        import duckdb

        self._target = target
        self._settings = settings
        self.counter = ReadCounter()
        self._failure: Exception | None = None
        self._duckdb = duckdb
        self._connection = duckdb.connect()
        for macro in MACROS:
            self._connection.execute(macro)

    def __enter__(self) -> StreamDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def list_streams(self) -> list[str]:
        """Return the names of the account's streams, sorted."""
        from headrace.reader.options import parse_read_options
        from headrace.reader.stream_admin import list_stream_names

        options = {
            **stream_scan.make_connection_options(self._target),
            "servers": stream_scan.make_server_list(self._target),
            "streamPattern": ".*",
        }
        return sorted(list_stream_names(parse_read_options(options)))

    def iter_rows(self, stream: str) -> Iterator[pa.RecordBatch]:
        """Yield a stream's rows; called by DuckDB, on its own threads."""
        settings = self._settings
        try:
            for batch in stream_scan.read_batches(
                self._target, stream, settings.subjects, settings.since, settings.until
            ):
                self.counter.advance(batch.num_rows)
                yield batch
        except Exception as error:
            self._failure = error
            raise

    def split(self, text: str) -> list[str]:
        """Return the statements of a text."""
        try:
            return [each.query for each in self._connection.extract_statements(text)]
        except self._duckdb.Error as error:
            raise CliError(_shorten(error), USAGE_ERROR) from None

    def run(self, statement: str) -> pa.RecordBatchReader | None:
        """Run a statement; return its rows, or None for one without a result."""
        for name in choose_streams(self.list_streams(), statement):
            self._connection.register(name, StreamTable(self, name))
        with self.translate_errors():
            relation: Any = self._connection.sql(statement)
            return None if relation is None else relation.to_arrow_reader(_RESULT_ROWS)

    def iter_result(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a result; errors of the streams are raised as they were."""
        with self.translate_errors():
            yield from rows

    def translate_errors(self) -> _ErrorTranslation:
        return _ErrorTranslation(self)

    def to_error(self, error: BaseException) -> Exception | None:
        """Return the error to report instead of one of DuckDB or Arrow; None to raise it as it is."""
        import pyarrow as pa

        failure, self._failure = self._failure, None
        if failure is not None:
            return failure
        if isinstance(error, self._duckdb.CatalogException):
            return CliError(f"{_shorten(error)}\nlist streams with 'headrace stream ls'", NOT_FOUND)
        if isinstance(error, self._duckdb.Error | pa.ArrowException):
            return CliError(_shorten(error), USAGE_ERROR)
        return None


class _ErrorTranslation:
    """Replaces errors of DuckDB by those for the user."""

    def __init__(self, database: StreamDatabase) -> None:
        self._database = database

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and (other := self._database.to_error(error)):
            raise other from None


def choose_streams(streams: Iterable[str], statement: str) -> list[str]:
    """Return the streams that a statement may name. SQL ignores case; of two such names the exact spelling wins."""
    chosen: dict[str, str] = {}
    for name in streams:
        pattern = rf"(?<![\w$-]){re.escape(name)}(?![\w$-])"
        if not re.search(pattern, statement, re.IGNORECASE):
            continue
        is_exact = re.search(pattern, statement) is not None
        other = chosen.get(name.lower())
        if other and is_exact and re.search(rf"(?<![\w$-]){re.escape(other)}(?![\w$-])", statement):
            raise CliError(
                f"SQL cannot tell the streams {other} and {name} apart: query one of them at a time"
            )
        if other is None or is_exact:
            chosen[name.lower()] = name
    return list(chosen.values())


def _shorten(error: BaseException) -> str:
    """Return an error without the traceback that DuckDB adds for Python code, and without names of its own tables."""
    text = str(error).partition(" Detail: Python exception")[0]
    return _OWN_TABLE_ADVICE.sub("", text).strip()
