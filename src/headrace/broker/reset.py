"""Resetting a consumer: back to its ack floor, or to a sequence that its configuration allows (seed 2, reset.md).

Owns which sequence that is and what follows. Everything delivered is forgotten; configuration, pause, pin, waiting pull
requests and the flow-control window stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.api import errors, times
from headrace.broker.progress_codec import EMPTY, Seqs
from headrace.errors import RequestError
from headrace.probes import probe

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer


def reset(consumer: Consumer, seq: int | None) -> int:
    """Reset to a sequence, or to the ack floor without one; the sequence it was reset to."""
    progress = consumer.progress
    consumer.stream.readers.settle()  # what was done before the reset is done
    set_left: Seqs = EMPTY
    resume = progress.resume
    if seq is None:
        probe("reset to what is acknowledged")
        target = progress.true_floor()[1] + 1
        set_left = _unfinished(consumer, target)
    else:
        _check(consumer, seq)
        target = seq
    progress.restart(target)
    if len(set_left):
        progress.initial, progress.resume = set_left, resume
    _settle(consumer)
    return target


def _check(consumer: Consumer, seq: int) -> None:
    """Refuse what lies before the configured start, and policies that have no such start."""
    config = consumer.config
    if not seq:
        raise _refused("sequence must be > 0")
    if config.deliver_policy == "by_start_sequence":
        if seq < config.opt_start_seq:
            raise _refused("below start seq")
    elif config.deliver_policy == "by_start_time" and config.opt_start_time is not None:
        log = consumer.stream.log
        following = log.next(None, seq)
        if following and log.time_of(following) < times.nanos(config.opt_start_time):
            raise _refused("below start time")
        if not following and seq <= log.last_seq:
            raise _refused("below start time")
    elif config.deliver_policy != "all":
        raise _refused("not allowed")


def _refused(why: str) -> RequestError:
    return errors.error(10204, err=why)


def _unfinished(consumer: Consumer, target: int) -> Seqs:
    """Of the last messages per subject at the start: those pending and those not delivered yet.

    The reference loses the pending ones here; the seed wants pending messages delivered again.
    """
    progress = consumer.progress
    if not len(progress.initial):
        return EMPTY
    pending = np.fromiter(progress.pending, dtype=np.uint64, count=len(progress.pending))
    found: Seqs = np.union1d(pending, progress.initial)
    return found[found >= target]


def _settle(consumer: Consumer) -> None:
    """Make the new state durable, let go of what was skipped, deliver at once."""
    stream = consumer.stream
    if consumer.durable:
        consumer.save()
        stream.changed()
    if stream.config.retention == "interest":
        stream.readers.release_all(consumer.filter)
    stream.readers.sated(consumer)
    consumer.wake()
