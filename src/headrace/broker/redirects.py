"""Subject mappings of an account: what its clients publish on one subject goes out on another.

Owns the choice of the destination, which may be by weight. A redirect is part of the way in: what the server itself sends is
not mapped, and a mapped message is not mapped again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from headrace.api.transforms import BadMapping, check_mapping, compile_transform
from headrace.broker.entries import Crossing
from headrace.broker.router import Hub
from headrace.errors import HeadraceError
from headrace.protocol import subjects

FULL = 100


class RedirectError(HeadraceError):
    """A mapping that makes no sense."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a mapped message goes, and how many of a hundred do."""

    subject: str
    weight: int = FULL


@dataclass(frozen=True, slots=True)
class Redirect:
    """One mapping; destinations that make up less than a hundred leave the rest as it is."""

    source: str
    destinations: tuple[Destination, ...]

    def check(self) -> None:
        """Raise RedirectError when it makes no sense."""
        if not subjects.valid(self.source.encode()):
            raise RedirectError(f"{self.source!r} is no subject")
        names = [destination.subject for destination in self.destinations]
        if len(set(names)) < len(names):
            raise RedirectError(f"{self.source!r} is mapped to one subject twice")
        weights = [destination.weight for destination in self.destinations]
        if any(not 0 <= weight <= FULL for weight in weights) or sum(weights) > FULL:
            raise RedirectError(f"the weights of {self.source!r} are more than {FULL}")
        for name in names:
            try:
                check_mapping(self.source, name)
            except BadMapping as error:
                raise RedirectError(f"cannot map {self.source!r} to {name!r}: {error}") from None


class Chooser:
    """One mapping, ready for use."""

    def __init__(self, redirect: Redirect) -> None:
        self.pattern = redirect.source.encode()
        self._changes: list[Callable[[bytes], bytes]] = [
            compile_transform(redirect.source, each.subject) for each in redirect.destinations
        ]
        self._ends = list(accumulate(each.weight for each in redirect.destinations))

    def choose(self, subject: bytes) -> bytes:
        """Where a message on this subject goes this time."""
        if self._ends == [FULL]:
            return self._changes[0](subject)
        drawn = random.randrange(FULL)
        for end, change in zip(self._ends, self._changes, strict=True):
            if drawn < end:
                return change(subject)
        return subject


class Redirected(Crossing):
    """What a mapped subject meets."""

    __slots__ = ("_chooser", "_hub", "_subject")

    def __init__(self, hub: Hub, chooser: Chooser, subject: bytes) -> None:
        self._hub, self._chooser, self._subject = hub, chooser, subject

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        # Still the client's message: one that wants no echo gets none, and a stream knows who publishes.
        chosen = self._chooser.choose(self._subject)
        return self._hub.table.publish_for(session, chosen, reply, header, payload)

    def wants(self, queue: bytes | None) -> bool:
        return True


def redirect(hub: Hub, rules: Sequence[Redirect]) -> None:
    """From now on map what the clients of an account publish; no rules, no mapping."""
    choosers = [Chooser(rule) for rule in rules]
    # A mapping of exactly this subject comes before one with wildcards.
    choosers.sort(key=lambda chooser: not subjects.literal(chooser.pattern))

    def meet(subject: bytes) -> Crossing | None:
        for chooser in choosers:
            if subjects.matches(chooser.pattern, subject):
                return Redirected(hub, chooser, subject)
        return None

    hub.redirect(meet if choosers else None)
