"""Expiry: finds messages that reached the end of their `Nats-TTL` or of the stream's `max_age`.

Messages due soon are in buckets of about a second, as (deadline, sequence) pairs; later ones cost no memory except one
bound per run of 65,536 sequences that has messages: nothing in the run is due before it. When that time comes near, the
rows of the run are read from the log's columns. So a message costs O(1), and memory grows with the rate, not with the
number of messages. Sequences without a message cost neither time nor memory. Nothing is removed early; a reader that
calls `Retention.enforce` first never sees anything overdue.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.storage.sequence_arrays import sort_unique

if TYPE_CHECKING:
    from headrace.storage import StreamLog

U64Array = NDArray[np.uint64]

TTL_EXEMPT = 0xFFFF_FFFF
SECOND_NS = 1_000_000_000
#: Messages due within the window are sorted into buckets of this width (2**30 ns).
_BUCKET_BITS = 30
_WINDOW_NS = 8 << _BUCKET_BITS
_RUN_BITS = 16
_NO_DEADLINE = 1 << 63


class TtlIndex:
    """The deadlines of messages with a `Nats-TTL`."""

    __slots__ = ("_buckets", "_due_position", "_due_seqs", "_due_times", "_log", "_runs", "_window_end")

    def __init__(self, log: StreamLog, now_ns: int) -> None:
        """Read the log: after a restart, or when TTLs are enabled."""
        self._log = log
        self._buckets: dict[int, array[int]] = {}
        self._runs: dict[int, int] = {}
        self._due_times = np.empty(0, np.uint64)
        self._due_seqs = np.empty(0, np.uint64)
        self._due_position = 0
        self._window_end = now_ns
        seq = log.find_next(None, log.first_seq)
        while seq:
            self._runs[seq >> _RUN_BITS] = 0
            seq = log.find_next(None, ((seq >> _RUN_BITS) + 1) << _RUN_BITS)

    def add(self, seq: int, deadline_ns: int) -> None:
        """Add a stored message."""
        if deadline_ns < self._window_end:
            key = deadline_ns >> _BUCKET_BITS
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = array("Q")
            bucket.extend((deadline_ns, seq))
        else:
            run = seq >> _RUN_BITS
            if deadline_ns < self._runs.get(run, _NO_DEADLINE):
                self._runs[run] = deadline_ns

    def pop_due(self, now_ns: int, limit: int) -> U64Array:
        """Return sequences that are due, oldest deadline first, at most `limit`; some may already be gone."""
        if now_ns >= self._window_end:
            self._advance_window(now_ns)
        current = now_ns >> _BUCKET_BITS
        for key in sorted(key for key in self._buckets if key <= current):
            self._merge_bucket(self._buckets.pop(key))
        end = int(np.searchsorted(self._due_times, np.uint64(now_ns), "right"))
        end = min(end, self._due_position + limit)
        found = self._due_seqs[self._due_position : end]
        self._due_position = end
        return found

    def next_ns(self) -> int:
        """Return when to check again, never later than the next deadline; 0 if there is none."""
        if self._due_position < len(self._due_times):
            return int(self._due_times[self._due_position])
        candidates = [min(self._buckets) << _BUCKET_BITS] if self._buckets else []
        if self._runs:
            candidates.append(max(min(self._runs.values()), self._window_end))
        return min(candidates, default=0)

    def _merge_bucket(self, bucket: array[int]) -> None:
        """Merge a bucket whose second has begun with what is left, in order."""
        pairs = np.frombuffer(bucket, np.uint64).reshape(-1, 2)
        times = np.concatenate([self._due_times[self._due_position :], pairs[:, 0]])
        seqs = np.concatenate([self._due_seqs[self._due_position :], pairs[:, 1]])
        order = np.argsort(times, kind="stable")
        self._due_times, self._due_seqs, self._due_position = times[order], seqs[order], 0

    def _advance_window(self, now_ns: int) -> None:
        """Move the window to now, and load what is due within it from the columns."""
        self._window_end = now_ns + _WINDOW_NS
        for run in [run for run, bound in self._runs.items() if bound < self._window_end]:
            self._load_run(run)

    def _load_run(self, run: int) -> None:
        seqs, times, ttls = self._log.find_times_and_ttls(run << _RUN_BITS, ((run + 1) << _RUN_BITS) - 1)
        has_ttl = (ttls > 0) & (ttls < TTL_EXEMPT)
        seqs = seqs[has_ttl]
        deadlines = times[has_ttl] + ttls[has_ttl].astype(np.uint64) * np.uint64(SECOND_NS)
        after_window = deadlines >= np.uint64(self._window_end)
        if after_window.any():
            self._runs[run] = int(deadlines[after_window].min())
        else:
            del self._runs[run]
        in_window = np.flatnonzero(~after_window)
        keys = deadlines[in_window] >> np.uint64(_BUCKET_BITS)
        for key in sort_unique(keys):
            rows = in_window[keys == key]
            bucket = self._buckets.setdefault(int(key), array("Q"))
            bucket.frombytes(np.column_stack((deadlines[rows], seqs[rows])).tobytes())


class MaxAgeIndex:
    """The stream's `max_age`; messages that never expire are skipped, if TTLs are enabled.

    Messages are usually in the order of their times, and taken from the front. Those that are older than one before
    them, because a clock was ahead, are known by runs: nothing of the kind in a run is due before its bound. Stored
    messages are searched for them run by run.
    """

    __slots__ = ("_log", "_newest_ns", "_next_seq", "_runs", "_search_seq", "allow_msg_ttl", "max_age_ns")

    def __init__(self, log: StreamLog, max_age_ns: int, *, allow_msg_ttl: bool) -> None:
        self._log = log
        self.max_age_ns = max_age_ns
        self.allow_msg_ttl = allow_msg_ttl
        self._next_seq = 0
        self._runs: dict[int, int] = {}
        self._newest_ns = 0
        self._search_seq = log.find_next(None, log.first_seq) if log.messages else 0

    def add(self, seq: int, time_ns: int) -> None:
        """Note a stored message."""
        if time_ns >= self._newest_ns:
            self._newest_ns = time_ns
        else:
            run, deadline_ns = seq >> _RUN_BITS, time_ns + self.max_age_ns
            if deadline_ns < self._runs.get(run, _NO_DEADLINE):
                self._runs[run] = deadline_ns

    def pop_due(self, now_ns: int, limit: int) -> U64Array:
        """Return sequences that are too old, at most about `limit`."""
        if self._search_seq:
            self._search_run()
        log = self._log
        first = max(self._next_seq, log.first_seq)
        seqs, times, ttls = log.find_times_and_ttls(first, first + limit - 1)
        old = times + np.uint64(self.max_age_ns) <= np.uint64(now_ns)
        stop = int(np.argmin(old)) if not old.all() else len(old)
        if stop < len(seqs):
            self._next_seq = int(seqs[stop])
        else:
            self._next_seq = log.find_next(None, first + limit) or log.last_seq + 1
        due: U64Array = seqs[:stop]
        if self.allow_msg_ttl:
            due = due[ttls[:stop] != TTL_EXEMPT]
        run = next((run for run, bound_ns in self._runs.items() if bound_ns <= now_ns), None)
        return due if run is None or len(due) else self._pop_due_of_run(run, now_ns, limit)

    def _find_run(self, run: int) -> tuple[U64Array, U64Array]:
        """Return the sequences of a run that can expire, and their times."""
        seqs, times, ttls = self._log.find_times_and_ttls(run << _RUN_BITS, ((run + 1) << _RUN_BITS) - 1)
        if self.allow_msg_ttl:
            can_expire = ttls != TTL_EXEMPT
            seqs, times = seqs[can_expire], times[can_expire]
        return seqs, times

    def _search_run(self) -> None:
        """Search the next run of stored messages for those that are older than one before them."""
        run = self._search_seq >> _RUN_BITS
        _, times = self._find_run(run)
        if len(times):
            newest = np.maximum.accumulate(np.concatenate((np.array([self._newest_ns], np.uint64), times)))
            late = times[times < newest[:-1]]
            self._newest_ns = int(newest[-1])
            if len(late):
                self._runs[run] = int(late.min()) + self.max_age_ns
        self._search_seq = self._log.find_next(None, (run + 1) << _RUN_BITS)

    def _pop_due_of_run(self, run: int, now_ns: int, limit: int) -> U64Array:
        """Return what is due in a run, and set the bound for the rest."""
        seqs, times = self._find_run(run)
        deadlines = times + np.uint64(self.max_age_ns)
        due: U64Array = seqs[deadlines <= np.uint64(now_ns)]
        later = deadlines[deadlines > np.uint64(now_ns)]
        if len(due) > limit:
            return due[:limit]
        if len(later):
            self._runs[run] = int(later.min())
        else:
            del self._runs[run]
        return due

    def next_ns(self) -> int:
        """Return when to look again, never later than the next deadline; 0 if there is none."""
        if self._search_seq:
            return 1
        log = self._log
        seq = log.find_next(None, max(self._next_seq, log.first_seq)) if log.messages else 0
        front_ns = log.get_time_ns(seq) + self.max_age_ns if seq else _NO_DEADLINE
        found = min(front_ns, min(self._runs.values(), default=_NO_DEADLINE))
        return found if found < _NO_DEADLINE else 0
