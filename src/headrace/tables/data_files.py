"""Writes rows to data files of a table, at most one open file per partition, on a thread of its own.

Owns the files of one commit. Invariants: a file has the rows of one partition, in the order in which they were added, and
is complete and synced when `finish` returns it. Files are never deleted here: those of a commit that did not happen are
orphans, which maintenance removes. At most a few batches wait for the thread, and a limited number of files is open: a
partition whose file was closed gets another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from headrace.tables.columns import RowMapper
from headrace.tables.config import TableConfig

#: Batches are gathered to row groups of about this size.
ROW_GROUP_BYTES = 32 << 20
_PENDING_MAX = 2
#: A file takes a descriptor, and for object stores some megabytes of memory.
OPEN_FILES_MAX = 64
#: The shortest period by which tables are partitioned, in the unit of times.
_HOUR_US = 3_600_000_000

Ints = npt.NDArray[np.int64]


class DataFileWriter:
    """The data files of one commit."""

    def __init__(self, table: Table, config: TableConfig, commit_id: str) -> None:
        self._table = table
        self._commit_id = commit_id
        self._mapper = RowMapper(table.schema(), config)
        #: Open files by partition, the one that was written last at the end.
        self._open: dict[tuple[Any, ...], _PartitionFile] = {}
        self._closed: list[DataFile] = []
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._pending: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "headrace-table-writer")
        self.rows = 0
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; blocks while the thread is behind."""
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._submit()

    def finish(self) -> list[DataFile]:
        """Write what is left, close the files, and return them."""
        self._submit()
        try:
            for pending in self._pending:
                pending.result()
            while self._open:
                self._close_oldest()
            return self._closed
        finally:
            self._thread.shutdown()

    def abandon(self) -> None:
        """Stop writing. What was written stays, as orphans."""
        self._thread.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        if not self._gathered:
            return
        while len(self._pending) >= _PENDING_MAX:
            self._pending.pop(0).result()
        self._pending.append(self._thread.submit(self._write, self._gathered))
        self._gathered, self._gathered_bytes = [], 0

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches([self._mapper.to_rows(batch) for batch in batches])
        for values, part in split_partitions(self._table, rows):
            file = self._open.pop(values, None) or self._open_file(values)
            file.write(part)
            self._open[values] = file

    def _open_file(self, values: tuple[Any, ...]) -> _PartitionFile:
        while len(self._open) >= OPEN_FILES_MAX:
            self._close_oldest()
        number = len(self._closed) + len(self._open)
        return _PartitionFile(self._table, values, f"{self._commit_id}-{number}")

    def _close_oldest(self) -> None:
        self._closed.append(self._open.pop(next(iter(self._open))).close())


class _PartitionFile:
    """An open data file."""

    def __init__(self, table: Table, values: tuple[Any, ...], name: str) -> None:
        spec, schema = table.spec(), table.schema()
        self._spec_id = spec.spec_id
        self._key = None
        if not spec.is_unpartitioned():
            fields = [
                PartitionFieldValue(field, value) for field, value in zip(spec.fields, values, strict=True)
            ]
            self._key = PartitionKey(fields, spec, schema)
        model = FileFormatFactory.get(FileFormat.PARQUET)
        file_name = f"{name}-{uuid.uuid4()}.{model.file_extension()}"
        self._path = table.location_provider().new_data_location(file_name, self._key)
        self._output = table.io.new_output(self._path)
        self._writer = model.create_writer(self._output, schema, table.properties)

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)

    def close(self) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=FileFormat.PARQUET,
            partition=self._key.partition if self._key else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def split_partitions(table: Table, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the values of each partition, as the table's transforms give them, and its rows in order."""
    spec, schema = table.spec(), table.schema()
    # The combination of values that each row has, as its number in `keys`; only those that occur have one.
    codes = np.zeros(rows.num_rows, np.int64)
    keys: list[tuple[Any, ...]] = [()]
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        values, indices = _find_values(rows.column(source.name))
        transform = field.transform.transform(source.field_type)
        numbers: dict[Any, int] = {}
        number_of = np.array([numbers.setdefault(transform(value), len(numbers)) for value in values])
        pairs, codes = np.unique(codes * len(numbers) + number_of[indices], return_inverse=True)
        transformed = list(numbers)
        keys = [(*keys[pair // len(numbers)], transformed[pair % len(numbers)]) for pair in pairs.tolist()]
    if len(keys) == 1:
        yield keys[0], rows
        return
    by_key = rows.take(pa.array(np.argsort(codes, kind="stable")))
    ends = np.cumsum(np.bincount(codes)).tolist()
    for key, start, end in zip(keys, [0, *ends], ends, strict=False):
        yield key, by_key.slice(start, end - start)


def _find_values(column: pa.ChunkedArray) -> tuple[list[Any], Ints]:
    """Return the different values of a column, and which of them each row has; of times only the hours."""
    if pa.types.is_timestamp(column.type):
        hours = column.cast(pa.int64()).to_numpy() // _HOUR_US
        if len(hours) and hours.min() == hours.max():
            return [int(hours[0]) * _HOUR_US], np.zeros(len(hours), np.int64)
        values, indices = np.unique(hours, return_inverse=True)
        return [int(value) * _HOUR_US for value in values], indices
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
