"""Options of `JetStream.consume`, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.client.durations import SECOND_NS, Duration, parse_optional_ns

_EXPIRES_MIN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How messages are requested.

    - `prefetch`: how many messages may be requested or buffered at a time;
    - `max_bytes`: how many bytes one request may return, none for no limit;
    - `expires_s`: how long one request stays open at the server;
    - `heartbeat_s`: how often the server shows that an open request is alive; after two that did not arrive the request is
      sent again;
    - `keep_alive`: extend the ack deadline of messages as long as this client has them.
    """

    prefetch: int = 500
    max_bytes: int | None = None
    expires_s: float = 30.0
    heartbeat_s: float = 5.0
    keep_alive: bool = True

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise ValueError(f"prefetch={self.prefetch} is too low: at least one message must be requested")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes={self.max_bytes} is too low: use a positive number, or None")
        if not 0 < self.heartbeat_s <= self.expires_s / 2:
            raise ValueError("heartbeat must be positive and at most half of expires")

    def limit(self, max_batch: int | None, max_expires_s: float | None) -> ConsumeOptions:
        """Return options that respect the limits of a consumer."""
        expires_s = min(self.expires_s, max_expires_s or self.expires_s)
        return replace(
            self,
            prefetch=min(self.prefetch, max_batch or self.prefetch),
            expires_s=expires_s,
            heartbeat_s=min(self.heartbeat_s, expires_s / 2),
        )


def make_options(
    prefetch: int, max_bytes: int | None, expires: Duration, heartbeat: Duration, *, keep_alive: bool
) -> ConsumeOptions:
    """Return options with durations in any form: seconds, "30s", timedelta."""
    expires_s = parse_optional_ns(expires, "expires") / SECOND_NS
    if expires_s < _EXPIRES_MIN_S:
        raise ValueError(f"expires={expires_s:g} s is too short: use at least one second")
    return ConsumeOptions(
        prefetch=prefetch,
        max_bytes=max_bytes,
        expires_s=expires_s,
        heartbeat_s=parse_optional_ns(heartbeat, "heartbeat") / SECOND_NS,
        keep_alive=keep_alive,
    )
