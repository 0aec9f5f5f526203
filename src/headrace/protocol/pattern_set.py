"""A set of subject patterns that finds overlaps without comparing every pair.

Owns a trie of tokens. A question costs about as many steps as the pattern has tokens; only a `*` has to look at every
branch of its level. `visits` counts the steps, so that a caller can limit what one request may cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.protocol.subjects import REST, STAR, tokens


class TooManyVisits(Exception):
    """A question needed more steps than allowed."""


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.count = 0  # how many of the patterns end here


class PatternSet:
    """Patterns, each possibly several times."""

    __slots__ = ("_root", "_visits_max", "visits")

    def __init__(self, patterns: Iterable[bytes] = (), *, visits_max: int = 1 << 60) -> None:
        self._root = _Node()
        self._visits_max = visits_max
        #: Steps since the start, or since the caller set it to 0.
        self.visits = 0
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: bytes) -> None:
        """Add a pattern once more."""
        node = self._root
        for token in tokens(pattern):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        node.count += 1

    def discard(self, pattern: bytes) -> None:
        """Remove a pattern once; do nothing if it is not there."""
        node, path = self._root, []
        for token in tokens(pattern):
            child = node.children.get(token)
            if child is None:
                return
            path.append((node, token))
            node = child
        if not node.count:
            return
        node.count -= 1
        for parent, token in reversed(path):
            if node.count or node.children:
                break
            del parent.children[token]
            node = parent

    def __contains__(self, pattern: bytes) -> bool:
        node: _Node | None = self._root
        for token in tokens(pattern):
            node = node.children.get(token) if node is not None else None
        return node is not None and node.count > 0

    def overlaps(self, pattern: bytes) -> bool:
        """Return whether some subject matches both this pattern and one in the set."""
        frontier = [self._root]
        for token in tokens(pattern):
            self._count(len(frontier))
            if token == REST:
                return any(self._has_longer(node) for node in frontier)
            following: list[_Node] = []
            for node in frontier:
                children = node.children
                rest = children.get(REST)
                if rest is not None and rest.count:
                    return True
                if token == STAR:
                    self._count(len(children))
                    following += children.values()
                else:
                    following += [
                        child for name in (token, STAR) if (child := children.get(name)) is not None
                    ]
            frontier = following
        return any(node.count for node in frontier)

    def covers(self, pattern: bytes) -> bool:
        """Return whether one pattern in the set matches every subject that this pattern matches."""
        frontier = [self._root]
        for token in tokens(pattern):
            self._count(len(frontier))
            following: list[_Node] = []
            for node in frontier:
                rest = node.children.get(REST)
                if rest is not None and rest.count:
                    return True
                if token == REST:
                    continue
                names = (token,) if token == STAR else (token, STAR)
                following += [child for name in names if (child := node.children.get(name)) is not None]
            frontier = following
        return any(node.count for node in frontier)

    def _has_longer(self, node: _Node) -> bool:
        """Return whether a pattern continues below this node."""
        waiting = list(node.children.values())
        while waiting:
            self._count(1)
            child = waiting.pop()
            if child.count:
                return True
            waiting += child.children.values()
        return False

    def _count(self, visits: int) -> None:
        self.visits += visits
        if self.visits > self._visits_max:
            raise TooManyVisits
