"""Delivery rate: replay at the original speed, and the rate limit of a push consumer.

Owns when the next message may be delivered. Both limits delay messages (`next_send_ns`) and never drop them. Reads no
clock.
"""

from __future__ import annotations

from headrace.jetstream_api.configs import ConsumerConfig

SECOND_NS = 1_000_000_000
GAP_MIN_NS = 1_000_000
PAYLOAD_MAX = 1024 * 1024


class RateLimiter:
    """The rate of one consumer. `next_send_ns` is when to continue after `may_send` returned False."""

    __slots__ = (
        "_burst",
        "_bytes_per_second",
        "_last_message_ns",
        "_last_sent_ns",
        "_replay_until",
        "_tokens",
        "_tokens_ns",
        "next_send_ns",
    )

    def __init__(self, config: ConsumerConfig, size_max: int, last_seq: int) -> None:
        """`size_max` is the stream's `max_msg_size`, `last_seq` its newest sequence: a replay ends there."""
        self.next_send_ns = 0
        self._last_message_ns = self._last_sent_ns = 0
        self._tokens = 0.0
        self._tokens_ns = 0
        self._replay_until = last_seq if config.replay_policy == "original" else 0
        self.configure(config, size_max)

    def configure(self, config: ConsumerConfig, size_max: int) -> None:
        """Apply the rate limit of the configuration."""
        self._bytes_per_second = config.rate_limit_bps // 8
        self._burst = size_max if size_max > 0 else PAYLOAD_MAX
        self._tokens = float(self._burst)

    @property
    def active(self) -> bool:
        return bool(self._replay_until or self._bytes_per_second)

    def on_caught_up(self, next_seq: int) -> None:
        """Stop the replay delay once everything up to its end was delivered: newer messages need not wait."""
        if self._replay_until and next_seq > self._replay_until:
            self._replay_until = 0

    def may_send(self, message_ns: int, size: int, now_ns: int, *, is_replay: bool) -> bool:
        """Whether a message may be sent now."""
        next_send_ns = now_ns
        if is_replay and self._replay_until and self._last_message_ns:
            gap = message_ns - self._last_message_ns
            if gap > GAP_MIN_NS:
                next_send_ns = max(next_send_ns, self._last_sent_ns + gap)
        if self._bytes_per_second:
            self._refill(now_ns)
            missing = min(size, self._burst) - self._tokens
            if missing > 0:
                next_send_ns = max(
                    next_send_ns, now_ns + int(missing * SECOND_NS / self._bytes_per_second) + 1
                )
        self.next_send_ns = next_send_ns if next_send_ns > now_ns else 0
        return not self.next_send_ns

    def on_sent(self, message_ns: int, size: int, now_ns: int) -> None:
        """Record that a message was sent."""
        self._last_message_ns, self._last_sent_ns = message_ns, now_ns
        if self._bytes_per_second:
            self._refill(now_ns)
            self._tokens -= size

    def _refill(self, now_ns: int) -> None:
        if self._tokens_ns:
            earned = (now_ns - self._tokens_ns) * self._bytes_per_second / SECOND_NS
            self._tokens = min(self._tokens + earned, float(self._burst))
        self._tokens_ns = now_ns
