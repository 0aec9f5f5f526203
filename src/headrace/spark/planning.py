"""How a range of sequences is divided among tasks.

Owns the partitions. Invariant: the ranges follow each other without gap or overlap, and depend on nothing but the range
and the options, so that a replayed batch has the same partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from headrace.spark.options import Options

#: A task is worth starting for so many messages, and should not have many more than the other number. The planner does
#: not know the cluster, and must not: a batch that is replayed elsewhere has to be divided alike.
MESSAGES_WORTH_A_TASK = 100_000
MESSAGES_A_TASK = 2_000_000
_TASKS_SMALL = 4
_TASKS_MAX = 1024


@dataclass
class Range(InputPartition):
    """Sequences from `start` (included) to `end` (excluded), as a pin shows them where there is one.

    `first_seq` is where the stream began when this was planned: what was there then and is gone now was lost. `token`
    is what the broker wants to see where it serves the pin's files itself.
    """

    start: int
    end: int
    first_seq: int = 0
    pin: str = ""
    token: str = field(default="", repr=False)


@dataclass
class Newest(Range):
    """The last message of each of some subjects below `end`: as subjects to ask for, or as sequences (int64) to pick."""

    subjects: tuple[str, ...] = ()
    seqs: bytes = b""


def divide(
    start: int, end: int, options: Options, *, first_seq: int = 0, pin: str = "", token: str = ""
) -> list[Range]:
    """The ranges of a read; none for an empty one."""
    cuts = divided(start, end, options)
    return [Range(low, high, first_seq, pin, token) for low, high in pairwise(cuts)]


def divided(start: int, end: int, options: Options) -> list[int]:
    """Where the ranges begin, and the end of the last one; nothing for an empty one."""
    length = end - start
    if length <= 0:
        return []
    tasks = max(min(_TASKS_SMALL, -(-length // MESSAGES_WORTH_A_TASK)), -(-length // MESSAGES_A_TASK))
    tasks = max(tasks, options.partitions_min)
    if options.partition_messages_max:
        tasks = max(tasks, -(-length // options.partition_messages_max))
    tasks = min(tasks, length, max(_TASKS_MAX, options.partitions_min))
    return [start + length * task // tasks for task in range(tasks + 1)]
