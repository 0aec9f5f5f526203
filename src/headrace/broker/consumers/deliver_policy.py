"""Finds where a new consumer starts: applies the deliver policy to the messages of the stream."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.ack_state_codec import PackedSet, pack_set
from headrace.jetstream_api import times
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.storage import Filter, StreamLog
from headrace.storage.log.last_seqs import iter_last_seqs
from headrace.storage.sequence_arrays import Seqs, search_sorted

#: The last messages of more subjects than this are collected in slices, and sorted off the event loop.
MANY_SUBJECTS = 32_768


def iter_initial_state(
    config: ConsumerConfig, stream_config: StreamConfig, log: StreamLog, subject_filter: Filter | None
) -> Generator[Callable[[], Any] | None, Any, AckState]:
    """Return the ack state of a consumer that has delivered nothing yet; yield a call that takes long."""
    if config.deliver_policy == "last_per_subject" and stream_config.max_msgs_per_subject != 1:
        # Later messages follow after `last_seq`; those that are removed meanwhile are skipped at delivery.
        last_seq = log.last_seq
        if log.num_subjects <= MANY_SUBJECTS:
            return _make_last_per_subject_state(np.sort(log.get_last_seqs(subject_filter)), last_seq)
        yield None
        lasts = yield from iter_last_seqs(log, subject_filter)
        seqs, packed = yield partial(_sort_and_pack, lasts, last_seq)
        ack_state = _make_last_per_subject_state(seqs, last_seq)
        ack_state.packed_queue = PackedSet(seqs, packed)
        return ack_state
    seq = _find_first_seq(config, log, subject_filter)
    if not log.last_seq and log.first_seq <= 1 and not config.opt_start_seq:
        seq = 1
    elif not config.opt_start_seq:
        seq = min(seq, log.last_seq + 1)
    return AckState(max(seq, log.first_seq))


def _find_first_seq(config: ConsumerConfig, log: StreamLog, subject_filter: Filter | None) -> int:
    policy = config.deliver_policy
    if policy == "last":
        return log.last_seq if subject_filter is None else log.find_prev(subject_filter, log.last_seq)
    if policy == "new":
        return log.last_seq + 1
    if policy == "by_start_sequence":
        return config.opt_start_seq
    if policy == "by_start_time" and config.opt_start_time is not None:
        return log.find_seq_at_time(times.parse_time_ns(config.opt_start_time)) or log.last_seq + 1
    return log.first_seq


def _sort_and_pack(seqs: Seqs, last_seq: int) -> tuple[Seqs, bytes]:
    """Return the sequences up to `last_seq`, ascending, and the same for the stored ack state."""
    ordered = np.sort(seqs)
    ordered = ordered[: search_sorted(ordered, last_seq, "right")]
    return ordered, pack_set(ordered)


def _make_last_per_subject_state(seqs: Seqs, last_seq: int) -> AckState:
    """Start with the last message of every subject, then everything after `last_seq`."""
    if not last_seq:
        return AckState(1)
    ack_state = AckState(int(seqs[0]) if len(seqs) else last_seq)
    if len(seqs):
        ack_state.last_per_subject_queue, ack_state.resume_seq = seqs, last_seq
        ack_state.skipped_seq = last_seq
    else:
        ack_state.next_seq = last_seq + 1
        ack_state.skipped_seq = last_seq
    return ack_state
