"""Subject mappings of an account: send what its clients publish on one subject to another.

Owns the choice of the destination, which may be weighted. Mappings apply only to what clients publish: messages sent by
the server itself are not mapped, and a mapped message is not mapped again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from headrace._native import RouteTable
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.subscription_trie import ImportTarget
from headrace.errors import HeadraceError
from headrace.jetstream_api.subject_transform import BadTransform, check_transform, compile_transform
from headrace.protocol import subjects
from headrace.protocol.pattern_index import NOT_FOUND, PatternIndex

if TYPE_CHECKING:
    from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage

WEIGHT_TOTAL = 100


class MappingError(HeadraceError):
    """An invalid mapping."""


@dataclass(frozen=True, slots=True)
class MappingDestination:
    """A destination and its weight in percent."""

    subject: str
    weight: int = WEIGHT_TOTAL


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """One mapping; if the weights are less than 100 in total, the rest of the messages keep their subject."""

    source: str
    destinations: tuple[MappingDestination, ...]

    def check(self) -> None:
        """Raise MappingError if the mapping is invalid."""
        if not subjects.is_valid(self.source.encode()):
            raise MappingError(f"{self.source!r} is not a valid subject")
        names = [destination.subject for destination in self.destinations]
        if len(set(names)) < len(names):
            raise MappingError(f"{self.source!r} is mapped to the same subject twice")
        weights = [destination.weight for destination in self.destinations]
        if any(not 0 <= weight <= WEIGHT_TOTAL for weight in weights) or sum(weights) > WEIGHT_TOTAL:
            raise MappingError(f"the weights of {self.source!r} add up to more than {WEIGHT_TOTAL}")
        for name in names:
            try:
                check_transform(self.source, name)
            except BadTransform as error:
                raise MappingError(f"cannot map {self.source!r} to {name!r}: {error}") from None


class WeightedChoice:
    """A compiled mapping."""

    def __init__(self, subject_mapping: SubjectMapping) -> None:
        self.pattern = subject_mapping.source.encode()
        self._transforms: list[Callable[[bytes], bytes]] = [
            compile_transform(subject_mapping.source, each.subject) for each in subject_mapping.destinations
        ]
        self._cumulative_weights = list(accumulate(each.weight for each in subject_mapping.destinations))

    def choose(self, subject: bytes) -> bytes:
        """Choose the destination of one message."""
        if self._cumulative_weights == [WEIGHT_TOTAL]:
            return self._transforms[0](subject)
        drawn = random.randrange(WEIGHT_TOTAL)
        for upper, transform in zip(self._cumulative_weights, self._transforms, strict=True):
            if drawn < upper:
                return transform(subject)
        return subject


class MappedTarget(ImportTarget):
    """The target of messages on one mapped subject."""

    __slots__ = ("_choice", "_subject", "_table")

    def __init__(self, table: RouteTable, choice: WeightedChoice, subject: bytes) -> None:
        self._table, self._choice, self._subject = table, choice, subject

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        # It is still the client's message: no-echo applies, and a stream knows the publisher.
        chosen = self._choice.choose(self._subject)
        return self._table.publish_for(session, chosen, reply, header, payload)

    def on_traced(self, delivery: TracedDelivery, message: TracedMessage) -> int:
        chosen = self._choice.choose(self._subject)
        if chosen != self._subject:
            delivery.trace.add_subject_mapping(chosen)
        return delivery.publish(self._table, delivery.trace.account, message._replace(subject=chosen))

    def has_interest(self, queue: bytes | None) -> bool:
        return True


class AccountMappings:
    """The compiled mappings of one account; `table` has its routes."""

    __slots__ = ("_choices", "_index", "_table")

    def __init__(self, table: RouteTable, mappings: Sequence[SubjectMapping]) -> None:
        self._table = table
        self._choices = [WeightedChoice(subject_mapping) for subject_mapping in mappings]
        # A mapping of a literal subject takes precedence over one with wildcards.
        self._choices.sort(key=lambda choice: not subjects.is_literal(choice.pattern))
        self._index = PatternIndex(choice.pattern for choice in self._choices)

    def find_target(self, subject: bytes) -> ImportTarget | None:
        """Return the target of the first mapping that matches; None if none does."""
        position = self._index.find_first(subject)
        return None if position == NOT_FOUND else MappedTarget(self._table, self._choices[position], subject)


def set_subject_mappings(router: SubjectRouter, mappings: Sequence[SubjectMapping]) -> None:
    """Set the subject mappings of an account; an empty sequence removes them."""
    router.set_client_mapping(AccountMappings(router.table, mappings) if mappings else None)
