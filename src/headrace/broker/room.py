"""What the streams of all accounts may keep together: the limits of the server itself.

They are looked at once a turn, not with each message: what crosses a limit is stored, what comes after it is refused
until there is room again. Without limits nothing is ever counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream


class Room:
    """`full` names the kinds of storage of which there is no more."""

    __slots__ = ("_looking", "_members", "_most", "full")

    def __init__(self, memory: int = -1, storage: int = -1) -> None:
        """How many bytes there are of each kind; -1 is any number."""
        self._most = {kind: most for kind, most in (("memory", memory), ("file", storage)) if most >= 0}
        self._members: list[JetStream] = []
        self._looking = False
        self.full: frozenset[str] = frozenset()

    def join(self, jetstream: JetStream) -> None:
        """Count the streams of one account more."""
        self._members.append(jetstream)
        self.look()

    def leave(self, jetstream: JetStream) -> None:
        """An account is closed."""
        if jetstream in self._members:
            self._members.remove(jetstream)

    def changed(self, jetstream: JetStream) -> None:
        """Something was stored or removed: look at the end of the turn."""
        if self._most and not self._looking:
            self._looking = True
            jetstream.later(self.look)

    def look(self) -> None:
        """Count, and let every stream know when it makes a difference."""
        self._looking = False
        full = frozenset(kind for kind, most in self._most.items() if self._used(kind) > most)
        if full == self.full:
            return
        self.full = full
        for jetstream in self._members:
            for stream in jetstream.streams.values():
                stream.choose_lane()

    def left(self, kind: str) -> int:
        """How many bytes there are still."""
        return self._most[kind] - self._used(kind) if kind in self._most else 1 << 62

    def _used(self, kind: str) -> int:
        return sum(jetstream.usage(kind)[0] for jetstream in self._members)
