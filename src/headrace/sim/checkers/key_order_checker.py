"""The model of a consumer that keeps order per key, against which every delivery is checked.

Owns what workers received and acknowledged. Rules, with N messages of a key allowed at a time:
- A message is delivered only when fewer than N earlier ones of its key are open: delivered or still to be delivered.
  Done are those that a worker acknowledged or terminated, for the last delivery it knows of; that were delivered
  `max_deliver` times; or that left the stream.
- While a message is open, no earlier one of its key is delivered, unless the server crashed or the consumer was reset.
- A message whose ack was confirmed, and which is still in the stream, is not delivered again, unless the consumer was
  reset.
- In the end every message in the stream is done, and acknowledgements removed no other message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.sim.checkers.store_invariants import Violation


class Delivered(NamedTuple):
    """The last delivery of a message that a worker received."""

    deliveries: int
    epoch: int  # raised by crashes and resets


class KeyOrderChecker:
    """`get_key` returns the key of a subject, None if the consumer's filter does not match it.

    `is_given_up` returns whether the server stopped to deliver a message, because it was delivered too often.
    """

    def __init__(
        self,
        limit: int,
        max_deliver: int,
        get_key: Callable[[str], str | None],
        is_given_up: Callable[[int], bool],
    ) -> None:
        self.limit = limit
        self.max_deliver = max_deliver
        self.get_key = get_key
        self.is_given_up = is_given_up
        self.epoch = 0
        self.start_seq = 0  # the first message that the consumer delivers
        self.subjects: dict[int, str] = {}  # stored messages
        self.live: set[int] = set()
        self.delivered: dict[int, Delivered] = {}
        self.done: set[int] = set()
        self.skipped: set[int] = set()
        self.confirmed: set[int] = set()
        self.removable: set[int] = set()  # what may leave the stream without an ack
        self.deliveries = 0

    # What happens

    def on_stored(self, live: dict[int, str]) -> None:
        """Note which messages the stream contains now."""
        self.subjects.update(live)
        self.live = set(live)

    def on_crash(self, last_seq: int) -> None:
        """Forget messages that were not stored, and that the server knows which deliveries are open."""
        self.epoch += 1
        for seq in [each for each in self.subjects if each > last_seq]:
            self.subjects.pop(seq)
            self.delivered.pop(seq, None)
            for group in (self.done, self.skipped, self.confirmed, self.removable):
                group.discard(seq)

    def on_reset(self, target: int) -> None:
        """Open everything from a sequence on, and skip what is before it."""
        self.epoch += 1
        self.removable |= {seq for seq in self.subjects if seq < max(target, self.start_seq)}
        self.skipped, self.start_seq = set(), target
        self.done = {seq for seq in self.done if seq < target or seq not in self.live}
        self.confirmed = {seq for seq in self.confirmed if seq < target or seq not in self.live}
        self.delivered = {seq: each for seq, each in self.delivered.items() if seq < target}

    def on_ack(self, seq: int, count: int) -> None:
        """Note that a worker sends an ack or a term."""
        last = self.delivered.get(seq)
        if last is not None and count >= last.deliveries:
            self.done.add(seq)
        elif self.max_deliver > 0:  # after it was given up, any ack removes it
            self.removable.add(seq)

    def on_confirmed(self, seq: int, epoch: int) -> None:
        """Note that the server confirmed an ack that was sent in this epoch."""
        if epoch == self.epoch:
            self.confirmed.add(seq)

    def on_delivery(self, seq: int, subject: str, count: int) -> None:
        """Check a delivery."""
        self.deliveries += 1
        last = self.delivered.get(seq)
        if last is not None and last.epoch == self.epoch and count < last.deliveries:
            return  # it was on its way for longer than a later delivery
        # One that has left the stream may have been on its way when a late ack for it was confirmed.
        if seq in self.confirmed and seq in self.live:
            raise Violation(f"{seq} was delivered again after its ack was confirmed")
        key = self.get_key(subject)
        same = (
            [each for each in self.live if self.get_key(self.subjects[each]) == key]
            if key is not None
            else []
        )
        waiting = [each for each in same if each < seq and self.is_open(each)]
        if len(waiting) >= self.limit:
            raise Violation(f"{seq} was delivered while {waiting} of its key are open (at most {self.limit})")
        if self.limit == 1 and seq in same and not 0 < self.max_deliver <= count:
            self._check_later(seq, same)
        self.delivered[seq] = Delivered(count, self.epoch)
        self.done.discard(seq)

    def _check_later(self, seq: int, same: list[int]) -> None:
        for each in same:
            last = self.delivered.get(each)
            if each > seq and last is not None and last.epoch == self.epoch and self.is_open(each):
                raise Violation(f"{seq} was delivered while {each}, a later one of its key, is open")

    # Questions

    def is_open(self, seq: int) -> bool:
        """Return whether a message in the stream still has to be acknowledged."""
        return not self.is_skipped(seq) and seq not in self.done and not self.is_given_up(seq)

    def is_skipped(self, seq: int) -> bool:
        """Return whether the consumer does not deliver a message: a reset, a filter or its start skipped it."""
        return seq in self.skipped or seq < self.start_seq

    def find_open(self) -> list[int]:
        """Return the messages in the stream that match the filter and are open."""
        return sorted(
            seq for seq in self.live if self.get_key(self.subjects[seq]) is not None and self.is_open(seq)
        )

    def check_removed(self, stored: dict[int, str]) -> None:
        """Check that no message left the stream that nobody acknowledged; `stored` are all confirmed publishes."""
        for seq, subject in stored.items():
            if seq in self.live or seq in self.removable or self.get_key(subject) is None:
                continue
            if seq not in self.done and not self.is_skipped(seq):
                raise Violation(f"{seq} on {subject} left the stream, and nobody acknowledged it")
