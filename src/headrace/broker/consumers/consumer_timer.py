"""A consumer's timer: one timer, set to the earliest time at which any of its parts has something to do.

Owns that timer and the rules of inactivity. A timer that fires too early finds nothing due and is armed again, so moving
a deadline further away costs nothing.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headrace.broker.consumers.stop_reason import StopReason
from headrace.code_probes import sometimes

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext
    from headrace.broker.consumers.redelivery import Redelivery
    from headrace.broker.timers import TimerHandle, Timers

_MILLISECOND = 1_000_000
_DEFAULT_INACTIVE_NS = 5_000 * _MILLISECOND


class ConsumerTimer:
    """The timer of one consumer."""

    __slots__ = ("_consumer", "_fires_at_ns", "_jitter_ns", "_redelivery", "_timer", "_timers")

    def __init__(self, consumer: ConsumerContext, redelivery: Redelivery, timers: Timers) -> None:
        self._consumer = consumer
        self._redelivery = redelivery
        self._timers = timers
        self._timer: TimerHandle | None = None
        self._fires_at_ns = 0
        # nats-server adds some jitter, so that many consumers of one client do not disappear at the same moment.
        self._jitter_ns = random.randrange(100, 1000) * _MILLISECOND

    def arm(self) -> None:
        """Arm the timer for the next deadline, unless it fires earlier anyway."""
        deadline = self._next_deadline()
        if not deadline or (self._timer is not None and self._fires_at_ns <= deadline):
            return
        self.cancel()
        self._fires_at_ns = deadline
        self._timer = self._timers.at_monotonic(deadline, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_deadline(self) -> int:
        consumer = self._consumer
        paused_until_ns = consumer.paused_until_ns
        deadlines = (
            consumer.ack_state.next_deadline(),
            consumer.delivery_mode.next_timeout(),
            paused_until_ns + self._timers.clock_offset_ns if paused_until_ns else 0,
            consumer.rate_limiter.next_send_ns if consumer.stop_reason is StopReason.RATE_LIMITED else 0,
            self._inactive_deadline(),
        )
        return min((deadline for deadline in deadlines if deadline), default=0)

    def _fire(self) -> None:
        self._timer = None
        consumer = self._consumer
        now_ns = consumer.now_ns()
        consumer.resume_if_due()
        self._redelivery.redeliver_expired(now_ns)
        consumer.delivery_mode.check_timeouts(now_ns, caught_up=False)
        if consumer.stop_reason is StopReason.RATE_LIMITED and consumer.rate_limiter.next_send_ns <= now_ns:
            consumer.stop_reason = StopReason.BUDGET_USED
            consumer.schedule_delivery()
        inactive_at_ns = self._inactive_deadline()
        if inactive_at_ns and inactive_at_ns <= now_ns and not consumer.delivery_mode.renew_activity(now_ns):
            sometimes("inactive consumer deleted")
            consumer.consumer_set.delete(consumer)
        else:
            self.arm()

    # Inactivity

    def _inactive_threshold_ns(self) -> int:
        config = self._consumer.config
        threshold = max(config.inactive_threshold, 0)
        if not threshold:
            return 0
        if not config.is_push() or (not config.durable_name and threshold == _DEFAULT_INACTIVE_NS):
            return threshold + self._jitter_ns
        return threshold

    def _inactive_deadline(self) -> int:
        threshold_ns = self._inactive_threshold_ns()
        if not threshold_ns:
            return 0
        delivery_mode = self._consumer.delivery_mode
        idle_since_ns = delivery_mode.get_idle_since_ns()
        return idle_since_ns + threshold_ns if idle_since_ns else 0
