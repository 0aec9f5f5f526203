"""Where a new consumer starts: the deliver policy against what the stream holds."""

from __future__ import annotations

from headrace.api import times
from headrace.api.configs import ConsumerConfig, StreamConfig
from headrace.broker.progress import Progress
from headrace.store import Filter, Log


def starting(config: ConsumerConfig, stream: StreamConfig, log: Log, wanted: Filter | None) -> Progress:
    """The progress of a consumer that has delivered nothing yet."""
    if config.deliver_policy == "last_per_subject" and stream.max_msgs_per_subject != 1:
        return _last_ones(log, wanted)
    seq = _first(config, log, wanted)
    if not log.last_seq and log.first_seq <= 1 and not config.opt_start_seq:
        seq = 1
    elif not config.opt_start_seq:
        seq = min(seq, log.last_seq + 1)
    return Progress(max(seq, log.first_seq))


def _first(config: ConsumerConfig, log: Log, wanted: Filter | None) -> int:
    policy = config.deliver_policy
    if policy == "last":
        return log.last_seq if wanted is None else log.prev(wanted, log.last_seq)
    if policy == "new":
        return log.last_seq + 1
    if policy == "by_start_sequence":
        return config.opt_start_seq
    if policy == "by_start_time" and config.opt_start_time is not None:
        return log.seq_at(times.nanos(config.opt_start_time)) or log.last_seq + 1
    return log.first_seq


def _last_ones(log: Log, wanted: Filter | None) -> Progress:
    """The last message of every subject, then everything new."""
    seqs = log.last_per_subject(wanted, log.last_seq)
    if not log.last_seq:
        return Progress(1)
    progress = Progress(int(seqs[0]) if len(seqs) else log.last_seq)
    if len(seqs):
        progress.initial, progress.resume = seqs, log.last_seq
    else:
        progress.next_seq = log.last_seq + 1
    return progress
