"""The duplicate window: message ids seen lately, so that a repeated publish is answered with the first one's sequence.

Every id is noted in the same frame as its message, so the window survives a crash exactly as the messages do, and
also when the messages themselves are gone (acknowledged, purged or rolled up).
"""

import struct
from collections import deque
from collections.abc import Iterator
from itertools import islice

from headrace.store import Facts

_ENTRY = struct.Struct("<QQH")


class DuplicateWindow:
    """Ids of one stream, kept for `window_ns` after they were stored."""

    __slots__ = ("_facts", "_key", "_order", "_seen", "_unsaved", "window_ns")

    def __init__(self, facts: Facts | None, key: bytes, window_ns: int) -> None:
        """`facts` is None for streams in memory, whose ids need not survive."""
        self._facts = facts
        self._key = key
        self.window_ns = window_ns
        self._seen: dict[bytes, int] = {}
        self._order: deque[tuple[int, int, bytes]] = deque()
        self._unsaved: list[bytes] = []
        if facts is not None:
            for block in (facts.get(key) or b"", *facts.notes(key)):
                for seq, time_ns, message_id in _entries(block):
                    self._add(message_id, seq, time_ns)

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: bytes, now_ns: int) -> int:
        """The sequence of the message stored under this id within the window; 0 if there is none."""
        order = self._order
        if order and order[0][0] <= now_ns - self.window_ns:
            self.forget(now_ns)
        return self._seen.get(message_id, 0)

    def add(self, message_id: bytes, seq: int, time_ns: int) -> None:
        """Remember a message just admitted."""
        self._seen[message_id] = seq
        self._order.append((time_ns, seq, message_id))
        if self._facts is not None:
            self._unsaved.append(_ENTRY.pack(seq, time_ns, len(message_id)) + message_id)

    def save(self) -> None:
        """Put what is new into the frame under construction; called once a tick."""
        if self._unsaved and self._facts is not None:
            self._facts.note(self._key, b"".join(self._unsaved))
            self._unsaved.clear()

    def forget(self, now_ns: int) -> None:
        """Drop the ids that left the window."""
        order, seen = self._order, self._seen
        horizon = now_ns - self.window_ns
        while order and order[0][0] <= horizon:
            _, seq, message_id = order.popleft()
            if seen.get(message_id) == seq:
                del seen[message_id]

    def snapshot(self) -> bytes:
        """The window for a checkpoint, without the ids of the frame under construction: that frame brings them."""
        seen = self._seen
        noted = len(self._order) - len(self._unsaved)
        return b"".join(
            _ENTRY.pack(seq, time_ns, len(message_id)) + message_id
            for time_ns, seq, message_id in islice(self._order, noted)
            if seen.get(message_id) == seq
        )

    def _add(self, message_id: bytes, seq: int, time_ns: int) -> None:
        self._seen[message_id] = seq
        self._order.append((time_ns, seq, message_id))


def _entries(block: bytes) -> Iterator[tuple[int, int, bytes]]:
    position = 0
    while position < len(block):
        seq, time_ns, length = _ENTRY.unpack_from(block, position)
        position += _ENTRY.size
        yield seq, time_ns, block[position : position + length]
        position += length
