"""The pin of a consumer whose priority policy is `pinned_client`: who is served until it falls silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.api import advisories as events
from headrace.broker.advisories import nuid

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer


class Pin:
    """Which client holds the consumer; `id` is b"" when nobody does."""

    __slots__ = ("_consumer", "expires_ns", "id", "since_ns")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.id = b""
        self.since_ns = 0
        self.expires_ns = 0

    def assign(self, group: str, now_ns: int) -> bytes:
        """A request wins the pin."""
        self.id = nuid().encode()
        self.since_ns = now_ns
        self.renew(now_ns)
        self._advise(events.group_pinned, group, self.id.decode())
        return self.id

    def renew(self, now_ns: int) -> None:
        """The client that holds it was heard."""
        self.expires_ns = now_ns + self._consumer.config.priority_timeout

    def release(self) -> None:
        """Take it away without a word."""
        self.id = b""
        self.since_ns = self.expires_ns = 0

    def free(self, reason: str) -> None:
        """It is free for the next request, and listeners hear why."""
        self.release()
        group = next(iter(self._consumer.config.priority_groups), "")
        self._advise(events.group_unpinned, group, reason)

    def expire(self, now_ns: int) -> bool:
        """Whether it was held too long in silence."""
        if self.id and now_ns >= self.expires_ns:
            self.free("timeout")
            return True
        return False

    def _advise(self, make: Callable[..., events.Event], *facts: object) -> None:
        consumer = self._consumer
        consumer.jetstream.advisories.send(
            make, consumer.jetstream.account, consumer.stream.name, consumer.name, *facts
        )
