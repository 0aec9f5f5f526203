"""Removes messages from a stream: limits, age, rollups, purges, deletions.

Limits on the whole stream are enforced once per commit (before the frame closes and before anything is shown), the limit
per subject with each message, because it decides what the next message replaces. Every removal here notifies the
stream's consumers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.streams import delete_markers, purge
from headrace.broker.streams.ttl import SECOND_NS, TTL_EXEMPT, MaxAgeIndex, TtlIndex
from headrace.code_probes import sometimes
from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import subjects
from headrace.storage.log import bulk_trim

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import InterestContext, StreamContext
    from headrace.broker.timers import TimerHandle

_LOOKAHEAD = 1024
#: Maximum number of messages that one slice removes, so that no client waits long; with markers each costs far more.
#: A turn of the event loop may contain several slices: a sweep, a commit and requests each do one.
_SLICE = 8_192
_MARKED_SLICE = 64
#: Maximum number of the oldest messages that one slice removes, which costs least.
_PREFIX_SLICE = 32_768
#: Maximum number of rows that one slice searches for messages beyond the limit per subject.
_SEARCH_ROWS = 8_192
#: Sweeps run on a grid of 100 ms: never early, and well within the promised 250 ms.
_GRID_NS = 100_000_000
_NO_DEADLINE = 1 << 63


class Retention:
    """Removes messages from one stream."""

    __slots__ = (
        "_bytes_max",
        "_call_soon",
        "_clock",
        "_consumer_set",
        "_log",
        "_max_age_index",
        "_messages_max",
        "_next_expiry_ns",
        "_stream",
        "_subject_max",
        "_subject_trim_seq",
        "_sweep_scheduled",
        "_timer",
        "_timer_at_ns",
        "_timers",
        "_ttl_index",
        "expires_messages",
    )

    def __init__(self, stream: StreamContext, consumer_set: InterestContext) -> None:
        self._stream = stream
        self._log = stream.log
        self._clock = stream.clock
        self._timers = stream.jetstream.timers
        self._call_soon = stream.jetstream.call_soon
        self._consumer_set = consumer_set
        self.expires_messages = False
        self._timer: TimerHandle | None = None
        self._sweep_scheduled = False
        self._timer_at_ns = self._next_expiry_ns = _NO_DEADLINE
        self._max_age_index: MaxAgeIndex | None = None
        self._ttl_index: TtlIndex | None = None
        self._messages_max = self._bytes_max = self._subject_max = 0
        self._subject_trim_seq = (
            0  # from where on messages are checked against a lower limit per subject; 0: nowhere
        )

    def configure(self, config: StreamConfig) -> None:
        """Apply new limits; lower ones take effect at once."""
        old_subject_max = self._subject_max
        discards_new = config.discard == "new"
        self._messages_max = 0 if discards_new else max(config.max_msgs, 0)
        self._bytes_max = 0 if discards_new else max(config.max_bytes, 0)
        self._subject_max = max(config.max_msgs_per_subject, 0)
        if self._subject_max and (not old_subject_max or self._subject_max < old_subject_max):
            self._subject_trim_seq = 1
        self.expires_messages = bool(config.max_age or config.allow_msg_ttl)
        log = self._log
        self._max_age_index = (
            MaxAgeIndex(log, config.max_age, allow_msg_ttl=config.allow_msg_ttl) if config.max_age else None
        )
        if config.allow_msg_ttl and self._ttl_index is None:
            self._ttl_index = TtlIndex(log)
        self._next_expiry_ns = 0

    def has_interest(self, subject: bytes) -> bool:
        """Whether a consumer of an interest stream wants this subject; always true for other streams."""
        config = self._stream.config
        return config.retention != "interest" or self._consumer_set.has_interest(subject)

    # Removal

    def remove(self, seqs: np.ndarray | Sequence[int]) -> int:
        """Remove messages; return how many existed."""
        stream = self._stream
        if self._consumer_set.has_keyed:
            self._consumer_set.before_removal(seqs)
        removed = stream.log.remove_many(seqs)
        if removed and stream.consumers:
            stream.on_messages_removed(seqs)
        return removed

    def remove_one(self, seq: int) -> bool:
        """Remove one message; return whether it existed."""
        stream = self._stream
        if self._consumer_set.has_keyed:
            self._consumer_set.before_removal((seq,))
        removed = stream.log.remove(seq)
        if removed and stream.consumers:
            stream.on_messages_removed((seq,))
        return removed

    def remove_below(self, seq: int) -> int:
        """Remove everything older than `seq`."""
        log, consumer_set = self._log, self._consumer_set
        if not self._stream.consumers:
            return log.remove_below(seq)
        if seq > log.last_seq or seq - log.first_seq > _PREFIX_SLICE:  # do not list millions of messages
            consumer_set.before_trim(seq)
            removed = log.remove_below(seq)
            consumer_set.on_trimmed(seq)
            return removed
        removed_seqs = log.find_seqs(None, log.first_seq, seq - 1)
        consumer_set.before_removal(removed_seqs)
        removed = log.remove_below(seq)
        self._stream.on_messages_removed(removed_seqs)
        return removed

    # Limits

    def enforce(self) -> None:
        """Remove acknowledged and expired messages and enforce limits, before state is shown.

        A commit has done so already, unless the stream has changed since. A backlog larger than a slice is left to the
        sweep, which runs on.
        """
        if self._next_expiry_ns != _NO_DEADLINE:
            self.expire_slice(self._clock.wall_ns())
        stream = self._stream
        if stream.fast_path.dirty:
            self.apply_limits()

    def apply_limits(self) -> None:
        """Remove acknowledged messages, and the oldest ones beyond the limits, at most a slice of them."""
        if self._consumer_set.remove_acked():
            self._schedule_sweep()
        log = self._log  # the checks of `is_over_limit`, inline: this runs for every commit
        if 0 < self._messages_max < log.messages or 0 < self._bytes_max < log.bytes or self._subject_trim_seq:
            self._apply_slice()
            if self.is_over_limit():
                self._schedule_sweep()

    def is_over_limit(self) -> bool:
        """Return whether a limit that was lowered has not been reached yet."""
        log = self._log
        return (
            0 < self._messages_max < log.messages
            or (0 < self._bytes_max < log.bytes and log.messages > 0)
            or self._subject_trim_seq > 0
        )

    def _apply_slice(self) -> None:
        log = self._log
        if self._messages_max and log.messages > self._messages_max:
            self._remove_oldest(min(log.messages - self._messages_max, _PREFIX_SLICE))
        if self._bytes_max and log.bytes > self._bytes_max and log.messages:
            self.remove_below(bulk_trim.find_cut_for_bytes(log, log.bytes - self._bytes_max, _PREFIX_SLICE))
        if self._subject_trim_seq:
            seqs, self._subject_trim_seq = bulk_trim.find_over_subject_limit(
                log, self._subject_max, self._subject_trim_seq, _SEARCH_ROWS
            )
            self.remove(seqs)

    def trim_subject(self, subject: bytes) -> None:
        """Remove the oldest messages of a subject beyond its limit."""
        self._trim_to_newest(subject, self._subject_max)

    def _trim_to_newest(self, subject: bytes, limit: int) -> None:
        stream = self._stream
        if self._consumer_set.has_keyed:  # they must know before
            while stream.log.get_subject_count(subject) > limit:
                self.remove_one(stream.log.get_first_seq(subject))
            return
        trim = stream.log.trim_oldest
        while seq := trim(subject, limit):
            if seq < 0:
                self.remove_one(stream.log.get_first_seq(subject))
            elif stream.consumers:
                stream.on_messages_removed((seq,))

    def _remove_oldest(self, count: int) -> None:
        log = self._log
        while count > 0:
            oldest = log.find_seqs(None, log.first_seq, log.first_seq + max(count, _LOOKAHEAD))[:count]
            self.remove_below(int(oldest[-1]) + 1)
            count -= len(oldest)

    def apply_rollup(self, subject: bytes, seq: int, *, everything: bool) -> None:
        """Remove the messages that message `seq` replaces, on its subject or in the whole stream."""
        if everything:
            self.remove_below(seq)
            return
        if subjects.is_literal(subject):
            self._trim_to_newest(subject, 1)
        else:  # a wildcard in a published subject is an ordinary token, except in a purge
            log = self._log
            self.remove(log.find_seqs(log.get_filter((subject,)), log.first_seq, seq - 1))

    # Expiry

    def after_append(self, subject: bytes, seq: int, time_ns: int, ttl_s: int) -> None:
        """Track the age of a stored message and apply the limit per subject."""
        if self.expires_messages:
            self.track_expiry(seq, time_ns, ttl_s)
        if self._subject_max:
            self.trim_subject(subject)

    def track_expiry(self, seq: int, time_ns: int, ttl_s: int) -> None:
        """Record when a stored message expires."""
        deadline = _NO_DEADLINE
        max_age = self._max_age_index
        if max_age is not None and not (max_age.allow_msg_ttl and ttl_s == TTL_EXEMPT):
            max_age.add(seq, time_ns)
            deadline = time_ns + max_age.max_age_ns
        if 0 < ttl_s < TTL_EXEMPT and self._ttl_index is not None:
            ttl_deadline = time_ns + ttl_s * SECOND_NS
            self._ttl_index.add(seq, ttl_deadline)
            deadline = min(deadline, ttl_deadline)
        if deadline < self._next_expiry_ns:
            self._next_expiry_ns = deadline
            self._arm_timer()

    def expire_due(self, now_ns: int) -> None:
        """Remove everything that has expired, before state is shown."""
        while self._next_expiry_ns <= now_ns:
            self._expire_some(now_ns)

    def expire_slice(self, now_ns: int) -> None:
        """Remove some of what has expired, before a publish is checked; the sweep removes the rest."""
        if self._next_expiry_ns <= now_ns:
            self._expire_some(now_ns)
            self._arm_timer()

    def _sweep(self) -> None:
        """Remove a slice when the timer fires, and leave the rest to the next turn."""
        self._timer = None
        self._timer_at_ns = _NO_DEADLINE
        now_ns = self._clock.wall_ns()
        if self._next_expiry_ns <= now_ns:
            self._expire_some(now_ns)
        if self.is_over_limit():
            self._apply_slice()
            self._stream.mark_dirty()
        has_unneeded = self._consumer_set.remove_acked()
        if has_unneeded:
            self._stream.mark_dirty()
        if has_unneeded or self._next_expiry_ns <= now_ns or self.is_over_limit():
            self._schedule_sweep()
        else:
            self._arm_timer()

    def _schedule_sweep(self) -> None:
        """Continue at the end of this turn of the event loop."""
        if not self._sweep_scheduled:
            self._sweep_scheduled = True
            self._call_soon(self._run_scheduled_sweep)

    def _run_scheduled_sweep(self) -> None:
        self._sweep_scheduled = False
        if not self._stream.closed:
            self.stop()
            self._sweep()

    def _expire_some(self, now_ns: int) -> None:
        config = self._stream.config
        limit = _MARKED_SLICE if config.subject_delete_marker_ttl > 0 else _SLICE
        for expiry_index in (self._ttl_index, self._max_age_index):
            if expiry_index is not None:
                due = expiry_index.pop_due(now_ns, limit)
                if len(due):
                    self._remove_expired(due)
        deadlines = [
            expiry_index.next_ns()
            for expiry_index in (self._ttl_index, self._max_age_index)
            if expiry_index is not None
        ]
        self._next_expiry_ns = min((deadline for deadline in deadlines if deadline), default=_NO_DEADLINE)

    def _remove_expired(self, seqs: np.ndarray) -> None:
        stream = self._stream
        places_markers = stream.config.subject_delete_marker_ttl > 0
        count = (
            delete_markers.remove_all_with_markers(stream, seqs, "MaxAge")
            if places_markers
            else self.remove(seqs)
        )
        if count:
            stream.record_event("expired", f"{count} expired", count)
        stream.mark_dirty()

    def _arm_timer(self) -> None:
        """Arm the timer for the next deadline, rounded up to the grid."""
        if self._next_expiry_ns == _NO_DEADLINE:
            return
        timer_at_ns = -(-self._next_expiry_ns // _GRID_NS) * _GRID_NS
        if timer_at_ns >= self._timer_at_ns:
            return
        self.stop()
        self._timer_at_ns = timer_at_ns
        self._timer = self._timers.at_wall_time(timer_at_ns, self._sweep)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ns = _NO_DEADLINE

    def start(self) -> None:
        """Before the stream is served, remove everything that expired or is beyond a limit: nobody ever sees it."""
        log = self._log
        before = (log.messages, log.last_seq)
        self.expire_due(self._clock.wall_ns())
        self.apply_limits()
        while self.is_over_limit():
            self._apply_slice()
        if (log.messages, log.last_seq) != before:
            sometimes("expired while the server was down")
        self._arm_timer()
        self._stream.mark_dirty()

    def iter_enforce(self) -> Iterator[None]:
        """Enforce a new configuration: yield until the sweep has removed everything beyond it."""
        self._stream.mark_dirty()
        self.enforce()
        while not self._stream.closed and (
            self.is_over_limit() or self._next_expiry_ns <= self._clock.wall_ns()
        ):
            self._schedule_sweep()
            yield
        self._arm_timer()

    # Requests

    def purge(self, pattern: bytes, seq: int, keep: int) -> int:
        """Purge at once, as `iter_purge` does in slices; for few messages."""
        steps = self.iter_purge(pattern, seq, keep)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                return int(finished.value)

    def iter_purge(self, pattern: bytes, seq: int, keep: int) -> Generator[None, None, int]:
        """Remove messages below `seq`, or all but the newest `keep`, or all; only those that match `pattern`.

        Works in slices, and returns how many messages it removed. Consumers get no advisories for them.
        """
        consumer_set, purged = self._consumer_set, 0
        slices = purge.iter_slices(self._stream, pattern, seq, keep)
        while True:
            consumer_set.suppress_advisories = True
            removed = next(slices, None)
            consumer_set.suppress_advisories = False
            if removed is None:
                break
            purged += removed
            yield
        consumer_set.on_purge()
        return purged

    def delete_message(self, seq: int) -> None:
        """Remove one message."""
        stream = self._stream
        if stream.config.storage == "memory" and not stream.log.first_seq <= seq <= stream.log.last_seq:
            raise ApiError.SEQUENCE_NOT_FOUND(seq=seq)
        if seq > stream.log.last_seq:
            raise ApiError.STREAM_MSG_DELETE_FAILED(err="stream store EOF")
        if delete_markers.is_enabled_for(stream, "Remove"):
            removed = delete_markers.remove_with_marker(stream, seq, "Remove")
        else:
            removed = self.remove_one(seq)
        if not removed:
            if seq < stream.log.first_seq:
                raise ApiError.STREAM_MSG_DELETE_FAILED(err="no message found")
            raise ApiError.SEQUENCE_NOT_FOUND(seq=seq)
