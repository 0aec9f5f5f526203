"""One pull request: what it asks for, what it got, and when it ends.

Owns the counters of the request. Must not know the queue that it waits in.
"""

from __future__ import annotations

from headrace.broker.consumers import status_headers
from headrace.jetstream_api.requests import NextRequest


class PullRequest:
    """A waiting request."""

    __slots__ = (
        "bytes_left",
        "delivered",
        "expires_ns",
        "heartbeat_ns",
        "messages_left",
        "next_heartbeat_ns",
        "no_wait",
        "pin_id",
        "reply",
        "request",
        "structured",
    )

    def __init__(self, reply: bytes, request: NextRequest, now_ns: int) -> None:
        self.reply = reply
        self.request = request
        self.messages_left = request.batch
        self.delivered = 0
        self.bytes_left = request.max_bytes
        self.expires_ns = now_ns + request.expires if request.expires else 0
        self.heartbeat_ns = max(request.idle_heartbeat, 0)
        self.next_heartbeat_ns = now_ns + self.heartbeat_ns if self.heartbeat_ns else 0
        self.no_wait = request.no_wait
        self.structured = request.structured
        self.pin_id = request.id.encode()

    def make_end_status(self, status: bytes) -> bytes:
        return status_headers.encode_end_status(status, self.messages_left, self.bytes_left)
