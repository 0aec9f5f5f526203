"""Members of a sourced batch that is not complete: durable, and not visible.

They are facts in the journal beside the stream, so the origin may be told that they are stored, and a restart goes on
where they end. Invariant: the first `durable` messages survive a crash; the rest, too large to be kept twice, is asked
for again. Knows nothing of when a batch is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

KEY = b"held/"
#: What is larger than this goes through the journal once, as a message.
MEMBER_BYTES_MAX = 256 * 1024
DURABLE_BYTES_MAX = 16 * 1024 * 1024

Message = tuple[int, bytes, bytes, bytes]  # origin sequence, subject, header, payload
_TYPE = tuple[int, bytes, bytes, bytes]


class Held:
    """What one source keeps back."""

    __slots__ = ("_key", "_stream", "bytes", "durable", "messages", "newest_ns")

    def __init__(self, stream: Stream, index: str) -> None:
        self._stream = stream
        self._key = KEY + b"%d/%s" % (stream.log.ident, index.encode())
        self.messages: list[Message] = []
        if self._persists:
            facts = stream.jetstream.store.facts
            self.messages = [
                msgspec.msgpack.decode(note, type=_TYPE) for note in facts.notes(self._key) if note
            ]
        self.durable = len(self.messages)
        self.bytes = sum(map(_size, self.messages))
        self.newest_ns = stream.jetstream.timers.now_ns()

    def __bool__(self) -> bool:
        return bool(self.messages)

    @property
    def _persists(self) -> bool:
        return self._stream.config.storage != "memory"

    @property
    def durable_seq(self) -> int:
        """The newest origin sequence that survives a crash; 0 when there is none."""
        return self.messages[self.durable - 1][0] if self.durable else 0

    def add(self, message: Message, now_ns: int) -> None:
        """Keep one back; raises Full when the disk does not take it."""
        size = _size(message)
        if self.durable == len(self.messages) and self._fits(size):
            self._write(message)
            self.durable += 1
        self.messages.append(message)
        self.bytes += size
        self.newest_ns = now_ns

    def _fits(self, size: int) -> bool:
        return size <= MEMBER_BYTES_MAX and self.bytes + size <= DURABLE_BYTES_MAX

    def _write(self, message: Message) -> None:
        if self._persists:
            self._stream.reserve(_size(message), 1)
            self._stream.jetstream.store.facts.note(self._key, msgspec.msgpack.encode(message))
            self._stream.changed()

    def rewind(self) -> None:
        """Forget what a crash would; the origin delivers it again."""
        del self.messages[self.durable :]
        self.bytes = sum(map(_size, self.messages))

    def drop_first(self, count: int) -> None:
        """So many are stored as messages now, in the same frame."""
        if not count:
            return
        left = self.messages[count:]
        durable = max(self.durable - count, 0)
        self.clear()
        for message in left[:durable]:
            self._write(message)
        self.messages, self.durable = left, durable
        self.bytes = sum(map(_size, left))

    def clear(self) -> None:
        """Keep nothing back."""
        if self._persists and self.durable:
            self._stream.jetstream.store.facts.delete(self._key)
        self.messages, self.durable, self.bytes = [], 0, 0

    def adopt(self, other: Held) -> None:
        """Go on with what a source held that this one takes over from."""
        messages, durable, newest_ns = other.messages, other.durable, other.newest_ns
        other.clear()
        for message in messages[:durable]:
            self.add(message, newest_ns)


def _size(message: Message) -> int:
    return len(message[1]) + len(message[2]) + len(message[3]) + 32
