"""The pin of a consumer with priority policy `pinned_client`: the pinned client gets all messages until it times out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.configs import ConsumerConfig
from headrace.protocol.nuid import nuid


class PinOwner(Protocol):
    """The consumer, as far as its pin is concerned."""

    @property
    def config(self) -> ConsumerConfig:
        """Return the configuration, which may change."""

    def send_group_advisory(
        self, make_event: Callable[..., events.EncodedEvent], group: str, value: str
    ) -> None:
        """Publish an advisory about a priority group of the consumer."""


class PinnedClient:
    """Which client the consumer is pinned to; `pin_id` is b"" if none."""

    __slots__ = ("_consumer", "expires_ns", "pin_id", "pinned_since_ns")

    def __init__(self, consumer: PinOwner) -> None:
        self._consumer = consumer
        self.pin_id = b""
        self.pinned_since_ns = 0
        self.expires_ns = 0

    def assign(self, group: str, now_ns: int) -> bytes:
        """Pin the client of a request."""
        self.pin_id = nuid().encode()
        self.pinned_since_ns = now_ns
        self.renew(now_ns)
        self._consumer.send_group_advisory(events.make_group_pinned, group, self.pin_id.decode())
        return self.pin_id

    def renew(self, now_ns: int) -> None:
        """Restart the timeout: the pinned client sent a request."""
        config = self._consumer.config
        self.expires_ns = now_ns + config.priority_timeout

    def clear(self) -> None:
        """Remove the pin without an advisory."""
        self.pin_id = b""
        self.pinned_since_ns = self.expires_ns = 0

    def unpin(self, reason: str) -> None:
        """Remove the pin, so that the next request can get it, and publish an advisory with the reason."""
        self.clear()
        config = self._consumer.config
        group = next(iter(config.priority_groups), "")
        self._consumer.send_group_advisory(events.make_group_unpinned, group, reason)

    def expire_if_idle(self, now_ns: int) -> bool:
        """Remove the pin if it timed out; return whether it did."""
        if self.pin_id and now_ns >= self.expires_ns:
            self.unpin("timeout")
            return True
        return False
