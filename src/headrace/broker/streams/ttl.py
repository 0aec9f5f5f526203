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
_NOTHING: U64Array = np.empty(0, np.uint64)


class _DueRun:
    """Sequences in the order of their deadlines; those before `position` were taken."""

    __slots__ = ("position", "seqs", "times")

    def __init__(self, times: U64Array, seqs: U64Array) -> None:
        order = np.argsort(times, kind="stable")
        self.times: U64Array = times[order]
        self.seqs: U64Array = seqs[order]
        self.position = 0

    def __len__(self) -> int:
        return len(self.times) - self.position

    def merge(self, other: _DueRun) -> _DueRun:
        """Return a run with what is left of both."""
        return _DueRun(
            np.concatenate([self.times[self.position :], other.times[other.position :]]),
            np.concatenate([self.seqs[self.position :], other.seqs[other.position :]]),
        )


class TtlIndex:
    """The deadlines of messages with a `Nats-TTL`.

    `_window_end`: everything due before it is in a bucket or in `_due`. At that time the next window is loaded, a run of
    sequences per call; `_unloaded` are the runs that are still missing from it.
    """

    __slots__ = ("_buckets", "_due", "_log", "_next_window_end", "_runs", "_unloaded", "_window_end")

    def __init__(self, log: StreamLog) -> None:
        """Read the log: after a restart, or when TTLs are enabled."""
        self._log = log
        self._buckets: dict[int, array[int]] = {}
        self._runs: dict[int, int] = {}
        self._due: list[_DueRun] = []
        self._window_end = self._next_window_end = 0
        self._unloaded: set[int] = set()
        seq = log.find_next(None, log.first_seq)
        while seq:
            self._runs[seq >> _RUN_BITS] = 0
            seq = log.find_next(None, ((seq >> _RUN_BITS) + 1) << _RUN_BITS)

    def add(self, seq: int, deadline_ns: int) -> None:
        """Add a stored message."""
        run = seq >> _RUN_BITS
        if deadline_ns < self._window_end or (
            deadline_ns < self._next_window_end and run not in self._unloaded
        ):
            key = deadline_ns >> _BUCKET_BITS
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = array("Q")
            bucket.extend((deadline_ns, seq))
        elif deadline_ns < self._runs.get(run, _NO_DEADLINE):
            self._runs[run] = deadline_ns

    def pop_due(self, now_ns: int, limit: int) -> U64Array:
        """Return sequences that are due, oldest deadline first, at most `limit`; some may already be gone."""
        if now_ns >= self._window_end:
            self._load_next_run(now_ns)
        current = now_ns >> _BUCKET_BITS
        for key in sorted(key for key in self._buckets if key <= current):
            self._add_due(self._buckets.pop(key))
        return self._take_due(now_ns, limit)

    def next_ns(self) -> int:
        """Return when to check again, never later than the next deadline; 0 if there is none."""
        if self._unloaded:
            return 1
        candidates = [int(run.times[run.position]) for run in self._due]
        if self._buckets:
            candidates.append(min(self._buckets) << _BUCKET_BITS)
        if self._runs:
            candidates.append(max(min(self._runs.values()), self._window_end, 1))
        return min(candidates, default=0)

    def _add_due(self, bucket: array[int]) -> None:
        """Add a bucket whose second has begun.

        Each run is more than twice as long as the next one, so there are few of them, and merging costs little.
        """
        pairs = np.frombuffer(bucket, np.uint64).reshape(-1, 2)
        added = _DueRun(pairs[:, 0], pairs[:, 1])
        while self._due and len(self._due[-1]) <= 2 * len(added):
            added = self._due.pop().merge(added)
        self._due.append(added)

    def _take_due(self, now_ns: int, limit: int) -> U64Array:
        ends = [
            min(int(np.searchsorted(run.times, np.uint64(now_ns), "right")), run.position + limit)
            for run in self._due
        ]
        counts = [end - run.position for run, end in zip(self._due, ends, strict=True)]
        parts = [run.seqs[run.position : end] for run, end in zip(self._due, ends, strict=True)]
        if sum(map(bool, counts)) > 1:
            times = [run.times[run.position : end] for run, end in zip(self._due, ends, strict=True)]
            oldest = np.argsort(np.concatenate(times), kind="stable")[:limit]
            parts = [np.concatenate(parts)[oldest]]
            owners = np.repeat(np.arange(len(counts)), counts)[oldest]
            counts = np.bincount(owners, minlength=len(counts)).tolist()
        for run, count in zip(self._due, counts, strict=True):
            run.position += count
        self._due = [run for run in self._due if len(run)]
        return next((part for part in parts if len(part)), _NOTHING)

    def _load_next_run(self, now_ns: int) -> None:
        """Load one run for the next window, which begins when all of them are loaded."""
        if not self._unloaded:
            self._next_window_end = now_ns + _WINDOW_NS
            self._unloaded = {run for run, bound in self._runs.items() if bound < self._next_window_end}
        if self._unloaded:
            self._load_run(self._unloaded.pop())
        if not self._unloaded:
            self._window_end = self._next_window_end

    def _load_run(self, run: int) -> None:
        """Load what is due in the next window; what is due before it is known already."""
        seqs, times, ttls = self._log.find_times_and_ttls(run << _RUN_BITS, ((run + 1) << _RUN_BITS) - 1)
        has_ttl = (ttls > 0) & (ttls < TTL_EXEMPT)
        seqs = seqs[has_ttl]
        deadlines = times[has_ttl] + ttls[has_ttl].astype(np.uint64) * np.uint64(SECOND_NS)
        after_window = deadlines >= np.uint64(self._next_window_end)
        if after_window.any():
            self._runs[run] = int(deadlines[after_window].min())
        else:
            del self._runs[run]
        in_window = np.flatnonzero(~after_window & (deadlines >= np.uint64(self._window_end)))
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
