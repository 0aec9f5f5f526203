"""What stands in the index of interest: subscriptions, sinks, ways to other places; and the trie that holds patterns.

Owns the kinds of entries and how a list of them becomes the parts of a route. The index itself is `router`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from headrace.broker.leaf_routes import FarInterest, fan_of
from headrace.kernel import Subscription
from headrace.protocol import subjects


class Sink(Protocol):
    """A part of the server that takes messages; it counts as a receiver.

    `session` is the publishing Session, or None when the message was sent from inside the server. `header` is
    b"" when there is none; the payload never includes it. A sink that passes messages on returns how many
    received it, which may be nobody; None counts as one.
    """

    def offer(
        self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int | None: ...


class Crossing:
    """A sink that passes messages on one subject to another place, and receives only as far as that place does."""

    __slots__ = ()

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        raise NotImplementedError

    def wants(self, queue: bytes | None) -> bool:
        """Whether anybody there would receive it; with `queue`, whether such a group would."""
        raise NotImplementedError


class Passage:
    """A way to another place, which stands in the index with a pattern; `at` gives what a subject on it meets."""

    __slots__ = ()

    def at(self, subject: bytes) -> Crossing:
        raise NotImplementedError


Entry = Subscription | Sink | Passage | FarInterest


class Node:
    """A place in the trie of patterns; only patterns with a wildcard are kept there."""

    __slots__ = ("children", "entries", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[bytes, Node] = {}
        self.star: Node | None = None
        self.rest: list[Entry] = []
        self.entries: list[Entry] = []

    @property
    def bare(self) -> bool:
        return not (self.children or self.star or self.rest or self.entries)

    def place(self, pattern: bytes) -> list[Any]:
        """The list of entries of a pattern below this node, making the way to it."""
        node = self
        for token in subjects.tokens(pattern):
            if token == subjects.REST:
                return node.rest
            if token == subjects.STAR:
                node.star = node.star or Node()
                node = node.star
            else:
                node = node.children.setdefault(token, Node())
        return node.entries


def step(frontier: list[Node], token: bytes, found: list[Entry]) -> list[Node]:
    """Go one token down the trie, collecting what a `>` catches on the way."""
    below = []
    for node in frontier:
        if node.rest:
            found += node.rest
        child = node.children.get(token)
        if child is not None:
            below.append(child)
        if node.star is not None:
            below.append(node.star)
    return below


def sort_out(entries: list[Entry], subject: bytes) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """Plain subscriptions, queue groups, sinks."""
    plain: list[Any] = []
    groups: dict[bytes, list[Any]] = {}
    sinks: list[Any] = []
    far: list[FarInterest] = []
    for entry in entries:
        if isinstance(entry, FarInterest):
            far.append(entry)
        elif not isinstance(entry, Subscription):
            sinks.append(entry.at(subject) if isinstance(entry, Passage) else entry)
        elif entry.closed:
            continue  # its client has left
        elif entry.queue is None:
            plain.append(entry)
        else:
            groups.setdefault(entry.queue, []).append(entry)
    fan = fan_of(subject, far, groups) if far else None
    if fan is not None:
        sinks.append(fan)
    return plain, list(groups.values()), sinks


def weight_of(entry: Entry) -> int:
    """How many members of its queue group an entry stands for."""
    return entry.weight if isinstance(entry, FarInterest) else 1


def below(node: Node, prefix: bytes) -> Iterator[tuple[bytes, Entry]]:
    """Every entry with a wildcard from a place in the trie on, and its pattern."""
    for entry in node.entries:
        yield prefix[:-1], entry
    for entry in node.rest:
        yield prefix + subjects.REST, entry
    for token, child in node.children.items():
        yield from below(child, prefix + token + b".")
    if node.star is not None:
        yield from below(node.star, prefix + subjects.STAR + b".")
