"""Decides whether a whole batch fits into a stream with discard policy `new`, before its first member is stored.

Counts as `check_discard_new` does for one message after the other, with what each of them would replace. Reads at most as
many stored messages as the batch has members; the bytes that a rollup would free are not counted. Changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext


class BatchCopy(NamedTuple):
    """A message of the batch as it would be stored."""

    subject: bytes
    size: int
    rollup: bytes


class _Subject:
    """The messages of one subject: the stored ones that are left, then those of the batch."""

    __slots__ = ("_log", "_next_seq", "_stream", "_subject", "added", "stored")

    def __init__(self, stream: StreamContext, subject: bytes, *, empty: bool) -> None:
        self._stream = stream
        self._log = stream.log
        self._subject = subject
        self.stored = 0 if empty else stream.log.get_subject_count(subject)
        self._next_seq = stream.log.get_first_seq(subject) if self.stored else 0
        self.added: deque[int] = deque()

    def get_oldest_size(self) -> int:
        return self._stream.get_stored_size(self._next_seq) if self.stored else self.added[0]

    def remove_oldest(self) -> None:
        if not self.stored:
            self.added.popleft()
            return
        self.stored -= 1
        if self.stored:
            log = self._log
            self._next_seq = log.find_next(log.get_filter((self._subject,)), self._next_seq + 1)


class BatchCapacity:
    """The stream as it would be after some members."""

    __slots__ = ("_bytes", "_config", "_count", "_empty", "_stream", "_subjects")

    def __init__(self, stream: StreamContext, *, empty: bool = False) -> None:
        """`empty`: as if the stream had no messages."""
        self._stream = stream
        self._config = stream.config
        self._empty = empty
        self._count, self._bytes = (0, 0) if empty else (stream.log.messages, stream.log.bytes)
        self._subjects: dict[bytes, _Subject] = {}

    def fits(self, members: Iterable[BatchCopy]) -> bool:
        """Whether all of them fit, in this order."""
        return all(self._add(member) for member in members)

    def _add(self, member: BatchCopy) -> bool:
        config, subject = self._config, self._get_subject(member.subject)
        count = subject.stored + len(subject.added)
        is_full = 0 < config.max_msgs_per_subject <= count
        if is_full and config.discard_new_per_subject and not member.rollup:
            return False
        if 0 < config.max_msgs <= self._count and not is_full:
            return False
        freed = subject.get_oldest_size() if is_full else -1
        if 0 < config.max_bytes < self._bytes + member.size and freed < member.size:
            return False
        if member.rollup:
            self._roll_up(subject, everything=member.rollup == b"all")
        elif is_full:
            subject.remove_oldest()
            self._count -= 1
            self._bytes -= freed
        subject.added.append(member.size)
        self._count += 1
        self._bytes += member.size
        return True

    def _roll_up(self, subject: _Subject, *, everything: bool) -> None:
        for each in self._subjects.values() if everything else (subject,):
            self._count -= each.stored + len(each.added)
            self._bytes -= sum(each.added)
            each.stored = 0
            each.added.clear()
        if everything:
            self._count = self._bytes = 0
            self._empty = True

    def _get_subject(self, subject: bytes) -> _Subject:
        found = self._subjects.get(subject)
        if found is None:
            found = self._subjects[subject] = _Subject(self._stream, subject, empty=self._empty)
        return found
