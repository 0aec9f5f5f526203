"""Finds the first of many patterns that matches a subject, without comparing each of them.

Owns a trie of tokens, built when it is first needed. A question costs about as many steps as the subject has tokens,
however many patterns there are; patterns with `*` at several places can add branches. A few patterns are compared one
by one, because that is faster.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.protocol.subjects import REST, STAR, is_well_formed, matches, tokens

#: Up to so many patterns are compared one by one.
_FEW = 4
NOT_FOUND = -1


class _IndexNode:
    __slots__ = ("children", "position")

    def __init__(self) -> None:
        self.children: dict[bytes, _IndexNode] = {}
        self.position = NOT_FOUND  # of the first pattern that ends here


class PatternIndex:
    """Patterns in a fixed order."""

    __slots__ = ("_patterns", "_root")

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = tuple(patterns)
        self._root: _IndexNode | None = None

    def matches_any(self, subject: bytes) -> bool:
        """Return whether a pattern matches the subject."""
        return self.find_first(subject) != NOT_FOUND

    def find_first(self, subject: bytes) -> int:
        """Return the position of the first pattern that matches the subject, or `NOT_FOUND`."""
        if len(self._patterns) <= _FEW:
            for position, pattern in enumerate(self._patterns):
                if matches(pattern, subject):
                    return position
            return NOT_FOUND
        return self._search(subject) if is_well_formed(subject) else NOT_FOUND

    def _search(self, subject: bytes) -> int:
        first = len(self._patterns)
        nodes = [self._root or self._build()]
        for token in tokens(subject):
            below: list[_IndexNode] = []
            for node in nodes:
                children = node.children
                rest = children.get(REST)
                if rest is not None and NOT_FOUND < rest.position < first:
                    first = rest.position
                child = children.get(token)
                if child is not None and token != REST:
                    below.append(child)
                if token != STAR and (star := children.get(STAR)) is not None:
                    below.append(star)
            nodes = below
        for node in nodes:
            if NOT_FOUND < node.position < first:
                first = node.position
        return first if first < len(self._patterns) else NOT_FOUND

    def _build(self) -> _IndexNode:
        root = self._root = _IndexNode()
        for position, pattern in enumerate(self._patterns):
            node = root
            for token in tokens(pattern):
                child = node.children.get(token)
                if child is None:
                    child = node.children[token] = _IndexNode()
                node = child
            if node.position == NOT_FOUND:
                node.position = position
        return root
