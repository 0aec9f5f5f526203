"""The model of dead letters: each message that is given up becomes one, exactly once, together with its ack.

Owns which dead letters were seen. Rules:
- A message becomes a dead letter at most once, unless the consumer was reset.
- After that it is not delivered again; only deliveries on their way arrive later.
- What was given up without a plain ack is a dead letter in the end, or was redriven.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.sim.checkers.store_invariants import Violation


class SeenDeadLetter(NamedTuple):
    """A dead letter: the sequence of the message in its stream, and when it was seen first."""

    seq: int
    deliveries: int
    epoch: int
    generation: int  # how often the consumer was reset to before the message


class DeadLetterChecker:
    """`seen` has the dead letters by their sequences in their own stream, also those that were redriven."""

    def __init__(self) -> None:
        self._resets: list[int] = []
        self.seen: dict[int, SeenDeadLetter] = {}
        self.acked: set[int] = set()  # by plain acks, whether or not they arrived
        self.needed: set[int] = set()  # terminated, and the server confirmed it

    def on_reset(self, target: int) -> None:
        """Note that messages are delivered again."""
        self._resets.append(target)
        self.needed = {seq for seq in self.needed if seq < target}

    def on_crash(self, last_seq: int) -> None:
        """Forget dead letters that were not durable: neither were their acks."""
        self.seen = {each: letter for each, letter in self.seen.items() if each <= last_seq}

    def on_stored(self, found: dict[int, tuple[int, int]], epoch: int) -> None:
        """Note the dead letters in their stream: sequence there -> sequence of the message, and its deliveries."""
        for at, (seq, deliveries) in found.items():
            if at in self.seen:
                continue
            if self.is_dead(seq):
                raise Violation(f"{seq} became a dead letter twice, the second time as {at}")
            self.seen[at] = SeenDeadLetter(seq, deliveries, epoch, self._count_resets(seq))

    def on_delivery(self, seq: int, count: int, epoch: int) -> None:
        """Check that a delivered message is not a dead letter."""
        for at, letter in self.seen.items():
            if letter.seq != seq or letter.generation != self._count_resets(seq):
                continue
            if count > letter.deliveries or epoch > letter.epoch:
                raise Violation(f"{seq} was delivered although it is dead letter {at}")

    def is_dead(self, seq: int) -> bool:
        """Return whether a message became a dead letter since the last reset."""
        generation = self._count_resets(seq)
        return any((seq, generation) == (each.seq, each.generation) for each in self.seen.values())

    def _count_resets(self, seq: int) -> int:
        return sum(target <= seq for target in self._resets)

    def check_complete(self, given_up: set[int]) -> None:
        """Check that what was given up, or was terminated for certain, became a dead letter."""
        missing = sorted(
            seq for seq in given_up | self.needed if not self.is_dead(seq) and seq not in self.acked
        )
        if missing:
            raise Violation(f"{missing} were given up, but are no dead letters")
