"""Finds the messages that a consumer still needs, for streams with interest or work-queue retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.broker.consumers.ack_state import AckState
from headrace.storage.sequence_arrays import Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext

#: Sequences further apart than this, on average, are looked up one by one.
SPARSE_GAP = 64


def still_needed_mask(consumer: ConsumerContext, seqs: Seqs) -> npt.NDArray[np.bool_]:
    """Return which messages must stay for a consumer."""
    mask = find_needed(consumer.ack_state, seqs)
    if consumer.filter is not None and mask.any():
        mask &= _filter_mask(consumer, seqs)
    return mask


def find_needed(ack_state: AckState, seqs: Seqs) -> npt.NDArray[np.bool_]:
    """Return which messages, all of which match the consumer's filter, must stay.

    Those are not delivered yet, pending, or past max_deliver.
    """
    pending, delivery_counts, queue = (
        ack_state.pending,
        ack_state.delivery_counts,
        ack_state.last_per_subject_queue,
    )
    mask = seqs >= np.uint64(ack_state.resume_seq + 1 if len(queue) else ack_state.next_seq)
    if len(queue):
        mask |= queue[np.minimum(queue.searchsorted(seqs), len(queue) - 1)] == seqs
    if ack_state.key_order is not None:
        mask |= ack_state.key_order.find_passed(seqs)
    if pending or delivery_counts:
        for index in np.flatnonzero(~mask).tolist():
            seq = int(seqs[index])
            mask[index] = seq in pending or seq in delivery_counts
    return mask


def acked_mask(consumer: ConsumerContext, seqs: Seqs) -> npt.NDArray[np.bool_]:
    """Return which messages a consumer has acknowledged for certain, among those that it does not need."""
    mask = seqs > np.uint64(consumer.ack_state.skipped_seq)
    if consumer.filter is not None and mask.any():
        mask &= _filter_mask(consumer, seqs)
    return mask


def _filter_mask(consumer: ConsumerContext, seqs: Seqs) -> npt.NDArray[np.bool_]:
    log = consumer.stream.log
    first, last = int(seqs[0]), int(seqs[-1])
    if last - first < SPARSE_GAP * len(seqs):
        return np.isin(seqs, log.find_seqs(consumer.filter, first, last), assume_unique=True)
    return np.array([log.find_next(consumer.filter, seq) == seq for seq in seqs.tolist()], dtype=bool)


def tracked_among(ack_state: AckState, seqs: Seqs | Sequence[int]) -> list[int]:
    """Return which of these messages the consumer still tracks."""
    if len(seqs) > 4 * (len(ack_state.pending) + len(ack_state.delivery_counts)):
        tracked = np.array(sorted({*ack_state.pending, *ack_state.delivery_counts}), dtype=np.uint64)
        is_among = np.isin(tracked, np.asarray(seqs, dtype=np.uint64), assume_unique=True)
        found: list[int] = tracked[is_among].tolist()
        return found
    return [seq for seq in map(int, seqs) if seq in ack_state.pending or seq in ack_state.delivery_counts]
