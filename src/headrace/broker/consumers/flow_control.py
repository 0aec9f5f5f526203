"""The flow-control window of a push consumer: how many bytes may be in flight, and when to send a request.

Sizes and thresholds are those of nats-server: the window starts at 2 MiB and doubles with every reply
up to 32 MiB; a request is sent at half of it, and delivery stops beyond it. Knows no messages.
"""

from __future__ import annotations

START_BYTES = 2 * 1024 * 1024
MAX_BYTES = 32 * 1024 * 1024


class FlowWindow:
    """Bytes in flight. `pending_request` is the subject of the request that has no reply yet, b"" if none."""

    __slots__ = ("_bytes_at_request", "bytes_in_flight", "pending_request", "size")

    def __init__(self, size: int = START_BYTES) -> None:
        self.size = size
        self.bytes_in_flight = 0
        self.pending_request = b""
        self._bytes_at_request = 0

    @property
    def has_room(self) -> bool:
        return self.bytes_in_flight <= self.size

    def get_bytes_available(self) -> int:
        """Return how many bytes may be sent before a request is due or the window is full."""
        limit = self.size if self.pending_request else self.size // 2
        return max(limit - self.bytes_in_flight, 0)

    def on_sent(self, size: int) -> bool:
        """Count sent bytes; return whether a request is due."""
        self.bytes_in_flight += size
        if self.pending_request and self.bytes_in_flight - self._bytes_at_request >= self.size:
            self._bytes_at_request += size
        return not self.pending_request and self.bytes_in_flight > self.size // 2

    def on_request_sent(self, subject: bytes) -> None:
        """Record a request with this reply subject."""
        self.pending_request = subject
        self._bytes_at_request = self.bytes_in_flight

    def on_reply(self, subject: bytes) -> bool:
        """Apply a reply; return whether it belongs to the newest request."""
        if not self.pending_request or subject != self.pending_request:
            return False
        self.size = min(2 * self.size, MAX_BYTES)
        self.bytes_in_flight = max(self.bytes_in_flight - self._bytes_at_request, 0)
        self.pending_request = b""
        self._bytes_at_request = 0
        return True
