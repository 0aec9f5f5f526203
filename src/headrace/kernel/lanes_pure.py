"""The fast lane into a stream, in plain Python; see `lanes.pyx`."""

from collections.abc import Callable
from typing import Any

from headrace.errors import StoreError
from headrace.kernel.arrivals_pure import Staged, Window, nats_headers

Parcel = tuple[bytes, bytes, bytes, bytes]


HEADER_BYTES_MAX = 65_535


_MSG_ID, _TTL = b"Nats-Msg-Id", b"Nats-TTL"
_LIGHT = frozenset((_MSG_ID, _TTL))
#: The headers of a member of a batch, in either spelling.
_MEMBERS = [
    {name, position}
    for name in (b"Nats-Batch-Id", b"Nats-Batch-ID")
    for position in (b"Nats-Batch-Sequence", b"Nats-Batch-Seq")
]
_DIGITS_MAX = 9


def storable(header: bytes) -> bool:
    """Whether a header block carries no status and is of a size that can be stored."""
    return header.startswith(b"NATS/1.0\r\n") and len(header) <= HEADER_BYTES_MAX


class Outbox:
    """What waits for the frame under construction: (subject, reply, header, payload), in the order it was decided."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[Parcel] = []


class Lane:
    """The sink of one stream.

    `append` stores a message, `slow(session, ...)` decides about everything unusual, `fast(session, ...)` takes members
    of fast batches, which are known by their reply subject, `refuse(reply, failure)` answers when the store takes
    nothing, `touch()` says that the stream has its first change in this frame. `open` is whether messages that ask for
    nothing need no look.

    What has to follow a message: `follow(subject, seq, time_ns, ttl_s)`, or None and, for one with a lifetime,
    `note(seq, time_ns, ttl_s)`. `lifetime(text)` are the seconds that a `Nats-TTL` means here (-1: ask `slow`);
    `expire(now_ns)` comes before a message with a lifetime. `window` are the ids seen lately, `batch` is the batch that
    was added to last.
    """

    __slots__ = (
        "ack_prefix",
        "acks",
        "append",
        "batch",
        "expire",
        "fast",
        "follow",
        "last_message_id",
        "lifetime",
        "note",
        "now_ns",
        "open",
        "outbox",
        "refuse",
        "slow",
        "touch",
        "touched",
        "window",
    )

    append: Callable[..., int]
    now_ns: Callable[[], int]
    slow: Callable[[Any, bytes, bytes, bytes, bytes], None]
    fast: Callable[[Any, bytes, bytes, bytes, bytes], None]
    refuse: Callable[[bytes, StoreError], None]
    touch: Callable[[], None]
    follow: Callable[[bytes, int, int, int], None] | None
    note: Callable[[int, int, int], None]
    lifetime: Callable[[bytes], int]
    expire: Callable[[int], None]
    window: Window | None
    batch: Staged | None

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.ack_prefix = self.last_message_id = b""
        self.open = self.acks = self.touched = False
        self.follow = self.window = self.batch = None

    def forget_lifetime(self) -> None:
        """What a `Nats-TTL` means may have changed."""

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A publish on one of the stream's subjects."""
        if reply.endswith(b".$FI"):
            self.fast(session, subject, reply, header, payload)
        elif not self.open:
            self.slow(session, subject, reply, header, payload)
        elif not header:
            self._keep(subject, reply, header, payload, self.now_ns(), 0, b"")
        elif not self._headed(subject, reply, header, payload):
            self.slow(session, subject, reply, header, payload)

    def _headed(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """A message with headers; False if it needs a decision, and then nothing has happened yet."""
        if not storable(header):
            return False
        found = nats_headers(header)
        if not found.keys() <= _LIGHT:
            return found.keys() in _MEMBERS and self._stage(subject, reply, header, payload, found)
        ttl_s = 0
        if _TTL in found:
            ttl_s = self.lifetime(found[_TTL]) if found[_TTL] else -1
            if ttl_s < 0:
                return False
        time_ns = self.now_ns()
        if ttl_s:
            self.expire(time_ns)
        message_id = found.get(_MSG_ID, b"")
        if message_id and self.window is not None and self.window.find(message_id, time_ns):
            return False
        self._keep(subject, reply, header, payload, time_ns, ttl_s, message_id)
        return True

    def _stage(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, found: dict[bytes, bytes]
    ) -> bool:
        """The next member of the batch that was added to last; False if it is anything else."""
        name = found.get(b"Nats-Batch-Id", found.get(b"Nats-Batch-ID", b""))
        text = found.get(b"Nats-Batch-Sequence", found.get(b"Nats-Batch-Seq", b""))
        size = len(header) + len(payload)
        if not text.isdigit() or len(text) > _DIGITS_MAX or self.batch is None:
            return False
        if not self.batch.takes(name, int(text), size):
            return False
        self.batch.add((subject, header, payload), size)
        self.batch.deadline_ns = self.now_ns() + self.batch.timeout_ns
        if self.acks and reply:
            self._change()
            self.outbox.held.append((reply, b"", b"", b""))
        return True

    def _keep(
        self,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        time_ns: int,
        ttl_s: int,
        message_id: bytes,
    ) -> None:
        """Store a message and answer."""
        try:
            seq = self.append(subject, header, payload, time_ns, ttl_s)
            ack = b"%b%d}" % (self.ack_prefix, seq)
            self.last_message_id = message_id
            if message_id and self.window is not None:
                self.window.add(message_id, seq, time_ns)
            if self.follow is not None:
                self.follow(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self.note(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.refuse(reply, failure)
            return
        self._change()
        if self.acks and reply:
            self.outbox.held.append((reply, b"", b"", ack))

    def _change(self) -> None:
        if not self.touched:
            self.touched = True
            self.touch()
