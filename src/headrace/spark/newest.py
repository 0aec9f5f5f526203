"""The last message of each subject, as of one sequence: how that is divided among tasks, and read.

Invariant: what is last is decided by the sequence alone, so that a repeated batch has the same rows although newer
messages came meanwhile. A subject is always with the same task of as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np
import pyarrow as pa

from headrace.spark import direct, wire
from headrace.spark.options import Options
from headrace.spark.planning import Newest, divided
from headrace.spark.streams import subjects_of

#: A server refuses requests that match more subjects than 1024.
_SUBJECTS = 1000
_REQUEST_BYTES = 256 << 10


def plan(options: Options, end: int, pin: str, token: str) -> list[Newest]:
    """The parts of a read of the last message of each subject below `end`."""
    tasks = max(len(divided(1, end, options)) - 1, 0)
    if not options.path:
        return _by_subject(options, end, tasks)
    seqs = direct.newest(options, end, pin, token)
    pieces = [piece for piece in np.array_split(seqs, max(tasks, 1)) if len(piece)]
    return [
        Newest(int(piece[0]), int(piece[-1]) + 1, 0, pin, token, seqs=piece.tobytes()) for piece in pieces
    ]


def _by_subject(options: Options, end: int, tasks: int) -> list[Newest]:
    groups: list[list[str]] = [[] for _ in range(tasks)]
    for subject in subjects_of(options) if tasks else ():
        groups[crc32(subject.encode()) % tasks].append(subject)
    return [Newest(1, end, subjects=tuple(group)) for group in groups]


def read(options: Options, part: Newest, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part."""
    if options.path:
        only = np.frombuffer(part.seqs, np.uint64)
        yield from direct.read_range(options, part, schema, token=part.token, only=only)
        return
    for some in _handfuls(part.subjects):
        yield from wire.read_newest(options, some, part.end, schema)


def _handfuls(subjects: tuple[str, ...]) -> Iterator[list[str]]:
    """As many subjects as a request takes."""
    held: list[str] = []
    size = 0
    for subject in subjects:
        if len(held) == _SUBJECTS or size > _REQUEST_BYTES:
            yield held
            held, size = [], 0
        held.append(subject)
        size += len(subject) + 4
    if held:
        yield held
