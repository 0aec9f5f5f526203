"""The messages of a publisher that are not yet stored: numbered in the order of acceptance, sent and settled.

Invariant: every message that was accepted is in the window until it is stored or has failed, and that happens once.
Must not know how messages are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from headrace.client.publish_record import Record


class PublishWindow:
    """Messages by number, from 1. Those up to `sent` are on their way to the server."""

    def __init__(self, on_failure: Callable[[Record, Exception], None]) -> None:
        self._on_failure = on_failure
        self._records: dict[int, Record] = {}
        self._again: deque[int] = deque()  # sent before, to be sent again
        self._first = 1  # no message before it is in the window
        self.last = 0
        self.sent = 0
        self.bytes = 0
        self.stored_count = 0
        self.failed_count = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> int:
        """The number of the oldest message that is not settled; `last + 1` if there is none."""
        while self._first <= self.last and self._first not in self._records:
            self._first += 1
        return self._first

    @property
    def in_flight(self) -> int:
        """How many messages were sent and are not settled, at most."""
        return max(self.sent - self.first + 1, 0)

    def add(self, record: Record) -> None:
        self.last += 1
        self._records[self.last] = record
        self.bytes += record.size

    def get(self, number: int) -> Record | None:
        return self._records.get(number)

    def iter_unsent(
        self, now_s: float, must_wait: Callable[[int, Record], bool] | None = None
    ) -> Iterator[tuple[int, Record]]:
        """Yield the messages to send, each marked as sent; leave out those that must wait."""
        while self._again or self.sent < self.last:
            if self._again:
                number = self._again.popleft()
            else:
                self.sent = number = self.sent + 1
            record = self._records.get(number)
            if record is not None and not (must_wait and must_wait(number, record)):
                record.sent_s = now_s
                yield number, record

    def rewind(self) -> None:
        """Send all messages again that are not settled."""
        self.sent = self.first - 1
        self._again.clear()

    def send_again(self, numbers: Iterable[int]) -> None:
        """Send messages again before those that were not sent yet."""
        self._again = deque(sorted({*self._again, *(each for each in numbers if each <= self.sent)}))

    def store(self, number: int) -> None:
        """Settle a message that the server has stored."""
        record = self._records.pop(number, None)
        if record is not None:
            self.bytes -= record.size
            self.stored_count += 1

    def store_until(self, number: int) -> None:
        """Settle all messages up to a number: the server has stored them."""
        for each in range(self.first, min(number, self.last) + 1):
            self.store(each)

    def fail(self, number: int, error: Exception) -> None:
        """Settle a message that is not stored, or of which nobody knows whether it is."""
        record = self._records.pop(number, None)
        if record is not None:
            self.bytes -= record.size
            self.failed_count += 1
            self._on_failure(record, error)

    def settle_separate(self, record: Record, error: Exception | None) -> None:
        """Count a message that was never in the window: stored by other means, or failed with an error."""
        if error is None:
            self.stored_count += 1
        else:
            self.failed_count += 1
            self._on_failure(record, error)

    def fail_sent_before(self, time_s: float, passed: int, error: Exception) -> bool:
        """Fail the oldest messages up to the number `passed` that were sent before a time; return whether there are any."""
        overdue = []
        for number, record in self._records.items():
            if number > passed or record.sent_s is None or record.sent_s > time_s:
                break
            overdue.append(number)
        for number in overdue:
            self.fail(number, error)
        return bool(overdue)

    def fail_all(self, error: Exception, *, only_sent: bool = False) -> None:
        for number in range(self.first, (self.sent if only_sent else self.last) + 1):
            self.fail(number, error)
