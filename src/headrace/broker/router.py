"""Who is interested in what: subscriptions of clients, sinks of the server, and the routes made of them.

Owns the index of interest and the precise invalidation of the kernel's route cache: a route in the cache is
always what the index would answer now. Literal subjects live in a dictionary, patterns in a trie; so the
common cases, a literal subscription and a publish without wildcard interest, cost one look-up. Knows no
sockets and no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.broker.entries import Crossing, Entry, Node, Passage, Sink, below, sort_out, step, weight_of
from headrace.broker.leaf_routes import FarInterest
from headrace.kernel import EXACT, HEAD, PARENT, Route, RouteTable, Subscription
from headrace.protocol import subjects

#: Beyond this, forgetting every route is cheaper than looking for those concerned.
LEAVE_ONE_BY_ONE_MAX = 64
LET_GO_MAX = 250  # in one go: about a millisecond
CLIENT_ROUTES_MAX = 16384


#: Calls something when others have had their turn.
Later = Callable[[Callable[[], None]], object]
Watcher = Callable[[bytes], None]
Observer = Callable[[bytes, Any, int], None]


class Hub:
    """Interest and delivery for one account.

    `dirty` lists the sessions whose output became non-empty; whoever flushes takes them from there. Hubs of
    one server share it.
    """

    def __init__(self, cache_max: int = 16384, dirty: list[Any] | None = None) -> None:
        self.table = RouteTable(self._resolve, cache_max, dirty)
        #: Where clients publish; another table than that of the server itself where their subjects are mapped.
        self.client_table = self.table
        self._tables: tuple[RouteTable, ...] = (self.table,)
        self._redirect: Callable[[bytes], Crossing | None] = lambda subject: None
        self.subscriptions = 0
        self._literals: dict[bytes, list[Entry]] = {}
        self._parents: dict[bytes, int] = {}
        self._heads: dict[bytes, int] = {}
        self._root = Node()
        self._watchers: dict[bytes, list[Watcher]] = {}
        self._observers: list[Watcher] = []
        #: Called with pattern, entry and how many there are more, at every change of an entry.
        self.on_entry: list[Observer] = []
        self._later: Later | None = None
        self._leaving: deque[Subscription] = deque()
        #: What is wanted here besides the entries: told to other servers, of no effect here.
        self.declared: set[bytes] = set()

    @property
    def dirty(self) -> list[Any]:
        return self.table.dirty

    # Interest

    def subscribe(self, sub: Subscription) -> None:
        """A client wants what matches `sub.pattern`, which has to be valid."""
        self._add(sub.pattern, sub)
        self.subscriptions += 1

    def unsubscribe(self, sub: Subscription) -> None:
        """A client's interest ends; nothing is delivered to it any more."""
        sub.closed = True
        self._discard(sub.pattern, sub)
        self.subscriptions -= 1

    def leave(self, subs: Sequence[Subscription]) -> None:
        """A client is gone with all its interest: nothing is delivered to it any more.

        The index lets go of many by and by, where there is a loop to come back from: others are not to wait for it.
        """
        if len(subs) <= LEAVE_ONE_BY_ONE_MAX:
            for sub in subs:
                self.unsubscribe(sub)
            return
        for sub in subs:
            sub.closed = True
        self.subscriptions -= len(subs)
        self.forget_routes()
        self._leaving += subs
        if len(self._leaving) == len(subs):
            self._let_go()

    def _let_go(self) -> None:
        """Take some of those who left out of the index. No route knows them, so none has to be forgotten."""
        for _ in range(min(len(self._leaving), LET_GO_MAX if self._later else len(self._leaving))):
            sub = self._leaving.popleft()
            self._take_out(sub.pattern, sub)
            self.tell(sub.pattern)
        if self._leaving and self._later:
            self._later(self._let_go)

    def forget_routes(self) -> None:
        """What decides about routes besides interest has changed: make them anew."""
        for table in self._tables:
            table.clear()

    def subscribe_internal(self, pattern: bytes, sink: Sink | Passage) -> None:
        """The server itself takes what matches."""
        self._add(pattern, sink)

    def unsubscribe_internal(self, pattern: bytes, sink: Sink | Passage) -> None:
        """The server itself takes it no more."""
        self._discard(pattern, sink)

    def subscribe_far(self, entry: FarInterest) -> None:
        """Another server wants what matches `entry.pattern`, which has to be valid."""
        self._add(entry.pattern, entry)

    def unsubscribe_far(self, entry: FarInterest) -> None:
        """It wants it no more."""
        self._discard(entry.pattern, entry)

    def weigh_far(self, entry: FarInterest, weight: int) -> None:
        """Its queue group has another number of members."""
        change, entry.weight = weight - entry.weight, weight
        self._changed(entry.pattern)
        for observe in self.on_entry:
            observe(entry.pattern, entry, change)

    def declare(self, pattern: bytes) -> None:
        """Other servers are to send what matches, which finds its way by a wider entry that they are not told of."""
        if pattern not in self.declared:
            self.declared.add(pattern)
            for observe in self.on_entry:
                observe(pattern, None, 1)

    def retract(self, pattern: bytes) -> None:
        """The end of what was declared."""
        if pattern in self.declared:
            self.declared.discard(pattern)
            for observe in self.on_entry:
                observe(pattern, None, -1)

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Everything that is wanted: pattern and entry."""
        for literal, entries in self._literals.items():
            for entry in entries:
                yield literal, entry
        yield from below(self._root, b"")

    def interest(self, subject: bytes, queue: bytes | None = None) -> bool:
        """Whether a client or sink would receive this subject; with `queue`, whether such a group would."""
        if not subjects.whole(subject):
            return False
        route = self.table.find(subject)
        if any(isinstance(sink, Crossing) and sink.wants(queue) for sink in route.sinks):
            return True
        if queue is None:
            own = [sink for sink in route.sinks if not isinstance(sink, Crossing)]
            return bool(route.plain or route.groups or own)
        return any(group[0].queue == queue for group in route.groups)

    def watch(self, subject: bytes, call: Watcher) -> None:
        """Call `call(subject)` after each change of interest that concerns a literal subject.

        What the interest is now, `interest(subject, queue)` tells.
        """
        self._watchers.setdefault(subject, []).append(call)

    def unwatch(self, subject: bytes, call: Watcher) -> None:
        """Stop calling."""
        calls = self._watchers[subject]
        calls.remove(call)
        if not calls:
            del self._watchers[subject]

    def observe(self, call: Watcher) -> None:
        """Call `call(pattern)` after each change of interest, whatever it concerns."""
        self._observers.append(call)

    def unobserve(self, call: Watcher) -> None:
        """Stop calling."""
        self._observers.remove(call)

    def tell(self, pattern: bytes) -> None:
        """Interest somewhere else, in what this pattern matches, may have changed: tell those who watch."""
        if self._watchers:
            self._tell(pattern)
        for call in tuple(self._observers):
            call(pattern)

    def redirect(self, meet: Callable[[bytes], Crossing | None] | None) -> None:
        """Let what clients publish meet something else where `meet` says so; None is the end of it.

        Sessions take their table anew afterwards.
        """
        self.client_table.clear()
        if meet is None:
            self.client_table, self._tables = self.table, (self.table,)
            return
        self._redirect = meet
        self.client_table = RouteTable(self._resolve_redirected, CLIENT_ROUTES_MAX, self.table.dirty)
        self.client_table.wake = self.table.wake
        self._tables = (self.table, self.client_table)

    def wake_by(self, call: Callable[[], None] | None, later: Later | None = None) -> None:
        """Call when the first session has output. Without `later` everything is done at once."""
        self.table.wake = self.client_table.wake = call
        self._later = later

    # Delivery

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send from inside the server to matching subscriptions and sinks; how many received it."""
        return self.table.publish(subject, reply, header, payload)

    def publish_many(self, parcels: Iterable[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """`publish` for each (subject, reply, header, payload), which is cheaper than one by one."""
        self.table.publish_many(parcels)

    def deliver(
        self, deliver_subject: bytes, shown_subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Send to those who listen on one subject a message that shows another; how many received it."""
        return self.table.send(self.table.find(deliver_subject), shown_subject, reply, header, payload)

    def route(self, subject: bytes) -> Route:
        """The receivers of a whole subject; good as long as `route.live`. For `table.send`."""
        return self.table.find(subject)

    # The index

    def _add(self, pattern: bytes, entry: Entry) -> None:
        if subjects.literal(pattern):
            self._literals.setdefault(pattern, []).append(entry)
            self._count(pattern, 1)
        else:
            self._root.place(pattern).append(entry)
        self._changed(pattern)
        for observe in self.on_entry:
            observe(pattern, entry, weight_of(entry))

    def _discard(self, pattern: bytes, entry: Entry) -> None:
        self._take_out(pattern, entry)
        self._changed(pattern)

    def _take_out(self, pattern: bytes, entry: Entry) -> None:
        if subjects.literal(pattern):
            there = self._literals[pattern]
            there.remove(entry)
            if not there:
                del self._literals[pattern]
            self._count(pattern, -1)
        else:
            self._root.place(pattern).remove(entry)
            self._prune(subjects.tokens(pattern))
        for observe in self.on_entry:
            observe(pattern, entry, -weight_of(entry))

    def _count(self, literal: bytes, change: int) -> None:
        """Keep how many literals are below a prefix, which tells where one route serves all children."""
        for counts, key in ((self._parents, parent_of(literal)), (self._heads, head_of(literal))):
            if key:
                counts[key] = counts.get(key, 0) + change
                if not counts[key]:
                    del counts[key]

    def _prune(self, tokens: list[bytes]) -> None:
        """Remove the nodes of a pattern that lead nowhere any more."""
        way = [self._root]
        for token in tokens:
            if token != subjects.REST:
                below = way[-1].star if token == subjects.STAR else way[-1].children[token]
                assert below is not None
                way.append(below)
        for depth in range(len(way) - 1, 0, -1):
            if not way[depth].bare:
                return
            if tokens[depth - 1] == subjects.STAR:
                way[depth - 1].star = None
            else:
                del way[depth - 1].children[tokens[depth - 1]]

    def _changed(self, pattern: bytes) -> None:
        """Interest in a pattern changed: forget the routes it concerns, tell those who watch."""
        if subjects.literal(pattern):
            for table in self._tables:
                table.drop(pattern)
                table.drop(parent_of(pattern))
                table.drop(head_of(pattern))
        else:
            for table in self._tables:
                table.drop_matching(pattern)
        if self._watchers or self._observers:
            self.tell(pattern)

    def _tell(self, pattern: bytes) -> None:
        if subjects.literal(pattern):
            concerned = [pattern] if pattern in self._watchers else []
        else:
            start = literal_start(pattern)
            concerned = [
                subject
                for subject in self._watchers
                if subject.startswith(start) and subjects.matches(pattern, subject)
            ]
        for subject in concerned:
            for call in tuple(self._watchers.get(subject, ())):
                call(subject)

    def _resolve_redirected(self, subject: bytes) -> Route:
        crossing = self._redirect(subject)
        if crossing is not None:
            return Route(subject, EXACT, [], [], [crossing])
        route = self._resolve(subject)
        # A neighbour may be mapped, so one route serves one subject.
        return Route(subject, EXACT, route.plain, route.groups, route.sinks)

    def _resolve(self, subject: bytes) -> Route:
        """Make the route of a whole subject, for as many subjects as share it."""
        tokens = subjects.tokens(subject)
        found: list[Entry] = list(self._literals.get(subject, ()))
        frontier, narrow, below_head = [self._root], False, False
        for depth, token in enumerate(tokens):
            if depth == 2:
                below_head = any(node.children or node.star for node in frontier)
            if depth == len(tokens) - 1:
                narrow = any(node.children for node in frontier)
            frontier = step(frontier, token, found)
        for node in frontier:
            found += node.entries
        key, kind = subject, EXACT
        if any(isinstance(entry, Passage | FarInterest) for entry in found):
            # What it meets there depends on the subject.
            return Route(key, kind, *sort_out(found, subject))
        if len(tokens) > 3 and not below_head and head_of(subject) not in self._heads:
            key, kind = head_of(subject), HEAD
        elif len(tokens) > 1 and not narrow and parent_of(subject) not in self._parents:
            key, kind = parent_of(subject), PARENT
        return Route(key, kind, *sort_out(found, subject))


def literal_start(pattern: bytes) -> bytes:
    """What every subject that a pattern with wildcards matches begins with."""
    tokens = subjects.tokens(pattern)
    first = next(i for i, token in enumerate(tokens) if token in (subjects.STAR, subjects.REST))
    return b"".join(token + b"." for token in tokens[:first])


def parent_of(subject: bytes) -> bytes:
    """The key of all children of a subject's prefix: `a.b.` for `a.b.c`; b"" for a single token."""
    return subject[: subject.rfind(b".") + 1]


def head_of(subject: bytes) -> bytes:
    """The key of everything below a subject's first two tokens: `a.b. ` for `a.b.c`; b"" without a third."""
    second = subject.find(b".", subject.find(b".") + 1)
    return subject[: second + 1] + b" " if second > 0 else b""
