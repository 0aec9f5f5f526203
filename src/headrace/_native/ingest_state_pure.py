"""Ingest state in pure Python: `Nats-` headers, dedup window, open atomic batches; the compiled version is
`ingest_state.pyx`.
"""

from __future__ import annotations

import struct
from collections import deque
from itertools import islice
from typing import Any

_ENTRY = struct.Struct("<QQH")
_ID_BYTES_MAX = 65_535
_DROPPED_PER_CALL = 8


def parse_nats_headers(block: bytes) -> dict[bytes, bytes]:
    """Return the first value of every header whose name begins with `Nats-`; names are case-sensitive.

    The first line, and lines without a colon, are not headers.
    """
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        if line.startswith(b"Nats-"):
            name, colon, value = line.partition(b":")
            if colon and name not in found:
                found[name] = value.lstrip(b" ")
    return found


class DedupWindow:
    """Message ids with their sequences, for `window_ns` after the messages were stored.

    `_order` has them in the order they were added, which is that of sequences and times; the last `_unsaved` of them have
    not been drained yet. Ids that left the window are dropped a few at a time. A position counts from the first entry
    ever, of which the first `first_position` are gone.
    """

    __slots__ = ("_order", "_seen", "_unsaved", "first_position", "window_ns")

    def __init__(self, window_ns: int) -> None:
        if window_ns < 0:
            raise ValueError("the length of a dedup window must not be negative")
        self.window_ns = window_ns
        self._seen: dict[bytes, tuple[int, int]] = {}
        self._order: deque[tuple[int, int, bytes]] = deque()
        self._unsaved = 0
        self.first_position = 0

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: bytes, now_ns: int) -> int:
        """Return the sequence of the message stored with this id within the window; 0 if there is none."""
        order, horizon = self._order, now_ns - self.window_ns
        if order and order[0][0] <= horizon:
            self.expire(now_ns)
        seq, time_ns = self._seen.get(message_id, (0, 0))
        return seq if time_ns > horizon else 0

    def add(self, message_id: bytes, seq: int, time_ns: int) -> None:
        """Add a message that was just admitted."""
        if len(message_id) > _ID_BYTES_MAX:
            raise ValueError("a message id has more than 65,535 bytes")
        self._seen[message_id] = (seq, time_ns)
        self._order.append((time_ns, seq, message_id))
        self._unsaved += 1

    def expire(self, now_ns: int, count: int = _DROPPED_PER_CALL) -> None:
        """Drop at most `count` of the ids that left the window."""
        order, seen = self._order, self._seen
        horizon = now_ns - self.window_ns
        for _ in range(count):
            if not order or order[0][0] > horizon:
                break
            time_ns, seq, message_id = order.popleft()
            self.first_position += 1
            if seen.get(message_id) == (seq, time_ns):
                del seen[message_id]
        self._unsaved = min(self._unsaved, len(order))

    @property
    def saved_position(self) -> int:
        """The position after the last id that was drained or restored."""
        return self.first_position + len(self._order) - self._unsaved

    def drain_unsaved(self) -> bytes:
        """Return what was added since the last call, encoded for storage."""
        fresh = islice(self._order, len(self._order) - self._unsaved, None)
        self._unsaved = 0
        return b"".join(_pack_entry(*each) for each in fresh)

    def restore(self, block: bytes) -> None:
        """Add stored entries."""
        at = 0
        while at + _ENTRY.size <= len(block):
            seq, time_ns, length = _ENTRY.unpack_from(block, at)
            at += _ENTRY.size
            if at + length > len(block):
                break
            message_id = block[at : at + length]
            self._seen[message_id] = (seq, time_ns)
            self._order.append((time_ns, seq, message_id))
            at += length

    def encode(self, first: int, end: int) -> bytes:
        """Return the ids between two positions that have not been dropped, encoded for storage."""
        start = max(first - self.first_position, 0)
        return b"".join(
            _pack_entry(*each) for each in islice(self._order, start, max(end - self.first_position, start))
        )


def _pack_entry(time_ns: int, seq: int, message_id: bytes) -> bytes:
    return _ENTRY.pack(seq, time_ns, len(message_id)) + message_id


class ByteBudget:
    """Bytes that all open batches of a server use together, and their limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class OpenBatch:
    """An open atomic batch: its members, its limits, and how long it waits for more."""

    __slots__ = ("budget", "bytes", "deadline_ns", "max_members", "members", "name", "open", "timeout_ns")

    def __init__(self, name: bytes, budget: ByteBudget, max_members: int, timeout_ns: int) -> None:
        self.name = name
        self.budget = budget
        self.max_members = max_members
        self.timeout_ns = timeout_ns
        self.members: list[Any] = []
        self.bytes = self.deadline_ns = 0
        self.open = True

    def accepts(self, name: bytes, position: int, size: int) -> bool:
        """Return whether a member of this name, position and size is the next one and fits."""
        return (
            self.open
            and position == len(self.members) + 1
            and position <= self.max_members
            and name == self.name
            and self.budget.bytes + size <= self.budget.bytes_max
        )

    def add(self, member: Any, size: int) -> None:
        """Add a member."""
        self.members.append(member)
        self.bytes += size
        self.budget.bytes += size
