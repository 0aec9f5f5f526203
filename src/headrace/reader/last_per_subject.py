"""Plans reading the last message of each subject as of one sequence, divided among tasks.

Invariant: the sequence alone decides which message is last, so that a repeated batch has the same rows even if newer
messages arrived meanwhile. For a given number of tasks, a subject is always assigned to the same task. See ADR 51.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa

from headrace.reader import snapshot_reader
from headrace.reader.batch_cast import OPEN_END, SeqRange
from headrace.reader.direct_get_reader import read_last_from_leader, read_last_per_subject
from headrace.reader.options import ReadOptions
from headrace.reader.partitions import Partition, SnapshotPartition, compute_partition_bounds
from headrace.reader.read_method import ReadMethod
from headrace.reader.snapshot_reader import PinFiles
from headrace.reader.stream_admin import list_subjects

#: A server rejects requests that match more than 1024 subjects.
_SUBJECTS_PER_REQUEST = 1000
_REQUEST_BYTES = 256 << 10


@dataclass(frozen=True)
class SubjectsPartition(Partition):
    """The last message in the range of each of some subjects, read from a server.

    With `is_open` the range continues to the end of the stream: messages that replace others meanwhile are not missed.
    """

    is_snapshot = False
    subjects: tuple[str, ...]
    method: ReadMethod = ReadMethod.DIRECT_GET
    is_open: bool = False

    def read(self, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        end = self.seq_range.end
        for subjects in _group_subjects(self.subjects):
            if self.method is ReadMethod.DIRECT_GET:
                yield from read_last_per_subject(options, subjects, end, schema, is_open=self.is_open)
            else:
                leader_end = OPEN_END if self.is_open else end
                yield from read_last_from_leader(options, subjects, leader_end, schema)


def plan_by_subject(options: ReadOptions, end: int, method: ReadMethod) -> list[SubjectsPartition]:
    """Divide the subjects of a server's stream among tasks."""
    tasks = _count_tasks(options, end)
    groups: list[list[str]] = [[] for _ in range(tasks)]
    for subject in list_subjects(options) if tasks else ():
        groups[crc32(subject.encode()) % tasks].append(subject)
    return [SubjectsPartition(SeqRange(1, end), tuple(group), method) for group in groups]


def plan_by_seq(options: ReadOptions, end: int, files: PinFiles) -> list[SnapshotPartition]:
    """Divide the last messages of all subjects, as a pin shows them, among tasks."""
    tasks = _count_tasks(options, end)
    seqs = files.open().find_last_per_subject(snapshot_reader.make_selection(options, None, end))
    pieces = [piece for piece in np.array_split(seqs, max(tasks, 1)) if len(piece)]
    return [
        SnapshotPartition(SeqRange(int(piece[0]), int(piece[-1]) + 1), files, piece.tobytes())
        for piece in pieces
    ]


def _count_tasks(options: ReadOptions, end: int) -> int:
    return max(len(compute_partition_bounds(1, end, options)) - 1, 0)


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
