"""What is told to another server of the interest here, and the set of connections it is told over.

Interest is counted by pattern and queue, so that the other side hears of the first and of the last subscription, and of
every change in a queue group. A server that dialled out (a spoke) tells what is wanted here and by those who dialled in;
the one that was dialled (a hub) tells what anybody else wants. Invariant: what a connection was told is what `counts` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.advisories import nuid
from headrace.broker.entries import weight_of
from headrace.broker.leaf_routes import FarInterest
from headrace.broker.router import Hub
from headrace.kernel import Subscription
from headrace.protocol import leaf

if TYPE_CHECKING:
    from headrace.broker.leaf import LeafSession

LOOP = b"$LDS."


class Leaves:
    """The leafnode connections of one account. `loop_subject` comes back only where connections form a ring."""

    def __init__(self, hub: Hub, account: str = "$G") -> None:
        self.hub = hub
        self.account = account
        self.sessions: list[LeafSession] = []
        self.loop_subject = LOOP + nuid().encode()
        #: Called when a connection has been made, with its session.
        self.on_joined: list[Callable[[LeafSession], None]] = []

    def join(self, session: LeafSession) -> None:
        """A connection is ready: tell it what is wanted here, now and from now on."""
        if not self.sessions:
            self.hub.on_entry.append(self.changed)
        self.sessions.append(session)
        session.told.begin(self)
        for call in self.on_joined:
            call(session)

    def part(self, session: LeafSession) -> None:
        """A connection is gone."""
        if session in self.sessions:
            self.sessions.remove(session)
            if not self.sessions:
                self.hub.on_entry.remove(self.changed)

    def changed(self, pattern: bytes, entry: Any, change: int) -> None:
        """Somebody came or went; `change` is how many there are more."""
        for session in tuple(self.sessions):
            session.told.count(pattern, entry, change)


class Told:
    """What one connection was told."""

    __slots__ = ("_session", "counts")

    def __init__(self, session: LeafSession) -> None:
        self._session = session
        self.counts: dict[tuple[bytes, bytes | None], int] = {}

    def begin(self, leaves: Leaves) -> None:
        """Everything that is wanted at this moment."""
        for pattern, entry in leaves.hub.entries():
            if self._concerns(pattern, entry):
                key = (pattern, queue_of(entry))
                self.counts[key] = self.counts.get(key, 0) + weight_of(entry)
        for pattern in leaves.hub.declared:
            if self._session.may_tell(pattern):
                self.counts[(pattern, None)] = self.counts.get((pattern, None), 0) + 1
        self.counts[(leaves.loop_subject, None)] = 1
        self._session.send(b"".join(leaf.add_interest(*key, count) for key, count in self.counts.items()))

    def count(self, pattern: bytes, entry: Any, change: int) -> None:
        """Interest changed: tell it where it makes a difference."""
        if not self._concerns(pattern, entry):
            return
        key = (pattern, queue_of(entry))
        before = self.counts.get(key, 0)
        after = max(before + change, 0)
        if after:
            self.counts[key] = after
        else:
            self.counts.pop(key, None)
        if after and (not before or (key[1] is not None and after != before)):
            self._session.send(leaf.add_interest(*key, after))
        elif before and not after:
            self._session.send(leaf.end_interest(*key))

    def _concerns(self, pattern: bytes, entry: Any) -> bool:
        session = self._session
        if isinstance(entry, FarInterest):
            other = entry.carrier
            if other is session or (session.cluster and other.cluster == session.cluster):
                return False
            if session.spoke and other.spoke and not pattern.startswith(LOOP):
                return False
        elif not getattr(entry, "announced", True):
            return False
        return session.may_tell(pattern)


def queue_of(entry: Any) -> bytes | None:
    """The queue group of an entry of the hub; parts of the server are in none."""
    if isinstance(entry, Subscription | FarInterest):
        return entry.queue
    return None
