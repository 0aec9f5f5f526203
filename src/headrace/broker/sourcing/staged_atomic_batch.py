"""Members of a sourced atomic batch that is not complete yet: durable, but not visible.

They are stored as metadata of the stream, so that they can be acknowledged to the upstream, and a restart continues
where they end. Invariant: the first `durable` messages survive a crash; the rest, too large to be stored twice, is
requested again. Knows nothing of when a batch is complete. See ADR 63.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.storage import MetadataStore

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext

KEY = b"held/"
#: A larger member goes through the journal only once, as a message.
MEMBER_BYTES_MAX = 256 * 1024
DURABLE_BYTES_MAX = 16 * 1024 * 1024

SourcedMessage = tuple[int, bytes, bytes, bytes]  # upstream sequence, subject, header, payload
_TYPE = tuple[int, bytes, bytes, bytes]


class PendingBatch:
    """The members that one source holds back; `metadata` is None for a stream in memory."""

    __slots__ = ("_key", "_metadata", "_stream", "bytes", "durable_count", "last_added_ns", "messages")

    def __init__(
        self, stream: StreamContext, metadata: MetadataStore | None, index: str, now_ns: int
    ) -> None:
        self._stream = stream
        self._metadata = metadata
        self._key = KEY + b"%d/%s" % (stream.log.ident, index.encode())
        self.messages: list[SourcedMessage] = []
        if metadata is not None:
            self.messages = [
                msgspec.msgpack.decode(note, type=_TYPE) for note in metadata.get_operands(self._key) if note
            ]
        self.durable_count = len(self.messages)
        self.bytes = sum(map(_size, self.messages))
        self.last_added_ns = now_ns

    def __bool__(self) -> bool:
        return bool(self.messages)

    @property
    def durable_seq(self) -> int:
        """The newest upstream sequence that survives a crash; 0 if there is none."""
        return self.messages[self.durable_count - 1][0] if self.durable_count else 0

    def add(self, message: SourcedMessage, now_ns: int) -> None:
        """Hold back one member; raise StoreFull if the disk has no space for it."""
        size = _size(message)
        if self.durable_count == len(self.messages) and self._fits(size):
            self._persist(message)
            self.durable_count += 1
        self.messages.append(message)
        self.bytes += size
        self.last_added_ns = now_ns

    def _fits(self, size: int) -> bool:
        return size <= MEMBER_BYTES_MAX and self.bytes + size <= DURABLE_BYTES_MAX

    def _persist(self, message: SourcedMessage) -> None:
        if self._metadata is not None:
            self._stream.reserve_frame_space(_size(message), 1)
            self._metadata.merge(self._key, msgspec.msgpack.encode(message))
            self._stream.mark_dirty()

    def rollback(self) -> None:
        """Drop what would not survive a crash; the upstream delivers it again."""
        del self.messages[self.durable_count :]
        self.bytes = sum(map(_size, self.messages))

    def remove_first(self, count: int) -> None:
        """Remove members that are now stored as messages, in the same frame."""
        if not count:
            return
        remaining = self.messages[count:]
        durable_count = max(self.durable_count - count, 0)
        self.clear()
        for message in remaining[:durable_count]:
            self._persist(message)
        self.messages, self.durable_count = remaining, durable_count
        self.bytes = sum(map(_size, remaining))

    def clear(self) -> None:
        """Drop all members."""
        if self._metadata is not None and self.durable_count:
            self._metadata.delete(self._key)
        self.messages, self.durable_count, self.bytes = [], 0, 0

    def take_over(self, other: PendingBatch) -> None:
        """Take over the members of the source that this one replaces."""
        if self.messages and self._key == other._key:  # this one has read the same members from the store
            self.last_added_ns = other.last_added_ns
            return
        messages, durable_count, last_added_ns = other.messages, other.durable_count, other.last_added_ns
        other.clear()
        for message in messages[:durable_count]:
            self.add(message, last_added_ns)


def _size(message: SourcedMessage) -> int:
    return len(message[1]) + len(message[2]) + len(message[3]) + 32
