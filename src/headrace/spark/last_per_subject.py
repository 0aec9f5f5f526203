"""Reads the last message of each subject as of one sequence, divided among tasks.

Invariant: the sequence alone decides which message is last, so that a repeated batch has the same rows even if newer
messages arrived meanwhile. For a given number of tasks, a subject is always assigned to the same task.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np
import pyarrow as pa

from headrace.reader import direct_get_reader, snapshot_reader
from headrace.reader.options import ReadOptions
from headrace.reader.stream_admin import list_subjects
from headrace.spark.partitions import LastPerSubjectPartition, compute_partition_bounds

#: A server rejects requests that match more than 1024 subjects.
_SUBJECTS_PER_REQUEST = 1000
_REQUEST_BYTES = 256 << 10


def plan_last_per_subject(
    options: ReadOptions, end: int, pin: str, token: str
) -> list[LastPerSubjectPartition]:
    """Return the partitions for reading the last message of each subject below `end`."""
    tasks = max(len(compute_partition_bounds(1, end, options)) - 1, 0)
    if not options.path:
        return _plan_by_subject(options, end, tasks)
    seqs = snapshot_reader.find_last_per_subject(options, end, pin, token)
    pieces = [piece for piece in np.array_split(seqs, max(tasks, 1)) if len(piece)]
    return [
        LastPerSubjectPartition(int(piece[0]), int(piece[-1]) + 1, 0, pin, token, seqs=piece.tobytes())
        for piece in pieces
    ]


def _plan_by_subject(options: ReadOptions, end: int, tasks: int) -> list[LastPerSubjectPartition]:
    groups: list[list[str]] = [[] for _ in range(tasks)]
    for subject in list_subjects(options) if tasks else ():
        groups[crc32(subject.encode()) % tasks].append(subject)
    return [LastPerSubjectPartition(1, end, subjects=tuple(group)) for group in groups]


def read_partition(
    options: ReadOptions, partition: LastPerSubjectPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition."""
    if options.path:
        only_seqs = np.frombuffer(partition.seqs, np.uint64)
        yield from snapshot_reader.read_seq_range(
            options, partition, schema, token=partition.token, only_seqs=only_seqs
        )
        return
    for subjects in _group_subjects(partition.subjects):
        yield from direct_get_reader.read_last_per_subject(options, subjects, partition.end, schema)


def _group_subjects(subjects: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield groups with as many subjects as a request may have."""
    group: list[str] = []
    size = 0
    for subject in subjects:
        if len(group) == _SUBJECTS_PER_REQUEST or size > _REQUEST_BYTES:
            yield group
            group, size = [], 0
        group.append(subject)
        size += len(subject) + 4
    if group:
        yield group
