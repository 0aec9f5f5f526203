"""The fast lane into a stream, in plain Python; see `lanes.pyx`."""

from collections.abc import Callable
from typing import Any

from headrace.errors import StoreError

Parcel = tuple[bytes, bytes, bytes, bytes]


HEADER_BYTES_MAX = 65_535


def unusual(header: bytes) -> bool:
    """Whether a header block needs a look: something for the server in it, a status, or too large."""
    return b"Nats-" in header or not header.startswith(b"NATS/1.0\r\n") or len(header) > HEADER_BYTES_MAX


class Outbox:
    """What waits for the frame under construction: (subject, reply, header, payload), in the order it was decided."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[Parcel] = []


class Lane:
    """The sink of one stream.

    `append` stores a message, `slow(session, ...)` decides about everything unusual, `fast(session, ...)` takes members
    of fast batches, which are known by their reply subject, `refuse(reply, failure)` answers when
    the store takes nothing, `touch()` says that the stream has its first change in this frame, `follow(subject, seq,
    time_ns)` does what has to follow a plain message (None: nothing). `open` is whether plain messages need no look.
    """

    __slots__ = (
        "ack_prefix",
        "acks",
        "append",
        "fast",
        "follow",
        "last_message_id",
        "now_ns",
        "open",
        "outbox",
        "refuse",
        "slow",
        "touch",
        "touched",
    )

    append: Callable[[bytes, bytes, bytes, int], int]
    now_ns: Callable[[], int]
    slow: Callable[[Any, bytes, bytes, bytes, bytes], None]
    fast: Callable[[Any, bytes, bytes, bytes, bytes], None]
    refuse: Callable[[bytes, StoreError], None]
    touch: Callable[[], None]
    follow: Callable[[bytes, int, int], None] | None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.ack_prefix = self.last_message_id = b""
        self.open = self.acks = self.touched = False
        self.follow = None

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A publish on one of the stream's subjects."""
        if reply.endswith(b".$FI"):
            self.fast(session, subject, reply, header, payload)
            return
        if not self.open or (header and unusual(header)):
            self.slow(session, subject, reply, header, payload)
            return
        time_ns = self.now_ns()
        try:
            seq = self.append(subject, header, payload, time_ns)
            ack = b"%b%d}" % (self.ack_prefix, seq)
            self.last_message_id = b""
            if self.follow is not None:
                self.follow(subject, seq, time_ns)
        except StoreError as failure:
            self.refuse(reply, failure)
            return
        if not self.touched:
            self.touched = True
            self.touch()
        if self.acks and reply:
            self.outbox.held.append((reply, b"", b"", ack))
