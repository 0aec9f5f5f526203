"""Entry types of the subscription index - client subscriptions, internal subscribers, imports - and the pattern trie.

Owns the kinds of entries and how a list of them becomes the parts of a route. The index itself is in `router`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from headrace._native import Subscription
from headrace.broker.routing.remote_interest import RemoteInterest, make_fanout
from headrace.protocol import subjects


class InternalSubscriber(Protocol):
    """A part of the server that takes messages; it counts as a receiver.

    `session` is the publishing Session, or None when the message was sent from inside the server. `header` is
    b"" when there is none; the payload never includes it. A sink that passes messages on returns how many
    received it, which may be nobody; None counts as one.
    """

    def on_message(
        self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int | None: ...


class ImportTarget:
    """A sink that passes messages on one subject to another place, and receives only as far as that place does."""

    __slots__ = ()

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        raise NotImplementedError

    def has_interest(self, queue: bytes | None) -> bool:
        """Whether anybody there would receive it; with `queue`, whether such a group would."""
        raise NotImplementedError


class ImportPattern:
    """A way to another place, which stands in the index with a pattern; `at` gives what a subject on it meets."""

    __slots__ = ()

    def resolve(self, subject: bytes) -> ImportTarget:
        raise NotImplementedError


IndexEntry = Subscription | InternalSubscriber | ImportPattern | RemoteInterest


class TrieNode:
    """A place in the trie of patterns; only patterns with a wildcard are kept there."""

    __slots__ = ("children", "entries", "rest", "star")

    def __init__(self) -> None:
        self.children: dict[bytes, TrieNode] = {}
        self.star: TrieNode | None = None
        self.rest: list[IndexEntry] = []
        self.entries: list[IndexEntry] = []

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.star or self.rest or self.entries)

    def get_or_create_entries(self, pattern: bytes) -> list[Any]:
        """The list of entries of a pattern below this node, making the way to it."""
        node = self
        for token in subjects.tokens(pattern):
            if token == subjects.REST:
                return node.rest
            if token == subjects.STAR:
                node.star = node.star or TrieNode()
                node = node.star
            else:
                node = node.children.setdefault(token, TrieNode())
        return node.entries


def descend(nodes: list[TrieNode], token: bytes, found: list[IndexEntry]) -> list[TrieNode]:
    """Go one token down the trie, collecting what a `>` catches on the way."""
    below = []
    for node in nodes:
        if node.rest:
            found += node.rest
        child = node.children.get(token)
        if child is not None:
            below.append(child)
        if node.star is not None:
            below.append(node.star)
    return below


def build_receivers(
    entries: list[IndexEntry], subject: bytes
) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """Plain subscriptions, queue groups, sinks."""
    subscribers: list[Any] = []
    queue_groups: dict[bytes, list[Any]] = {}
    internal_subscribers: list[Any] = []
    remote: list[RemoteInterest] = []
    for entry in entries:
        if isinstance(entry, RemoteInterest):
            remote.append(entry)
        elif not isinstance(entry, Subscription):
            internal_subscribers.append(entry.resolve(subject) if isinstance(entry, ImportPattern) else entry)
        elif entry.closed:
            continue  # its client has left
        elif entry.queue is None:
            subscribers.append(entry)
        else:
            queue_groups.setdefault(entry.queue, []).append(entry)
    fanout = make_fanout(subject, remote, queue_groups) if remote else None
    if fanout is not None:
        internal_subscribers.append(fanout)
    return subscribers, list(queue_groups.values()), internal_subscribers


def queue_weight(entry: IndexEntry) -> int:
    """How many members of its queue group an entry stands for."""
    return entry.weight if isinstance(entry, RemoteInterest) else 1


def iter_entries(node: TrieNode, prefix: bytes) -> Iterator[tuple[bytes, IndexEntry]]:
    """Every entry with a wildcard from a place in the trie on, and its pattern."""
    for entry in node.entries:
        yield prefix[:-1], entry
    for entry in node.rest:
        yield prefix + subjects.REST, entry
    for token, child in node.children.items():
        yield from iter_entries(child, prefix + token + b".")
    if node.star is not None:
        yield from iter_entries(node.star, prefix + subjects.STAR + b".")
