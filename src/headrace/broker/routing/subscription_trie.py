"""Entry types of the subscription index - client subscriptions, internal subscribers, imports - and the pattern trie.

Owns the kinds of entries and how a list of them becomes the parts of a route. The index itself is in `router`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from headrace._native import Route, Subscription
from headrace.broker.routing.remote_interest import LeafnodeFanout, RemoteInterest, make_fanout
from headrace.protocol import subjects

if TYPE_CHECKING:
    from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage


class InternalSubscriber(Protocol):
    """A part of the server that receives messages; it counts as a receiver.

    `session` is the publishing Session, or None when the message was sent from inside the server. `header` is b"" when
    there is none; the payload never includes it. A subscriber that forwards messages returns how many received it, which
    may be none; None counts as one.
    """

    def on_message(
        self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int | None: ...


class ImportTarget:
    """Forwards messages on one subject to another account or subject; counts as a receiver only if there is one there."""

    __slots__ = ()

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        raise NotImplementedError

    def on_traced(self, delivery: TracedDelivery, message: TracedMessage) -> int:
        """Forward a traced message, with an event for each step; return how many received it."""
        raise NotImplementedError

    def has_interest(self, queue: bytes | None) -> bool:
        """Whether there is a receiver at the destination; with `queue`, whether that group has a member there."""
        raise NotImplementedError

    def for_queue(self, queue: bytes) -> InternalSubscriber | None:
        """Return a subscriber that sends to one member of a queue group at the destination; None if it has none."""
        return None


class ImportPattern:
    """An entry with a pattern that forwards messages; `resolve` returns the target for one subject."""

    __slots__ = ()

    def resolve(self, subject: bytes) -> ImportTarget:
        raise NotImplementedError


class ClientMapping(Protocol):
    """Maps subjects that clients publish to."""

    def find_target(self, subject: bytes) -> ImportTarget | None:
        """Return where messages on a subject are sent instead; None if it is not mapped."""


IndexEntry = Subscription | InternalSubscriber | ImportPattern | RemoteInterest


class TrieNode:
    """A node of the trie; it holds only patterns with a wildcard."""

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
        """Return the list of entries for a pattern below this node; create missing nodes."""
        node = self
        for token in subjects.tokens(pattern):
            if token == subjects.REST:
                return node.rest
            below = node.get_below(token)
            if below is None:
                below = TrieNode()
                if token == subjects.STAR:
                    node.star = below
                else:
                    node.children[token] = below
            node = below
        return node.entries

    def get_below(self, token: bytes) -> TrieNode | None:
        """Return the node below this one for a token of a pattern."""
        return self.star if token == subjects.STAR else self.children.get(token)

    def remove(self, pattern: bytes, entry: IndexEntry) -> None:
        """Remove an entry that was added with this pattern, and the nodes that are empty without it."""
        tokens, path = subjects.tokens(pattern), [self]
        for token in tokens:
            if token != subjects.REST:
                below = path[-1].get_below(token)
                assert below is not None
                path.append(below)
        (path[-1].rest if tokens[-1] == subjects.REST else path[-1].entries).remove(entry)
        for depth in range(len(path) - 1, 0, -1):
            if not path[depth].is_empty:
                return
            if tokens[depth - 1] == subjects.STAR:
                path[depth - 1].star = None
            else:
                del path[depth - 1].children[tokens[depth - 1]]


def descend(nodes: list[TrieNode], token: bytes, found: list[IndexEntry]) -> list[TrieNode]:
    """Go one token down the trie, and add entries that match by `>` to `found`."""
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
    """Return client subscriptions, queue groups and internal subscribers of a subject."""
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
            continue  # its client has disconnected
        elif entry.queue is None:
            subscribers.append(entry)
        else:
            queue_groups.setdefault(entry.queue, []).append(entry)
    fanout = make_fanout(subject, remote, queue_groups) if remote else None
    if fanout is not None:
        internal_subscribers.append(fanout)
    return subscribers, list(queue_groups.values()), internal_subscribers


def select_group(route: Route, queue: bytes) -> Route | None:
    """Return the route to one member of a queue group: here, else in an importing account; or on other servers."""
    members = [group for group in route.queue_groups if group[0].queue == queue]
    others: list[Any] = []
    for subscriber in route.internal_subscribers:
        if isinstance(subscriber, LeafnodeFanout) or (isinstance(subscriber, ImportTarget) and not members):
            part = subscriber.for_queue(queue)
            if part is not None:
                others.append(part)
    if not members and not others:
        return None
    return Route(route.key, route.kind, [], members, others)


def queue_weight(entry: IndexEntry) -> int:
    """Return how many members of its queue group an entry represents."""
    return entry.weight if isinstance(entry, RemoteInterest) else 1


def iter_entries(node: TrieNode, prefix: bytes) -> Iterator[tuple[bytes, IndexEntry]]:
    """Iterate over all entries below a node, with their patterns. A subject may have any number of tokens."""
    waiting = [(node, prefix)]
    while waiting:
        node, prefix = waiting.pop()
        for entry in node.entries:
            yield prefix[:-1], entry
        for entry in node.rest:
            yield prefix + subjects.REST, entry
        if node.star is not None:
            waiting.append((node.star, prefix + subjects.STAR + b"."))
        waiting += [(child, prefix + token + b".") for token, child in node.children.items()]
