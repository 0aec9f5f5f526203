"""The long parts of a stream's info, found and encoded in steps: a page of its subjects, and its deleted sequences.

Sorting half a million names at once would hold up every client. Instead they are divided into ranges by a sample of
themselves, and only the ranges that the page overlaps are sorted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.jetstream_api.encode import dumps

if TYPE_CHECKING:
    from headrace.storage import Filter, StreamLog

#: Number of subjects that are read or divided in one step, and whose messages are counted in one step.
STEP = 4_096
COUNT_STEP = 1_024
#: Number of subjects that are removed from memory in one step.
CLEAR_STEP = 16_384
#: JSON of more bytes than this is copied off the event loop.
LARGE_BYTES = 256 * 1024
#: Maximum number of deleted sequences in one response; a mirror or a restore can leave a gap of any size.
DELETED_MAX = 1_000_000
#: Number of sequences that are looked at in one step.
DELETED_STEP = 65_536


class SubjectPage(NamedTuple):
    """Subjects with their message counts as a JSON object, and how many match in all."""

    counts: msgspec.Raw | None
    total: int


def iter_page(
    log: StreamLog, subject_filter: Filter, offset: int, limit: int
) -> Generator[Callable[[], Any] | None, Any, SubjectPage]:
    """Return the subjects from `offset` on that match a filter, at most `limit`; yield a call that takes long."""
    names = yield from _collect_names(log, subject_filter)
    start = min(max(offset, 0), len(names))
    wanted = yield from _select(names, start, min(start + limit, len(names)))
    total = len(names)
    yield from _iter_clear(names)
    encoded: list[bytes] = []
    for number, part in enumerate(_iter_parts(wanted, COUNT_STEP)):
        if number:
            yield None
        counts = {name.decode("utf-8", "replace"): log.get_subject_count(name) for name in part}
        if members := dumps({name: count for name, count in counts.items() if count})[1:-1]:
            encoded.append(members)
    yield from _iter_clear(wanted)
    return SubjectPage((yield from _iter_enclose(b"{", encoded, b"}")), total)


def iter_deleted(log: StreamLog, limit: int) -> Generator[Callable[[], Any] | None, Any, msgspec.Raw | None]:
    """Return the deleted sequences as a JSON array, at most `limit`, in slices; None if there are none.

    Yields a call that takes long.
    """
    encoded: list[bytes] = []
    start = log.first_seq
    while start <= log.last_seq and limit > 0:
        end = min(start + DELETED_STEP - 1, log.last_seq)
        deleted = log.find_deleted_seqs(start, end)[:limit]
        if len(deleted):
            encoded.append(dumps(deleted.tolist())[1:-1])
            limit -= len(deleted)
        start = end + 1
        yield None
    return (yield from _iter_enclose(b"[", encoded, b"]"))


def _iter_enclose(
    opening: bytes, members: list[bytes], closing: bytes
) -> Generator[Callable[[], Any] | None, Any, msgspec.Raw | None]:
    """Return an object or array of encoded members, which are copied once; None if there are none."""
    if not members:
        return None
    members[0] = opening + members[0]
    members[-1] += closing
    size = sum(map(len, members))
    joined: bytes = (yield partial(b",".join, members)) if size > LARGE_BYTES else b",".join(members)
    return msgspec.Raw(joined)


def _collect_names(log: StreamLog, subject_filter: Filter) -> Generator[None, None, list[bytes]]:
    subject_index = log.subject_index
    epoch, sids = log.subject_epoch, log.find_subject_ids(subject_filter)
    names: list[bytes] = []
    at = 0
    while at < len(sids):
        if log.subject_epoch != epoch:  # dead subjects were dropped, and the others have new ids
            epoch, sids = log.subject_epoch, log.find_subject_ids(subject_filter)
            names, at = [], 0
            continue
        names += map(subject_index.name, sids[at : at + STEP].tolist())
        at += STEP
        if at < len(sids):
            yield
    return names


def _select(names: list[bytes], start: int, end: int) -> Generator[None, None, list[bytes]]:
    """Return what sorted(names)[start:end] would."""
    if len(names) <= STEP:
        return sorted(names)[start:end]
    pivots = sorted(names[:: max(len(names) // STEP, 1)])[:: max(STEP * STEP // len(names), 1)]
    ranges: list[list[bytes]] = [[] for _ in range(len(pivots) + 1)]
    for part in _iter_parts(names, STEP):
        for name in part:
            ranges[bisect_right(pivots, name)].append(name)
        yield
    found: list[bytes] = []
    position = 0
    for each in ranges:
        size = len(each)
        if position < end and position + size > start:
            found += sorted(each)[max(start - position, 0) : end - position]
        each.clear()
        position += size
        yield
    return found


def _iter_clear(names: list[bytes]) -> Iterator[None]:
    """Remove most of a list in steps: half a million objects take milliseconds to free."""
    while len(names) > CLEAR_STEP:
        del names[-CLEAR_STEP:]
        yield


def _iter_parts(names: list[bytes], step: int) -> Iterator[list[bytes]]:
    return (names[at : at + step] for at in range(0, len(names), step))
