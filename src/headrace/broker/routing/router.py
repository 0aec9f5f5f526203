"""The subject router of an account: subscriptions of clients and internal subscribers, and the routes built from them.

Owns the subscription index and the exact invalidation of the compiled core's route cache: a cached route is always what
the index would return now. Literal subjects are in a dictionary, patterns in a trie; so the common cases, a literal
subscription and a publish without wildcard interest, cost one lookup. Knows no sockets and no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace._native import KEY_EXACT, KEY_PARENT, KEY_TWO_TOKENS, Route, RouteTable, Subscription
from headrace.broker.routing.message_trace import AccountTracing
from headrace.broker.routing.remote_interest import RemoteInterest
from headrace.broker.routing.subscription_trie import (
    ClientMapping,
    ImportPattern,
    ImportTarget,
    IndexEntry,
    InternalSubscriber,
    TrieNode,
    build_receivers,
    descend,
    iter_entries,
    queue_weight,
)
from headrace.protocol import subjects

#: Beyond this, clearing all routes is cheaper than searching for the affected ones.
UNSUBSCRIBE_EACH_MAX = 64
#: How many tokens of subscriptions are removed from the index in one turn, which takes about a millisecond. A removal
#: costs as much as this number of tokens besides those of its pattern.
UNINDEX_TOKENS_MAX, UNINDEX_TOKENS_EACH = 2500, 8
CLIENT_ROUTES_MAX = 16384


#: Schedules a call at the end of the turn of the event loop.
CallSoon = Callable[[Callable[[], None]], object]
SubjectWatcher = Callable[[bytes], None]
EntryWatcher = Callable[[bytes, Any, int], None]


class SubjectRouter:
    """Subscriptions and delivery for one account.

    `dirty` lists the sessions whose output became non-empty; the flush takes them from there. All routers of one server
    share it.
    """

    def __init__(self, cache_max: int = 16384, dirty: list[Any] | None = None) -> None:
        self.table = RouteTable(self._resolve, cache_max, dirty)
        #: The routes for messages from clients; not the server's own table if client subjects are mapped.
        self.client_table = self.table
        self._tables: tuple[RouteTable, ...] = (self.table,)
        self._client_mapping: ClientMapping | None = None
        self.subscriptions = 0
        self._literals: dict[bytes, list[IndexEntry]] = {}
        self._parent_counts: dict[bytes, int] = {}
        self._two_token_counts: dict[bytes, int] = {}
        self._root = TrieNode()
        self._watchers: dict[bytes, list[SubjectWatcher]] = {}
        self._all_watchers: list[SubjectWatcher] = []
        self._entry_watchers: list[EntryWatcher] = []
        self._call_soon: CallSoon | None = None
        self._pending_removals: deque[Subscription] = deque()
        #: Patterns announced to other servers in addition to the entries; they have no effect on routing here.
        self.announced_patterns: set[bytes] = set()
        self.tracing: AccountTracing | None = None

    @property
    def dirty(self) -> list[Any]:
        return self.table.dirty

    # Interest

    def subscribe(self, sub: Subscription) -> None:
        """Add a client's subscription; `sub.pattern` must be valid."""
        self._add(sub.pattern, sub)
        self.subscriptions += 1

    def unsubscribe(self, sub: Subscription) -> None:
        """Remove a client's subscription; nothing is delivered to it any more."""
        sub.closed = True
        self._remove(sub.pattern, sub)
        self.subscriptions -= 1

    def unsubscribe_all(self, subs: Sequence[Subscription]) -> None:
        """Remove all subscriptions of a client that disconnected; nothing is delivered to it any more.

        Many subscriptions are removed from the index in steps, if there is an event loop, so that other clients do not
        wait.
        """
        if len(subs) <= UNSUBSCRIBE_EACH_MAX:
            for sub in subs:
                self.unsubscribe(sub)
            return
        for sub in subs:
            sub.closed = True
        self.subscriptions -= len(subs)
        self.invalidate_routes()
        self._pending_removals += subs
        if len(self._pending_removals) == len(subs):
            self._unindex_some()

    def _unindex_some(self) -> None:
        """Remove some of the closed subscriptions from the index. No cached route has them, so none is invalidated."""
        tokens = 0
        while self._pending_removals and not (self._call_soon and tokens >= UNINDEX_TOKENS_MAX):
            sub = self._pending_removals.popleft()
            tokens += sub.pattern.count(b".") + UNINDEX_TOKENS_EACH
            self._unindex(sub.pattern, sub)
            self.notify_interest(sub.pattern)
        if self._pending_removals and self._call_soon:
            self._call_soon(self._unindex_some)

    def invalidate_routes(self) -> None:
        """Rebuild all routes, because something other than interest has changed."""
        for table in self._tables:
            table.clear()

    def subscribe_internal(self, pattern: bytes, subscriber: InternalSubscriber | ImportPattern) -> None:
        """Add a subscriber inside the server."""
        self._add(pattern, subscriber)

    def unsubscribe_internal(self, pattern: bytes, subscriber: InternalSubscriber | ImportPattern) -> None:
        """Remove a subscriber inside the server."""
        self._remove(pattern, subscriber)

    def subscribe_remote(self, entry: RemoteInterest) -> None:
        """Add the interest of another server; `entry.pattern` must be valid."""
        self._add(entry.pattern, entry)

    def unsubscribe_remote(self, entry: RemoteInterest) -> None:
        """Remove the interest of another server."""
        self._remove(entry.pattern, entry)

    def set_remote_weight(self, entry: RemoteInterest, weight: int) -> None:
        """Change the number of members in a remote queue group."""
        change, entry.weight = weight - entry.weight, weight
        self._on_interest_changed(entry.pattern)
        for watcher in self._entry_watchers:
            watcher(entry.pattern, entry, change)

    def announce(self, pattern: bytes) -> None:
        """Announce a pattern to other servers; its messages are routed here by a wider entry that is not announced."""
        if pattern not in self.announced_patterns:
            self.announced_patterns.add(pattern)
            for watcher in self._entry_watchers:
                watcher(pattern, None, 1)

    def withdraw(self, pattern: bytes) -> None:
        """Withdraw an announced pattern."""
        if pattern in self.announced_patterns:
            self.announced_patterns.discard(pattern)
            for watcher in self._entry_watchers:
                watcher(pattern, None, -1)

    def entries(self) -> Iterator[tuple[bytes, IndexEntry]]:
        """Iterate over all entries with their patterns."""
        for literal, entries in self._literals.items():
            for entry in entries:
                yield literal, entry
        yield from iter_entries(self._root, b"")

    def has_interest(self, subject: bytes, queue: bytes | None = None) -> bool:
        """Whether a subscriber would receive this subject; with `queue`, whether a member of that group would."""
        if not subjects.is_well_formed(subject):
            return False
        route = self.table.find(subject)
        if any(
            isinstance(subscriber, ImportTarget) and subscriber.has_interest(queue)
            for subscriber in route.internal_subscribers
        ):
            return True
        if queue is None:
            own = [
                subscriber
                for subscriber in route.internal_subscribers
                if not isinstance(subscriber, ImportTarget)
            ]
            return bool(route.subscribers or route.queue_groups or own)
        return any(group[0].queue == queue for group in route.queue_groups)

    def watch_subject(self, subject: bytes, call: SubjectWatcher) -> None:
        """Call `call(subject)` after each change of interest that may affect a literal subject.

        Use `has_interest(subject, queue)` to get the current interest.
        """
        self._watchers.setdefault(subject, []).append(call)

    def unwatch_subject(self, subject: bytes, call: SubjectWatcher) -> None:
        """Stop calling."""
        calls = self._watchers[subject]
        calls.remove(call)
        if not calls:
            del self._watchers[subject]

    def watch_all(self, call: SubjectWatcher) -> None:
        """Call `call(pattern)` after each change of interest in any pattern."""
        self._all_watchers.append(call)

    def unwatch_all(self, call: SubjectWatcher) -> None:
        """Stop calling."""
        self._all_watchers.remove(call)

    def watch_entries(self, call: EntryWatcher) -> None:
        """Call at every change of an entry, with pattern, entry and the change in the number of members."""
        self._entry_watchers.append(call)

    def unwatch_entries(self, call: EntryWatcher) -> None:
        """Stop calling."""
        self._entry_watchers.remove(call)

    def notify_interest(self, pattern: bytes) -> None:
        """Notify watchers that interest elsewhere, in subjects that match this pattern, may have changed."""
        if self._watchers:
            self._notify_watchers(pattern)
        for call in tuple(self._all_watchers):
            call(pattern)

    def set_client_mapping(self, mapping: ClientMapping | None) -> None:
        """Map subjects that clients publish to; None ends the mapping.

        Sessions have to be bound to the new `client_table` afterwards.
        """
        self.client_table.clear()
        self._client_mapping = mapping
        if mapping is None:
            self.client_table, self._tables = self.table, (self.table,)
            return
        self.client_table = RouteTable(self._resolve_for_client, CLIENT_ROUTES_MAX, self.table.dirty)
        self.client_table.wakeup = self.table.wakeup
        self._tables = (self.table, self.client_table)

    def set_wakeup(self, call: Callable[[], None] | None, call_soon: CallSoon | None = None) -> None:
        """Set the call that is made when the first session has output. Without `call_soon` everything is done at once."""
        self.table.wakeup = self.client_table.wakeup = call
        self._call_soon = call_soon

    # Delivery

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Publish from inside the server to matching subscribers; return how many received it."""
        return self.table.publish(subject, reply, header, payload)

    def publish_many(self, messages: Iterable[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """Publish each (subject, reply, header, payload); cheaper than one by one."""
        self.table.publish_many(messages)

    def deliver(
        self, deliver_subject: bytes, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Send a message that shows another subject to subscribers of `deliver_subject`; return how many received it."""
        return self.table.deliver(self.table.find(deliver_subject), subject, reply, header, payload)

    def get_route(self, subject: bytes) -> Route:
        """Return the receivers of a well-formed subject; usable as long as `route.valid`."""
        return self.table.find(subject)

    # The index

    def _add(self, pattern: bytes, entry: IndexEntry) -> None:
        if subjects.is_literal(pattern):
            self._literals.setdefault(pattern, []).append(entry)
            self._count_prefixes(pattern, 1)
        else:
            self._root.get_or_create_entries(pattern).append(entry)
        self._on_interest_changed(pattern)
        for watcher in self._entry_watchers:
            watcher(pattern, entry, queue_weight(entry))

    def _remove(self, pattern: bytes, entry: IndexEntry) -> None:
        self._unindex(pattern, entry)
        self._on_interest_changed(pattern)

    def _unindex(self, pattern: bytes, entry: IndexEntry) -> None:
        if subjects.is_literal(pattern):
            pattern_entries = self._literals[pattern]
            pattern_entries.remove(entry)
            if not pattern_entries:
                del self._literals[pattern]
            self._count_prefixes(pattern, -1)
        else:
            self._root.remove(pattern, entry)
        for watcher in self._entry_watchers:
            watcher(pattern, entry, -queue_weight(entry))

    def _count_prefixes(self, literal: bytes, change: int) -> None:
        """Count the literals below each prefix: a prefix without any can share one route for all its subjects."""
        for counts, key in (
            (self._parent_counts, parent_key_for(literal)),
            (self._two_token_counts, two_token_key_for(literal)),
        ):
            if key:
                counts[key] = counts.get(key, 0) + change
                if not counts[key]:
                    del counts[key]

    def _on_interest_changed(self, pattern: bytes) -> None:
        """Invalidate the routes that match a pattern and notify watchers."""
        if subjects.is_literal(pattern):
            for table in self._tables:
                table.drop(pattern)
                table.drop(parent_key_for(pattern))
                table.drop(two_token_key_for(pattern))
        else:
            for table in self._tables:
                table.drop_matching(pattern)
        if self._watchers or self._all_watchers:
            self.notify_interest(pattern)

    def _notify_watchers(self, pattern: bytes) -> None:
        if subjects.is_literal(pattern):
            concerned = [pattern] if pattern in self._watchers else []
        else:
            start = literal_prefix(pattern)
            concerned = [
                subject
                for subject in self._watchers
                if subject.startswith(start) and subjects.matches(pattern, subject)
            ]
        for subject in concerned:
            for call in tuple(self._watchers.get(subject, ())):
                call(subject)

    def _resolve_for_client(self, subject: bytes) -> Route:
        mapping = self._client_mapping
        target = mapping.find_target(subject) if mapping is not None else None
        if target is not None:
            return Route(subject, KEY_EXACT, [], [], [target])
        route = self._resolve(subject)
        # Another subject of the same prefix may be mapped, so a route cannot be shared.
        return Route(subject, KEY_EXACT, route.subscribers, route.queue_groups, route.internal_subscribers)

    def _resolve(self, subject: bytes) -> Route:
        """Build the route of a well-formed subject, with a key for all subjects that can share it."""
        tokens = subjects.tokens(subject)
        found: list[IndexEntry] = list(self._literals.get(subject, ()))
        nodes, has_literal_children, below_two_tokens = [self._root], False, False
        for depth, token in enumerate(tokens):
            if depth == 2:
                below_two_tokens = any(node.children or node.star for node in nodes)
            if depth == len(tokens) - 1:
                has_literal_children = any(node.children for node in nodes)
            nodes = descend(nodes, token, found)
        for node in nodes:
            found += node.entries
        key, kind = subject, KEY_EXACT
        if any(isinstance(entry, ImportPattern | RemoteInterest) for entry in found):
            # The targets of imports and leafnodes depend on the subject.
            return Route(key, kind, *build_receivers(found, subject))
        if (
            len(tokens) > 3
            and not below_two_tokens
            and two_token_key_for(subject) not in self._two_token_counts
        ):
            key, kind = two_token_key_for(subject), KEY_TWO_TOKENS
        elif (
            len(tokens) > 1
            and not has_literal_children
            and parent_key_for(subject) not in self._parent_counts
        ):
            key, kind = parent_key_for(subject), KEY_PARENT
        return Route(key, kind, *build_receivers(found, subject))


def literal_prefix(pattern: bytes) -> bytes:
    """Return the part before the first wildcard, which every matching subject begins with."""
    tokens = subjects.tokens(pattern)
    first = next(i for i, token in enumerate(tokens) if token in (subjects.STAR, subjects.REST))
    return b"".join(token + b"." for token in tokens[:first])


def parent_key_for(subject: bytes) -> bytes:
    """The cache key of all direct children of a subject's prefix: `a.b.` for `a.b.c`; b"" for a single token."""
    return subject[: subject.rfind(b".") + 1]


def two_token_key_for(subject: bytes) -> bytes:
    """The cache key of everything below a subject's first two tokens: `a.b. ` for `a.b.c`; b"" without a third."""
    second = subject.find(b".", subject.find(b".") + 1)
    return subject[: second + 1] + b" " if second > 0 else b""
