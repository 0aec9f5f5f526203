"""Which messages a consumer still needs, for streams that keep a message only as long as somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.broker.progress import Progress
from headrace.broker.progress_codec import Seqs

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer

#: Sequences further apart than this, on average, are looked up one by one.
SPARSE = 64


def needs(consumer: Consumer, seqs: Seqs) -> npt.NDArray[np.bool_]:
    """Which of these messages have to stay: not delivered yet, waiting for an acknowledgement, or given up."""
    progress = consumer.progress
    kept, counts = progress.pending, progress.counts
    initial = set(progress.initial.tolist())
    start = progress.resume + 1 if initial else progress.next_seq
    wanted = [seq >= start or seq in kept or seq in counts or seq in initial for seq in seqs.tolist()]
    mask = np.array(wanted, dtype=bool)
    if consumer.filter is not None and mask.any():
        mask &= _matching(consumer, seqs)
    return mask


def _matching(consumer: Consumer, seqs: Seqs) -> npt.NDArray[np.bool_]:
    log = consumer.stream.log
    first, last = int(seqs[0]), int(seqs[-1])
    if last - first < SPARSE * len(seqs):
        return np.isin(seqs, log.seqs(consumer.filter, first, last), assume_unique=True)
    return np.array([log.next(consumer.filter, seq) == seq for seq in seqs.tolist()], dtype=bool)


def known_among(progress: Progress, seqs: Seqs | Sequence[int]) -> list[int]:
    """Which of these messages the consumer still remembers."""
    if len(seqs) > 4 * (len(progress.pending) + len(progress.counts)):
        known = np.array(sorted({*progress.pending, *progress.counts}), dtype=np.uint64)
        return [int(seq) for seq in np.intersect1d(known, np.asarray(seqs, dtype=np.uint64))]
    return [seq for seq in map(int, seqs) if seq in progress.pending or seq in progress.counts]
