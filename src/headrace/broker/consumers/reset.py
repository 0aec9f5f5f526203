"""Resets a consumer to its ack floor, or to a sequence that its configuration allows.

Owns the choice of that sequence and its consequences. The record of deliveries is cleared; configuration, pause, pinned
client, waiting pull requests and the flow-control window stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.code_probes import sometimes
from headrace.errors import RequestError
from headrace.jetstream_api import times
from headrace.jetstream_api.errors import ApiError
from headrace.storage.sequence_arrays import NO_SEQS, Seqs, sort_unique

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_state import AckState
    from headrace.broker.consumers.consumer_context import ConsumerContext


def reset(consumer: ConsumerContext, seq: int | None) -> int:
    """Reset to a sequence, or without one to the ack floor; return the new start sequence."""
    ack_state = consumer.ack_state
    consumer.consumer_set.remove_acked()  # acks from before the reset keep their effect
    remaining: Seqs = NO_SEQS
    resume_seq = ack_state.resume_seq
    if seq is None:
        sometimes("consumer reset to its ack floor")
        target = ack_state.compute_ack_floor()[1] + 1
        remaining = _find_remaining(consumer, target)
    else:
        _check_target(consumer, seq)
        target = seq
    skipped_seq = _find_skipped_seq(ack_state, target)
    skips = target > ack_state.compute_ack_floor()[1] + 1
    ack_state.reset_to(target)
    consumer.ack_handler.on_reset()
    ack_state.skipped_seq = skipped_seq
    # `reset_to` clears the queue of last messages per subject. Without the rest of it, every message from `target` on
    # would be delivered, also those that were never last.
    if seq is None and resume_seq:
        ack_state.last_per_subject_queue, ack_state.resume_seq = remaining, resume_seq
        if not len(remaining):
            ack_state.next_seq = max(target, resume_seq + 1)
    _apply_reset(consumer, skips=skips)
    return target


def _find_skipped_seq(ack_state: AckState, target: int) -> int:
    """Return up to where messages may have been skipped without an ack, if the consumer is reset to `target`."""
    has_given_up = any(seq not in ack_state.pending for seq in ack_state.delivery_counts)
    if has_given_up or target > ack_state.compute_ack_floor()[1] + 1:
        return max(ack_state.skipped_seq, target - 1)
    return ack_state.skipped_seq


def _check_target(consumer: ConsumerContext, seq: int) -> None:
    """Reject sequences before the configured start, and policies that have no such start."""
    config = consumer.config
    if not seq:
        raise _make_error("sequence must be > 0")
    if config.deliver_policy == "by_start_sequence":
        if seq < config.opt_start_seq:
            raise _make_error("below start seq")
    elif config.deliver_policy == "by_start_time" and config.opt_start_time is not None:
        log = consumer.log
        following = log.find_next(None, seq)
        if following and log.get_time_ns(following) < times.parse_time_ns(config.opt_start_time):
            raise _make_error("below start time")
        if not following and seq <= log.last_seq:
            raise _make_error("below start time")
    elif config.deliver_policy != "all":
        raise _make_error("not allowed")


def _make_error(reason: str) -> RequestError:
    return ApiError.CONSUMER_INVALID_RESET(err=reason)


def _find_remaining(consumer: ConsumerContext, target: int) -> Seqs:
    """Return those of the last messages per subject that are pending or not delivered yet.

    nats-server loses the pending ones here; the seed requires that pending messages are redelivered. What came after
    the last messages were collected is delivered in order anyway.
    """
    ack_state = consumer.ack_state
    if not ack_state.resume_seq:
        return NO_SEQS
    pending = np.fromiter(ack_state.pending, dtype=np.uint64, count=len(ack_state.pending))
    found: Seqs = sort_unique(np.concatenate((pending, ack_state.last_per_subject_queue)))
    return found[(found >= target) & (found <= ack_state.resume_seq)]


def _apply_reset(consumer: ConsumerContext, *, skips: bool) -> None:
    """Persist the new state, remove messages that were skipped, deliver at once.

    If nothing is skipped, a work queue keeps what the consumer has acknowledged: a worker may come that still needs it.
    """
    stream = consumer.stream
    if consumer.persistent:
        consumer.persist_state()
        stream.mark_dirty()
    if skips or stream.config.retention == "interest":
        consumer.consumer_set.on_interest_reduced(consumer, consumer.filter)
    consumer.consumer_set.stop_waiting(consumer)
    consumer.schedule_delivery()
