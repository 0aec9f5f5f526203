"""A simple model of permissions: sets of concrete subjects, without optimizations.

Independent of the implementation: patterns are compared by what they match in a small universe, which is large
enough for patterns of up to two tokens over the letters a and b. It is checked against both servers. See ADR 72.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache

#: `c` represents every token that no rule names, depth three everything deeper.
UNIVERSE = [".".join(tokens) for depth in (1, 2, 3) for tokens in itertools.product("abc", repeat=depth)]


@cache
def meant(pattern: str) -> frozenset[str]:
    """Return the subjects of the universe that a pattern matches."""
    parts = [{"*": "[^.]+", ">": ".+"}.get(token, re.escape(token)) for token in pattern.split(".")]
    expression = re.compile(r"\.".join(parts))
    return frozenset(subject for subject in UNIVERSE if expression.fullmatch(subject))


@dataclass(frozen=True)
class Rules:
    """A user's rules; an entry is `subject` or, for subscriptions, `subject queue`."""

    publish_allow: tuple[str, ...] | None = None
    publish_deny: tuple[str, ...] = ()
    subscribe_allow: tuple[str, ...] | None = None
    subscribe_deny: tuple[str, ...] = ()

    def may_publish(self, subject: str) -> bool:
        """Return whether an entry allows it (or there is no list), and none denies it."""
        allowed = self.publish_allow is None or any(subject in meant(entry) for entry in self.publish_allow)
        return allowed and not any(subject in meant(entry) for entry in self.publish_deny)

    def may_subscribe(self, pattern: str, queue: str | None) -> bool:
        """Return whether an entry that covers it allows it, and none that covers it denies it."""
        if any(self._names(entry, queue) for entry in self._covering(self.subscribe_deny, pattern)):
            return False
        if not self.subscribe_allow:
            return True
        covering = self._covering(self.subscribe_allow, pattern)
        with_queue = [entry for entry in covering if " " in entry]
        if queue is not None and with_queue:
            return any(self._names(entry, queue) for entry in with_queue)
        return any(" " not in entry for entry in covering)

    def delivered(self, pattern: str, queue: str | None) -> frozenset[str]:
        """Return the subjects that an accepted subscription receives: all that it matches, except denied ones."""
        denied = [meant(entry.split()[0]) for entry in self.subscribe_deny if self._names(entry, queue)]
        return meant(pattern).difference(*denied)

    @staticmethod
    def _covering(entries: tuple[str, ...], pattern: str) -> list[str]:
        return [entry for entry in entries if meant(pattern) <= meant(entry.split()[0])]

    @staticmethod
    def _names(entry: str, queue: str | None) -> bool:
        """Return whether an entry applies to a subscription with this queue."""
        words = entry.split()
        return len(words) == 1 or (
            queue is not None and re.fullmatch(words[1].replace("*", "[^.]+"), queue) is not None
        )


def small_patterns() -> list[str]:
    """Return every pattern of up to two tokens."""
    firsts = ["a", "b", "*"]
    return [*firsts, ">", *(f"{first}.{second}" for first in firsts for second in ("a", "b", "*", ">"))]
