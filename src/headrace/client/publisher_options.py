"""Options of `JetStream.publisher`, and their limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublisherOptions:
    """How much may be on its way, and how long to wait.

    - `max_pending`: how many messages may be accepted and not yet stored;
    - `max_bytes`: how many bytes of them; one message may exceed it;
    - `timeout_s`: how long to wait for any reply of a connected server, before the messages in flight have failed;
    - `retry_for_s`: how long to send a message again that no stream listens for, None: as long as `timeout_s`;
    - `linger_s`: how long a fast-ingest batch waits for more messages, before it is ended so that all are acknowledged.
    """

    max_pending: int = 4096
    max_bytes: int = 8 * 1024 * 1024
    timeout_s: float = 10.0
    retry_for_s: float | None = None
    linger_s: float = 0.02

    def __post_init__(self) -> None:
        if self.max_pending < 1:
            raise ValueError(f"max_pending={self.max_pending} is too low: at least one message must be sent")
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes={self.max_bytes} is too low: use a positive number")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout={self.timeout_s:g} is too short: use a positive number of seconds")
        if self.retry_for_s is not None and self.retry_for_s < 0:
            raise ValueError(f"retry_for={self.retry_for_s:g} is negative: use 0 for no retries")

    @property
    def actual_retry_for_s(self) -> float:
        return self.timeout_s if self.retry_for_s is None else self.retry_for_s
