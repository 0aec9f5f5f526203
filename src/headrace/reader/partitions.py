"""Partitions: the rows that one task reads, and how it reads them.

Owns the partitions and dividing a range of sequences among them. Invariants: the ranges follow each other without gap or
overlap, and depend only on the range and the options, so that a replayed batch has the same partitions. Partitions are
plain values, because they are sent to tasks. Must not know Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.reader import snapshot_reader
from headrace.reader.batch_cast import SeqRange
from headrace.reader.options import ReadOptions
from headrace.reader.range_reader import read_seq_range
from headrace.reader.read_method import ReadMethod
from headrace.reader.snapshot_reader import PinFiles

#: Minimum number of messages worth a task, and the number that a task should not exceed by much. The planner does not
#: know the cluster, and must not: a batch that is replayed elsewhere must be divided the same way.
MESSAGES_PER_TASK_MIN = 100_000
MESSAGES_PER_TASK_MAX = 2_000_000
_SMALL_READ_TASKS = 4
_TASKS_MAX = 1024


@dataclass(frozen=True)
class Partition(ABC):
    """Rows of one task, within a range of sequences."""

    #: Whether messages that are stored or removed meanwhile make no difference.
    is_snapshot: ClassVar[bool]
    seq_range: SeqRange

    @abstractmethod
    def read(self, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows, in sequence order."""


@dataclass(frozen=True)
class ServerPartition(Partition):
    """The messages of a range, read from a server."""

    is_snapshot = False
    method: ReadMethod = ReadMethod.DIRECT_GET

    def read(self, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_seq_range(options, self.seq_range, schema, self.method.fetch)


@dataclass(frozen=True)
class SnapshotPartition(Partition):
    """The messages of a range, read from the files of a pin; only those in `seqs` (uint64) if there are any."""

    is_snapshot = True
    files: PinFiles
    seqs: bytes = b""

    def read(self, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        only_seqs = np.frombuffer(self.seqs, np.uint64) if self.seqs else None
        selection = snapshot_reader.make_selection(options, self.seq_range.start, self.seq_range.end)
        return snapshot_reader.read_rows(self.files, replace(selection, only_seqs=only_seqs), schema)


def read_partition(partition: Partition, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition, with the payloads of claims if the options ask for them."""
    if options.claims != "inline":
        return partition.read(options, schema)
    from headrace.reader.claim_inline import inline_payloads, required_columns

    return inline_payloads(partition.read(options, required_columns(schema)), schema, options)


def split_range(seq_range: SeqRange, options: ReadOptions) -> list[SeqRange]:
    """Return the ranges of the tasks that read a range; none if it is empty."""
    bounds = compute_partition_bounds(seq_range.start, seq_range.end, options)
    return [SeqRange(low, high, seq_range.first_seq) for low, high in pairwise(bounds)]


def compute_partition_bounds(start: int, end: int, options: ReadOptions) -> list[int]:
    """Return where the ranges begin, and the end of the last one; nothing if the read is empty."""
    length = end - start
    if length <= 0:
        return []
    tasks = max(
        min(_SMALL_READ_TASKS, -(-length // MESSAGES_PER_TASK_MIN)), -(-length // MESSAGES_PER_TASK_MAX)
    )
    tasks = max(tasks, options.partitions_min)
    if options.partition_messages_max:
        tasks = max(tasks, -(-length // options.partition_messages_max))
    tasks = min(tasks, length, max(_TASKS_MAX, options.partitions_min))
    return [start + length * task // tasks for task in range(tasks + 1)]
