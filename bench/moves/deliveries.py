"""What a worker received, and which of it was repeated for a good reason.

Owns the definition of a redelivery. A message that a consumer delivers again has a delivery count above 1, as JetStream
counts. After a move the count starts again with 1, because the consumer was created on the new server right above its ack
floor: so once per move, a message above the floor of the receipt may come again with count 1. Everything else is an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Delivery(NamedTuple):
    """One delivery: the stream's sequence, the delivery count, and how many moves there had been."""

    seq: int
    count: int
    moves: int


class DeliveryLog:
    """The deliveries of one consumer."""

    def __init__(self) -> None:
        self._by_payload: dict[str, list[Delivery]] = defaultdict(list)

    def add(self, payload: str, delivery: Delivery) -> None:
        self._by_payload[payload].append(delivery)

    def __contains__(self, payload: str) -> bool:
        return payload in self._by_payload

    def count_repeated(self) -> int:
        """Return how many messages were delivered more than once."""
        return sum(len(found) > 1 for found in list(self._by_payload.values()))

    def classify(self, floors: Sequence[int]) -> tuple[Mapping[str, int], list[str]]:
        """Return how many deliveries repeat a message, by reason, and the errors; `floors` are those of the moves."""
        reasons: Counter[str] = Counter()
        errors = []
        for payload, found in list(self._by_payload.items()):
            for number, delivery in enumerate(found[1:], 1):
                earlier = found[:number]
                if delivery.count > 1:
                    reasons["delivery count above 1"] += 1
                elif _is_after_reset(delivery, earlier, floors):
                    reasons["above the ack floor after a move"] += 1
                else:
                    errors.append(f"{payload} came again without a reason: {found}")
        return reasons, errors


def _is_after_reset(delivery: Delivery, earlier: Sequence[Delivery], floors: Sequence[int]) -> bool:
    is_first_here = all(each.moves < delivery.moves for each in earlier)
    return is_first_here and delivery.seq > floors[delivery.moves - 1]
