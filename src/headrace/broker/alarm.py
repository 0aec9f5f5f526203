"""A consumer's alarm: one timer, set to the earliest moment at which any of its parts has something to do.

Owns that timer and the rules of inactivity. A timer that rings too early looks and is set again, so progress that pushes a
moment away costs nothing.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headrace.broker.delivery import Verdict
from headrace.broker.push import Push
from headrace.probes import probe

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer
    from headrace.broker.timers import Handle

_MILLISECOND = 1_000_000
_DEFAULT_IDLE_NS = 5_000 * _MILLISECOND


class Alarm:
    """The timer of one consumer."""

    __slots__ = ("_at_ns", "_consumer", "_jitter_ns", "_timer")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._timer: Handle | None = None
        self._at_ns = 0
        # The reference adds some, so that many consumers of one client do not vanish at the same moment.
        self._jitter_ns = random.randrange(100, 1000) * _MILLISECOND

    def set(self) -> None:
        """Ring at the next moment, unless it rings before."""
        moment = self._next()
        if not moment or (self._timer is not None and self._at_ns <= moment):
            return
        self.cancel()
        self._at_ns = moment
        self._timer = self._consumer.jetstream.timers.at_own(moment, self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> int:
        consumer = self._consumer
        pace = consumer.pump.pace
        moments = (
            consumer.progress.deadlines.next() if consumer.progress.pending else 0,
            consumer.outlet.next_look(),
            consumer.pause_ns + consumer.jetstream.timers.behind_ns if consumer.pause_ns else 0,
            pace.at_ns if consumer.verdict is Verdict.LATER else 0,
            self._idle_deadline(),
        )
        return min((moment for moment in moments if moment), default=0)

    def _ring(self) -> None:
        self._timer = None
        consumer = self._consumer
        now_ns = consumer.now_ns()
        consumer.resume()
        consumer.expire(now_ns)
        consumer.outlet.look(now_ns, at_end=False)
        if consumer.verdict is Verdict.LATER and consumer.pump.pace.at_ns <= now_ns:
            consumer.verdict = Verdict.MORE
            consumer.wake()
        idle = self._idle_deadline()
        if idle and idle <= now_ns and not self._excused(now_ns):
            probe("a consumer is idle for too long")
            consumer.stream.readers.delete(consumer)
        else:
            self.set()

    # Inactivity

    def _idle_ns(self) -> int:
        config = self._consumer.config
        threshold = max(config.inactive_threshold, 0)
        if not threshold:
            return 0
        if not config.push() or (not config.durable_name and threshold == _DEFAULT_IDLE_NS):
            return threshold + self._jitter_ns
        return threshold

    def _idle_deadline(self) -> int:
        idle_ns, outlet = self._idle_ns(), self._consumer.outlet
        if not idle_ns:
            return 0
        if isinstance(outlet, Push):
            return 0 if outlet.active else outlet.silent_ns + idle_ns
        return self._consumer.active_ns + idle_ns

    def _excused(self, now_ns: int) -> bool:
        """A pull consumer is not idle while somebody waits, or works on what it was given."""
        consumer, outlet = self._consumer, self._consumer.outlet
        if isinstance(outlet, Push):
            return False
        last_ns = consumer.progress.deadlines.last() if consumer.progress.pending else 0
        if outlet.waiting or last_ns > now_ns:
            consumer.active_ns = max(now_ns, last_ns)
            return True
        return False
