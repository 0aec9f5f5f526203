"""Index from subjects to the consumers of a stream whose filters match.

Owns nothing but the index. Adding and removing a consumer costs the same whatever the number of consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.routing.subscription_trie import TrieNode, descend
from headrace.protocol import subjects
from headrace.storage import Filter

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer import Consumer

CACHE_MAX = 16_384


class FilterIndex:
    """Literal filters by name, patterns in a trie, results cached."""

    __slots__ = (
        "_cache",
        "_literals",
        "_patterns",
        "_removed_patterns",
        "_root",
        "_unfiltered",
        "_with_many_filters",
    )

    def __init__(self) -> None:
        self._cache: dict[bytes, tuple[Consumer, ...]] = {}
        self._literals: dict[bytes, dict[Consumer, None]] = {}
        self._unfiltered: dict[Consumer, None] = {}
        #: Consumers with many filters, and what finds out whether one of them matches.
        self._with_many_filters: dict[Consumer, Filter] = {}
        self._patterns: dict[tuple[bytes, Consumer], None] = {}
        self._removed_patterns = 0
        self._root = TrieNode()

    def add(self, consumer: Consumer, filters: Sequence[bytes], subject_filter: Filter | None = None) -> None:
        """Add a consumer with these filters; without filters it receives every subject."""
        self._cache.clear()
        if subject_filter is not None and subject_filter.has_many_patterns:
            self._with_many_filters[consumer] = subject_filter
            return
        if not filters:
            self._unfiltered[consumer] = None
        for pattern in filters:
            if subjects.is_literal(pattern):
                self._literals.setdefault(pattern, {})[consumer] = None
            else:
                self._patterns[pattern, consumer] = None
                self._root.get_or_create_entries(pattern).append(consumer)

    def remove(self, consumer: Consumer, filters: Iterable[bytes]) -> None:
        """Remove a consumer that was added with these filters."""
        self._cache.clear()
        self._unfiltered.pop(consumer, None)
        if self._with_many_filters.pop(consumer, None) is not None:
            return
        for pattern in filters:
            if subjects.is_literal(pattern):
                consumers = self._literals.get(pattern, {})
                consumers.pop(consumer, None)
                if not consumers:
                    self._literals.pop(pattern, None)
            elif (pattern, consumer) in self._patterns:
                del self._patterns[pattern, consumer]
                self._root.get_or_create_entries(pattern).remove(consumer)
                self._removed_patterns += 1
        # Nodes without entries stay in the trie: build a new one when most of them may be empty.
        if self._removed_patterns > len(self._patterns):
            self._removed_patterns = 0
            self._root = TrieNode()
            for pattern, each in self._patterns:
                self._root.get_or_create_entries(pattern).append(each)

    def find_matching(self, subject: bytes) -> tuple[Consumer, ...]:
        """Return the consumers whose filter matches a subject."""
        found = self._cache.get(subject)
        if found is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            found = self._cache[subject] = self._match(subject)
        return found

    def _match(self, subject: bytes) -> tuple[Consumer, ...]:
        found: list[Any] = [*self._unfiltered, *self._literals.get(subject, ())]
        frontier = [self._root]
        for token in subjects.tokens(subject):
            frontier = descend(frontier, token, found)
        for node in frontier:
            found += node.entries
        found += [each for each, own in self._with_many_filters.items() if own.matches(subject)]
        return tuple(dict.fromkeys(found))
