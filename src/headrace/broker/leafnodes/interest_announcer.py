"""Announces the interest on this server to the servers at the other end of leafnode connections.

Interest is counted by pattern and queue, so that the other side is notified of the first and the last subscription, and
of every change in a queue group. A server that dialed out (a spoke) announces the interest of its own clients and of
servers that dialed in; a server that was dialed (a hub) announces the interest of everybody else. Invariant: what was
announced on a connection is what `counts` contains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace._native import Subscription
from headrace.broker.routing.remote_interest import RemoteInterest
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.subscription_trie import queue_weight
from headrace.protocol import leafnode
from headrace.protocol.nuid import nuid

if TYPE_CHECKING:
    from headrace.broker.leafnodes.leafnode_session import LeafnodeSession

LOOP_PREFIX = b"$LDS."


class LeafnodeSet:
    """The leafnode connections of one account. `loop_subject` comes back only if connections form a cycle."""

    def __init__(self, router: SubjectRouter, account: str = "$G") -> None:
        self.router = router
        self.account = account
        self.sessions: list[LeafnodeSession] = []
        self.loop_subject = LOOP_PREFIX + nuid().encode()
        #: Called with the session of each connection that was established.
        self.on_established: list[Callable[[LeafnodeSession], None]] = []

    def add(self, session: LeafnodeSession) -> None:
        """Announce current and future interest to an established connection."""
        if not self.sessions:
            self.router.watch_entries(self.on_entry_changed)
        self.sessions.append(session)
        session.announced_interest.announce_all(self)
        for call in self.on_established:
            call(session)

    def remove(self, session: LeafnodeSession) -> None:
        """Remove a closed connection."""
        if session in self.sessions:
            self.sessions.remove(session)
            if not self.sessions:
                self.router.unwatch_entries(self.on_entry_changed)

    def on_entry_changed(self, pattern: bytes, entry: Any, change: int) -> None:
        """Announce a change of interest; `change` is the change in the number of members."""
        for session in tuple(self.sessions):
            session.announced_interest.update(pattern, entry, change)


class AnnouncedInterest:
    """The interest announced on one connection."""

    __slots__ = ("_session", "counts")

    def __init__(self, session: LeafnodeSession) -> None:
        self._session = session
        self.counts: dict[tuple[bytes, bytes | None], int] = {}

    def announce_all(self, leafnodes: LeafnodeSet) -> None:
        """Announce all current interest."""
        for pattern, entry in leafnodes.router.entries():
            if self._should_announce(pattern, entry):
                key = (pattern, get_queue(entry))
                self.counts[key] = self.counts.get(key, 0) + queue_weight(entry)
        for pattern in leafnodes.router.announced_patterns:
            if self._session.may_announce(pattern):
                self.counts[(pattern, None)] = self.counts.get((pattern, None), 0) + 1
        self.counts[(leafnodes.loop_subject, None)] = 1
        self._session.send(
            b"".join(leafnode.encode_interest(*key, count) for key, count in self.counts.items())
        )

    def update(self, pattern: bytes, entry: Any, change: int) -> None:
        """Announce a change of interest if it makes a difference."""
        if not self._should_announce(pattern, entry):
            return
        key = (pattern, get_queue(entry))
        before = self.counts.get(key, 0)
        after = max(before + change, 0)
        if after:
            self.counts[key] = after
        else:
            self.counts.pop(key, None)
        if after and (not before or (key[1] is not None and after != before)):
            self._session.send(leafnode.encode_interest(*key, after))
        elif before and not after:
            self._session.send(leafnode.encode_no_interest(*key))

    def _should_announce(self, pattern: bytes, entry: Any) -> bool:
        session = self._session
        if isinstance(entry, RemoteInterest):
            other = entry.sender
            if other is session or (session.cluster and other.cluster == session.cluster):
                return False
            if session.spoke and other.spoke and not pattern.startswith(LOOP_PREFIX):
                return False
        elif not getattr(entry, "announced", True):
            return False
        return session.may_announce(pattern)


def get_queue(entry: Any) -> bytes | None:
    """Return the queue group of an entry of the router; None for internal subscribers."""
    if isinstance(entry, Subscription | RemoteInterest):
        return entry.queue
    return None
