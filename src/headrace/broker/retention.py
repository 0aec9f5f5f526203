"""What leaves a stream, and why: limits, age, roll-ups, purges, deletions.

Limits on the whole stream are kept once a tick (before the frame closes and before anything is shown), the limit per
subject with each message, because it decides what the next message replaces. Every removal goes through `drop` or
`drop_below`, so that consumers hear of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.api import errors
from headrace.api.configs import StreamConfig
from headrace.broker import markers
from headrace.broker.expiry import NEVER, SECOND_NS, Ages, Deadlines
from headrace.probes import probe
from headrace.protocol import subjects

if TYPE_CHECKING:
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Handle

_LOOK_AHEAD = 1024
#: A sweep removes this many at a time, so that publishers never wait long for it.
_SLICE = 16_384
_MARKED_SLICE = 1_024
#: Sweeps come on a grid of a tenth of a second: never early, and well within the quarter second promised.
_GRID_NS = 100_000_000
_FAR_FUTURE = 1 << 63


class Retention:
    """Removal from one stream."""

    __slots__ = (
        "_ages",
        "_alarm",
        "_alarm_ns",
        "_bytes_max",
        "_deadlines",
        "_messages_max",
        "_next_ns",
        "_stream",
        "_subject_max",
    )

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._alarm: Handle | None = None
        self._alarm_ns = self._next_ns = _FAR_FUTURE
        self._ages: Ages | None = None
        self._deadlines: Deadlines | None = None
        self._messages_max = self._bytes_max = self._subject_max = 0

    def configure(self, config: StreamConfig) -> None:
        """Take new limits; lower ones bite at once."""
        old_subject_max = self._subject_max
        keeps_oldest = config.discard == "new"
        self._messages_max = 0 if keeps_oldest else max(config.max_msgs, 0)
        self._bytes_max = 0 if keeps_oldest else max(config.max_bytes, 0)
        self._subject_max = max(config.max_msgs_per_subject, 0)
        if self._subject_max and (not old_subject_max or self._subject_max < old_subject_max):
            self._trim_all_subjects()
        log = self._stream.log
        self._ages = Ages(log, config.max_age) if config.max_age else None
        if config.allow_msg_ttl and self._deadlines is None:
            self._deadlines = Deadlines(log, self._stream.jetstream.clock_ns())
        self._next_ns = 0

    def wanted(self, subject: bytes) -> bool:
        """Whether an interest stream has anybody for this subject; other streams keep everything."""
        if self._stream.config.retention != "interest":
            return True
        return self._stream.readers.wants(subject)

    # Removal itself

    def drop(self, seqs: np.ndarray | Sequence[int]) -> int:
        """Remove these; how many were there."""
        stream = self._stream
        removed = stream.log.remove_many(seqs)
        if removed and stream.consumers:
            stream.forget(seqs)
        return removed

    def drop_one(self, seq: int) -> bool:
        """Remove one message; whether it was there."""
        stream = self._stream
        removed = stream.log.remove(seq)
        if removed and stream.consumers:
            stream.forget((seq,))
        return removed

    def drop_below(self, seq: int) -> int:
        """Remove everything older than `seq`."""
        stream = self._stream
        log = stream.log
        gone = log.seqs(None, log.first_seq, seq - 1) if stream.consumers else None
        removed = log.remove_below(seq)
        if gone is not None and len(gone):
            stream.forget(gone)
        return removed

    # Limits

    def enforce(self) -> None:
        """Remove what is done with or overdue, and make room: for whoever is about to look."""
        if self._next_ns != _FAR_FUTURE:
            self.expire(self._stream.jetstream.clock_ns())
        self.make_room()

    def make_room(self) -> None:
        """Remove what is done with, and the oldest where there are too many."""
        self._stream.readers.settle()
        log = self._stream.log
        if self._messages_max and log.messages > self._messages_max:
            self._drop_oldest(log.messages - self._messages_max)
        while self._bytes_max and log.bytes > self._bytes_max and log.messages:
            self.drop_below(log.next(None, log.first_seq) + 1)

    def trim_subject(self, subject: bytes) -> None:
        """Keep only the newest messages of a subject, as many as are allowed."""
        self._keep_newest(subject, self._subject_max)

    def _keep_newest(self, subject: bytes, most: int) -> None:
        stream = self._stream
        trim = stream.log.trim
        while seq := trim(subject, most):
            if seq < 0:
                self.drop_one(stream.log.first_of(subject))
            elif stream.consumers:
                stream.forget((seq,))

    def _drop_oldest(self, count: int) -> None:
        log = self._stream.log
        while count > 0:
            oldest = log.seqs(None, log.first_seq, log.first_seq + max(count, _LOOK_AHEAD))[:count]
            self.drop_below(int(oldest[-1]) + 1)
            count -= len(oldest)

    def _trim_all_subjects(self) -> None:
        crowded = [s for s, count in self._stream.log.subjects(None) if count > self._subject_max]
        for subject in crowded:
            self.trim_subject(subject)
        if crowded:
            self._stream.changed()

    def roll_up(self, subject: bytes, seq: int, *, everything: bool) -> None:
        """Message `seq` replaces what came before it, on its subject or in the whole stream."""
        if everything:
            self.drop_below(seq)
            return
        if subjects.literal(subject):
            self._keep_newest(subject, 1)
        else:  # a wildcard in a published subject is a name like any other, except to a purge
            log = self._stream.log
            self.drop(log.seqs(log.filter((subject,)), log.first_seq, seq - 1))

    # Age

    def note(self, seq: int, time_ns: int, ttl_s: int) -> None:
        """A message was stored: remember when it has to go."""
        deadline = _FAR_FUTURE
        if self._ages is not None and ttl_s != NEVER:
            deadline = time_ns + self._ages.max_age_ns
        if 0 < ttl_s < NEVER and self._deadlines is not None:
            own = time_ns + ttl_s * SECOND_NS
            self._deadlines.add(seq, own)
            deadline = min(deadline, own)
        if deadline < self._next_ns:
            self._next_ns = deadline
            self._set_alarm()

    def expire(self, now_ns: int) -> None:
        """Everything that is overdue goes now, because somebody is about to look."""
        while self._next_ns <= now_ns:
            self._expire_some(now_ns)

    def expire_slice(self, now_ns: int) -> None:
        """Some of what is overdue goes now, because somebody is about to decide; the sweep brings the rest."""
        if self._next_ns <= now_ns:
            self._expire_some(now_ns)
            self._set_alarm()

    def _sweep(self) -> None:
        """The alarm rang: remove a slice, and leave the rest to the next turn."""
        self._alarm = None
        self._alarm_ns = _FAR_FUTURE
        stream = self._stream
        now_ns = stream.jetstream.clock_ns()
        if self._next_ns <= now_ns:
            self._expire_some(now_ns)
        if self._next_ns <= now_ns:
            stream.jetstream.later(self._sweep)
        else:
            self._set_alarm()

    def _expire_some(self, now_ns: int) -> None:
        most = _MARKED_SLICE if self._stream.config.subject_delete_marker_ttl > 0 else _SLICE
        for source in (self._deadlines, self._ages):
            if source is not None:
                due = source.due(now_ns, most)
                if len(due):
                    self._remove_aged(due)
        moments = [source.next_ns() for source in (self._deadlines, self._ages) if source is not None]
        self._next_ns = min((moment for moment in moments if moment), default=_FAR_FUTURE)

    def _remove_aged(self, seqs: np.ndarray) -> None:
        stream = self._stream
        marked = stream.config.subject_delete_marker_ttl > 0
        count = markers.remove_all(stream, seqs, "MaxAge") if marked else self.drop(seqs)
        if count:
            now_ns = stream.jetstream.clock_ns()
            stream.jetstream.diary.note(now_ns, "expired", stream.name, f"{count} aged out", count)
        stream.changed()

    def _set_alarm(self) -> None:
        """Wake at the next deadline, rounded up to the grid."""
        if self._next_ns == _FAR_FUTURE:
            return
        alarm_ns = -(-self._next_ns // _GRID_NS) * _GRID_NS
        if alarm_ns >= self._alarm_ns:
            return
        self.stop()
        self._alarm_ns = alarm_ns
        self._alarm = self._stream.jetstream.timers.at(alarm_ns, self._sweep)

    def stop(self) -> None:
        """No more sweeps."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ns = _FAR_FUTURE

    def start(self) -> None:
        """After a restart or a new configuration: what is overdue goes before anybody looks."""
        log = self._stream.log
        before = (log.messages, log.last_seq)
        self.enforce()
        if (log.messages, log.last_seq) != before:
            probe("a life ended while nobody served")
        self._set_alarm()
        self._stream.changed()

    # On request

    def purge(self, pattern: bytes, seq: int, keep: int) -> int:
        """Remove below `seq`, or all but the newest `keep`, or everything; of matching subjects only."""
        readers = self._stream.readers
        readers.quiet = True
        try:
            purged = self._purge(pattern, seq, keep)
        finally:
            readers.quiet = False
        readers.purged()
        return purged

    def _purge(self, pattern: bytes, seq: int, keep: int) -> int:
        stream = self._stream
        log = stream.log
        marked = markers.wanted_for(stream, "Purge")
        if marked or (pattern and pattern != b">"):
            wanted = log.filter((pattern,)) if pattern else None
            victims = log.seqs(wanted, log.first_seq, min(seq - 1, log.last_seq) if seq else log.last_seq)
            probe("a purge of some subjects")
            victims = victims[:-keep] if keep else victims
            return markers.remove_all(stream, victims, "Purge") if marked else self.drop(victims)
        if keep:
            probe("a purge that keeps some")
            return self._purge_keeping(keep)
        below = seq or log.last_seq + 1
        purged = self.drop_below(below)
        if below > log.last_seq + 1:
            log.advance(below - 1)
        return purged

    def _purge_keeping(self, keep: int) -> int:
        log = self._stream.log
        if keep >= log.messages:
            return 0
        live = log.seqs(None, log.first_seq, log.last_seq)
        return self.drop_below(int(live[-keep]))

    def delete(self, seq: int) -> None:
        """Remove one message."""
        stream = self._stream
        if seq > stream.log.last_seq:
            raise errors.error(10057, err="stream store EOF")
        if markers.wanted_for(stream, "Remove"):
            removed = markers.remove_with_marker(stream, seq, "Remove")
        else:
            removed = self.drop_one(seq)
        if not removed:
            if seq < stream.log.first_seq:
                raise errors.error(10057, err="no message found")
            raise errors.error(10043, seq=seq)
