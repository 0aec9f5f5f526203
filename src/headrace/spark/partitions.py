"""Divides a range of sequences among tasks.

Owns the partitions. Invariant: the ranges follow each other without gap or overlap, and depend only on the range and
the options, so that a replayed batch has the same partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.reader.options import ReadOptions

#: Minimum number of messages worth a task, and the number that a task should not exceed by much. The planner does not
#: know the cluster, and must not: a batch that is replayed elsewhere must be divided the same way.
MESSAGES_PER_TASK_MIN = 100_000
MESSAGES_PER_TASK_MAX = 2_000_000
_SMALL_READ_TASKS = 4
_TASKS_MAX = 1024


@dataclass
class SeqRangePartition(InputPartition):
    """Sequences from `start` (included) to `end` (excluded), as shown by a pin if there is one.

    `first_seq` is the stream's first sequence at planning time: messages that existed then and are gone now were lost.
    `token` authorizes fetching the pin's files if the broker serves them.
    """

    start: int
    end: int
    first_seq: int = 0
    pin: str = ""
    token: str = field(default="", repr=False)


@dataclass
class LastPerSubjectPartition(SeqRangePartition):
    """The last message below `end` of each of some subjects: given as subjects to request, or as sequences (int64) to
    select.
    """

    subjects: tuple[str, ...] = ()
    seqs: bytes = b""


def plan_partitions(
    start: int, end: int, options: ReadOptions, *, first_seq: int = 0, pin: str = "", token: str = ""
) -> list[SeqRangePartition]:
    """Return the ranges of a read; none if it is empty."""
    bounds = compute_partition_bounds(start, end, options)
    return [SeqRangePartition(low, high, first_seq, pin, token) for low, high in pairwise(bounds)]


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
