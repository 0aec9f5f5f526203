"""What the publish fast path needs from a stream: one protocol for each of its collaborators.

Owns no behaviour. A stream's `PublishProcessor`, its log, its account's JetStream and its `Retention` implement these
protocols. The fast path binds their methods once, when it is created.
"""

from typing import Any, Protocol

from headrace.errors import StoreError


class PublishHandler(Protocol):
    """Decides about every publish that the fast path does not handle."""

    def on_publish(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Process a publish that needs checks (the slow path)."""

    def on_fast_ingest(
        self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Process a member of a fast-ingest batch, which its reply subject identifies."""

    def on_traced_publish(self, trace: Any, session: Any, message: Any) -> None:
        """Process a publish whose way through the server is traced."""

    def on_store_error(self, reply: bytes, failure: StoreError) -> None:
        """Reply to a publish that the store rejected."""

    def on_first_change(self) -> None:
        """Take part in the next commit: this is the stream's first change in the open frame."""

    def parse_ttl(self, text: bytes) -> int:
        """Return the seconds of a valid `Nats-TTL`, or -1 if the slow path has to decide."""


class MessageLog(Protocol):
    """Stores messages."""

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int = 0, /) -> int:
        """Store a message; return its sequence."""


class MessageClock(Protocol):
    """Gives each message its time."""

    def now_ns(self) -> int:
        """Return a time that no other message of the account has."""


class MessageRetention(Protocol):
    """Removes messages that have expired or exceed a limit."""

    def after_append(self, subject: bytes, seq: int, time_ns: int, ttl_s: int) -> None:
        """Apply the limits that each stored message may exceed; called only if `calls_after_append` is set."""

    def track_expiry(self, seq: int, time_ns: int, ttl_s: int) -> None:
        """Record when a stored message expires."""

    def expire_slice(self, now_ns: int) -> None:
        """Remove some of what has expired, before a message with a TTL is stored."""
