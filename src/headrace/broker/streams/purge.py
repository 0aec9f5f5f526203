"""A purge in slices, so that no client waits for all of it.

Owns the order in which messages go: oldest first. Messages that arrive during a purge stay.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from headrace.broker.streams import delete_markers
from headrace.code_probes import sometimes

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.storage import Filter, StreamLog

#: Number of the oldest messages removed at a time; removing those costs least.
_PREFIX_SLICE = 65_536
#: Number of sequences searched at a time for matching subjects, and of messages removed at a time.
_SEARCHED = 65_536
_SLICE = 16_384
#: With markers each message costs far more.
_MARKED_SLICE = 256


def iter_slices(stream: StreamContext, pattern: bytes, seq: int, keep: int) -> Iterator[int]:
    """Remove messages below `seq`, or all but the newest `keep`, or all; yield how many each slice removed."""
    log = stream.log
    if delete_markers.is_enabled_for(stream, "Purge") or (pattern and pattern != b">"):
        sometimes("purge with a filter or delete markers")
        last_seq = min(seq - 1, log.last_seq) if seq else log.last_seq
        yield from _iter_matching(stream, pattern, last_seq, keep)
        return
    below = seq or log.last_seq + 1
    if keep:
        sometimes("purge with keep")
        below = yield from _iter_boundary(log, None, log.last_seq, keep)
    yield from _iter_below(stream, below)
    if below > log.last_seq + 1:
        log.advance(below - 1)


def _iter_boundary(
    log: StreamLog, subject_filter: Filter | None, last_seq: int, keep: int
) -> Generator[int, None, int]:
    """Return the sequence of the oldest match to keep, that is, the `keep`th from the end; yield between steps."""
    end = log.find_prev(subject_filter, last_seq)
    while end:
        found = log.find_seqs(subject_filter, max(end - _SEARCHED + 1, log.first_seq), end)
        if len(found) >= keep:
            return int(found[-keep])
        keep -= len(found)
        yield 0
        end = log.find_prev(subject_filter, end - _SEARCHED)
    return log.first_seq


def _iter_below(stream: StreamContext, below: int) -> Iterator[int]:
    log, retention = stream.log, stream.retention
    if below > log.last_seq:  # everything, which costs little
        yield retention.remove_below(below)
        return
    while log.first_seq < below:
        yield retention.remove_below(min(below, log.first_seq + _PREFIX_SLICE))


def _iter_matching(stream: StreamContext, pattern: bytes, last_seq: int, keep: int) -> Iterator[int]:
    log, places_markers = stream.log, delete_markers.is_enabled_for(stream, "Purge")
    subject_filter = log.get_filter((pattern,)) if pattern else None
    if keep:
        last_seq = (yield from _iter_boundary(log, subject_filter, last_seq, keep)) - 1
    step = _MARKED_SLICE if places_markers else _SLICE
    seq = log.find_next(None, log.first_seq)
    while 0 < seq <= last_seq:
        end = min(seq + _SEARCHED - 1, last_seq)
        found = log.find_seqs(subject_filter, seq, end)
        for at in range(0, len(found), step):
            part = found[at : at + step]
            if places_markers:
                yield delete_markers.remove_all_with_markers(stream, part, "Purge")
            else:
                yield stream.retention.remove(part)
        seq = log.find_next(None, end + 1)
