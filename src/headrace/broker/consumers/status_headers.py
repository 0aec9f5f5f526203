"""The header blocks that consumers send instead of messages: pull request statuses, heartbeats, flow control."""

from __future__ import annotations

FLOW_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"
REQUESTS_PENDING = b"NATS/1.0 408 Requests Pending\r\n\r\n"
PUSH_BASED = b"NATS/1.0 409 Consumer is push based\r\n\r\n"
DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
MAX_WAITING = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
REQUIRED_LEVEL = b"NATS/1.0 412 Required Api Level\r\n\r\n"
PIN_MISMATCH = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"

TIMEOUT = b"408 Request Timeout"
TOO_LARGE = b"409 Message Size Exceeds MaxBytes"
COMPLETED = b"409 Batch Completed"
SERVER_SHUTDOWN = b"409 Server Shutdown"
WRONG_PIN = b"423 Nats-Wrong-Pin-Id"


def encode_end_status(status: bytes, messages: int, size: int) -> bytes:
    """Encode the status of a request that ends with messages or bytes left."""
    return b"NATS/1.0 %s\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (
        status,
        messages,
        size,
    )


def encode_bad_request(reason: str) -> bytes:
    return b"NATS/1.0 400 Bad Request - %s\r\n\r\n" % reason.encode()


def encode_limit_exceeded(limit: str) -> bytes:
    return b"NATS/1.0 409 Exceeded %s\r\n\r\n" % limit.encode()


def encode_heartbeat(consumer_seq: int, stream_seq: int, stalled_reply: bytes = b"") -> bytes:
    """Encode a heartbeat; `stalled_reply` is the flow-control subject that waits for a reply."""
    tail = b"Nats-Consumer-Stalled: %s\r\n\r\n" % stalled_reply if stalled_reply else b"\r\n"
    return b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%s" % (
        consumer_seq,
        stream_seq,
        tail,
    )
