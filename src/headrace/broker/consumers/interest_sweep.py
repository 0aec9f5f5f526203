"""Removes messages that no consumer needs, from streams with interest or work-queue retention.

A work queue keeps what no consumer has acknowledged, too.

Owns the queue of acknowledged messages, and where to look again for unneeded ones after a consumer was deleted, reset or
changed. Acknowledged messages are removed with the frame that stores their acks; looking again works in slices, because
it may concern all messages of the stream. A key in the metadata says that it is under way: after a crash between two
slices all messages are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers.retention_interest import acked_mask, find_needed, still_needed_mask
from headrace.broker.streams.stream_metadata import sweep_key
from headrace.storage import Filter, MetadataStore
from headrace.storage.sequence_arrays import Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer import Consumer
    from headrace.broker.consumers.consumer_context import ConsumerStream
    from headrace.broker.consumers.filter_index import FilterIndex

#: Up to this many consumers, it is cheaper to ask each of them than to look for those whose filters match.
FEW_CONSUMERS = 8
#: Maximum number of sequences that one slice looks at again.
_SLICE_SEQS = 16_384
#: Maximum number of messages times consumers that one slice compares.
_SLICE_COMPARISONS = 262_144
_SLICE_SEQS_MIN = 64


class InterestSweep:
    """Finds and removes unneeded messages of one stream; `consumers` are all of its consumers.

    There is something to do if `acked_seqs` or `backlog` is not empty.
    """

    __slots__ = (
        "_consumers",
        "_filter_index",
        "_is_recorded",
        "_log",
        "_metadata",
        "_needs_recheck",
        "_stream",
        "acked_seqs",
        "backlog",
    )

    def __init__(
        self,
        stream: ConsumerStream,
        consumers: Iterable[Consumer],
        filter_index: FilterIndex,
        metadata: MetadataStore,
    ) -> None:
        self._stream = stream
        self._log = stream.log
        self._consumers = consumers
        self._filter_index = filter_index
        self.acked_seqs: list[int] = []
        self._needs_recheck = False  # the consumer that marked them may still need some
        #: Filter of messages to look at again (None: all) -> the next sequence to look at.
        self.backlog: dict[Filter | None, int] = {}
        self._metadata = metadata
        self._is_recorded = False  # whether the metadata says that there is something to look at again

    def mark_acked(self, seqs: list[int], *, recheck: bool = False) -> None:
        """Mark messages that a consumer no longer needs; without other consumers they are removed with the frame."""
        self._needs_recheck = self._needs_recheck or recheck
        self.acked_seqs += seqs
        self._stream.mark_dirty()

    def recheck(self, subject_filter: Filter | None = None) -> None:
        """Look again at the messages that match the filter of a consumer, which is gone or has changed."""
        log, config = self._log, self._stream.config
        if next(iter(self._consumers), None) is None and config.retention != "workqueue":
            self.acked_seqs.clear()
            self.backlog.clear()
            log.remove_below(log.last_seq + 1)
            self._on_finished()
        elif log.messages:
            if subject_filter is None:
                self.backlog.clear()
            if None in self.backlog:
                subject_filter = None
            self.backlog[subject_filter] = log.first_seq
            if log.journaled and not self._is_recorded:
                self._is_recorded = True
                self._metadata.put(sweep_key(log.ident), b"")
        self._stream.mark_dirty()

    def resume(self) -> None:
        """Look at all messages again if a crash interrupted that."""
        if self._metadata.get(sweep_key(self._log.ident)) is not None:
            self._is_recorded = True
            self.recheck()

    def _on_finished(self) -> None:
        self.backlog.clear()
        if self._is_recorded:
            self._is_recorded = False
            self._metadata.delete(sweep_key(self._log.ident))

    def run(self) -> None:
        """Remove what was acknowledged and is not needed, and one slice of what has to be looked at again."""
        if not (self.acked_seqs or self.backlog) or self._stream.closed:
            return
        config = self._stream.config
        if config.retention == "limits":  # since an update; nothing is removed for lack of interest
            self.acked_seqs.clear()
            self._on_finished()
            return
        self.remove_acked()
        if self.backlog:
            unneeded = self._find_unneeded(self._take_slice(), recheck=True)
            self._remove(self._find_acked(unneeded) if config.retention == "workqueue" else unneeded)
            if not self.backlog:
                self._on_finished()

    def remove_acked(self) -> None:
        """Remove what was acknowledged and is not needed.

        Also called before a consumer is deleted: later nothing would show that the others did not acknowledge it.
        """
        config = self._stream.config
        if not self.acked_seqs or self._stream.closed or config.retention == "limits":
            return
        seqs = np.array(sorted(set(self.acked_seqs)), dtype=np.uint64)
        self.acked_seqs.clear()
        recheck, self._needs_recheck = self._needs_recheck, False
        self._remove(self._find_unneeded(seqs, recheck=recheck))

    def _remove(self, seqs: Seqs) -> None:
        if len(seqs):
            self._log.remove_many(seqs)

    def _take_slice(self) -> Seqs:
        """Return the next messages to look at again."""
        log = self._log
        subject_filter, start = next(iter(self.backlog.items()))
        start = max(start, log.first_seq)
        end = start + _SLICE_SEQS - 1
        seqs = log.find_seqs(subject_filter, start, min(end, log.last_seq))
        fitting = max(_SLICE_COMPARISONS // max(sum(1 for _ in self._consumers), 1), _SLICE_SEQS_MIN)
        if len(seqs) > fitting:
            seqs = seqs[:fitting]
            end = int(seqs[-1])
        following = log.find_next(subject_filter, end + 1)
        if following:
            self.backlog[subject_filter] = following
        else:
            del self.backlog[subject_filter]
        return seqs

    def _find_unneeded(self, seqs: Seqs, *, recheck: bool) -> Seqs:
        consumers = list(self._consumers)
        config = self._stream.config
        asks_one = len(consumers) == 1 or (
            config.retention == "workqueue" and not any(each.config.sourcing for each in consumers)
        )
        if asks_one and not recheck and not any(each.ack_state.delivery_counts for each in consumers):
            return seqs
        if len(consumers) > FEW_CONSUMERS:
            return self._find_unneeded_by_subject(seqs)
        for consumer in consumers:
            if len(seqs):
                seqs = seqs[~still_needed_mask(consumer, seqs)]
        return seqs

    def _find_acked(self, seqs: Seqs) -> Seqs:
        """Return those of these messages, which no consumer needs, that a consumer has acknowledged."""
        acked = np.zeros(len(seqs), bool)
        for consumer in self._consumers if len(seqs) else ():
            acked |= acked_mask(consumer, seqs)
        return seqs[acked]

    def _find_unneeded_by_subject(self, seqs: Seqs) -> Seqs:
        """Ask only the consumers whose filters match the subjects of the messages."""
        log, find_matching = self._log, self._filter_index.find_matching
        seqs, subject_ids = log.get_subject_ids(seqs)
        concerned: dict[Consumer, list[np.ndarray]] = {}
        for subject_id, indexes in _group_equal(subject_ids):
            for consumer in find_matching(log.subject_index.name(subject_id)):
                concerned.setdefault(consumer, []).append(indexes)
        needed = np.zeros(len(seqs), bool)
        for consumer, parts in concerned.items():
            indexes = parts[0] if len(parts) == 1 else np.concatenate(parts)
            indexes = indexes[~needed[indexes]]
            if len(indexes):
                needed[indexes] = find_needed(consumer.ack_state, seqs[indexes])
        return seqs[~needed]


def _group_equal(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each distinct value and its indexes."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else order
    for start, end in pairwise([*starts.tolist(), len(ordered)]):
        yield int(ordered[start]), order[start:end]
