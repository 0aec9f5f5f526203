"""Subject filters of a stream: which subjects match a set of patterns, updated as new subjects appear.

Owns the classes of subjects: two subjects are in one class when exactly the same filters match them. A filter is a mask
over classes, so a subject costs four bytes however many filters there are, and a new subject is looked up once in a
trie. Invariant: after `refresh` every known subject has its class. Must not know rows or files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from headrace.protocol import subjects as syntax
from headrace.storage.native_records import Array, SubjectIndex
from headrace.storage.sequence_arrays import sort_unique

_BULK_MIN = (
    32  # from this many new subjects on, one pass per filter is cheaper than one trie walk per subject
)


class Filter:
    """Patterns of which a subject must match at least one. Only `FilterTable.get` makes filters; it interns them."""

    __slots__ = ("__weakref__", "ident", "mask", "matching_rows", "patterns")

    def __init__(self, patterns: tuple[bytes, ...], ident: int, mask: Array | None) -> None:
        self.patterns = patterns
        self.ident = ident
        self.mask = mask  # None: every class
        #: Sealed segment -> its matching rows, None if there are many.
        self.matching_rows: dict[int, Array | None] = {}

    def __repr__(self) -> str:
        return f"Filter{self.patterns!r}"


class _PatternNode:
    __slots__ = ("children", "ending_here", "tail_wildcards")

    def __init__(self) -> None:
        self.children: dict[bytes, _PatternNode] = {}
        self.ending_here: list[int] = []  # filters whose pattern ends here
        self.tail_wildcards: list[int] = []  # filters whose pattern continues with `>` here


class FilterTable:
    """All filters of one stream."""

    def __init__(self, subjects: SubjectIndex) -> None:
        self._subjects = subjects
        self._match_all = Filter((), -1, None)
        self._interned: weakref.WeakValueDictionary[tuple[bytes, ...], Filter] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self._by_ident: dict[int, weakref.ref[Filter]] = {}
        self._root = _PatternNode()
        self._classes: list[tuple[int, ...]] = [()]
        self._class_ids: dict[tuple[int, ...], int] = {(): 0}
        self._classified = 0
        self._next_ident = 0
        self._mask_capacity = 8

    def get(self, patterns: tuple[bytes, ...]) -> Filter:
        """Return the one filter for these patterns; no pattern matches everything."""
        key_patterns = tuple(sorted(dict.fromkeys(patterns)))
        if not key_patterns or b">" in key_patterns:
            return self._match_all
        found = self._interned.get(key_patterns)
        if found is not None:
            return found
        if self._next_ident > 64 and self._next_ident > 4 * len(self._interned):
            self._rebuild()
        self.refresh()
        found = self._interned[key_patterns] = Filter(
            key_patterns, 0, np.zeros(self._mask_capacity, np.uint8)
        )
        self._register(found)
        return found

    def _register(self, new_filter: Filter) -> None:
        new_filter.ident = self._next_ident
        self._next_ident += 1
        self._by_ident[new_filter.ident] = weakref.ref(new_filter)
        for pattern in new_filter.patterns:
            self._insert_pattern(pattern, new_filter.ident)
        self._add_to_classes(self._find_matching_ids(new_filter, 0), new_filter.ident)

    def _rebuild(self) -> None:
        """Rebuild from the filters that are alive, when most are gone, so that dead ones cost nothing."""
        alive = sorted(self._interned.items())
        self._reset()
        self._subjects.classes[:] = 0
        self._classified = len(self._subjects)
        for _, each in alive:
            each.mask = np.zeros(self._mask_capacity, np.uint8)
            self._register(each)

    def _insert_pattern(self, pattern: bytes, ident: int) -> None:
        node, tokens = self._root, syntax.tokens(pattern)
        for token in tokens[:-1]:
            node = node.children.setdefault(token, _PatternNode())
        if tokens[-1] == b">":
            node.tail_wildcards.append(ident)
        else:
            node.children.setdefault(tokens[-1], _PatternNode()).ending_here.append(ident)

    def _find_matching_ids(self, each: Filter, start: int) -> Array:
        found = []
        for pattern in each.patterns:
            if syntax.is_literal(pattern):
                sid = self._subjects.find(pattern)
                found.append(np.array([sid] if sid >= start else [], np.uint32))
            else:
                found.append(self._subjects.match(pattern, start))
        return found[0] if len(found) == 1 else sort_unique(np.concatenate(found))

    def _add_to_classes(self, sids: Array, ident: int) -> None:
        """Add a filter to the classes of these subjects."""
        classes = self._subjects.classes
        old = classes[sids]
        for one in sort_unique(old).tolist():
            classes[sids[old == one]] = self._get_or_create_class((*self._classes[one], ident))

    def _get_or_create_class(self, idents: tuple[int, ...]) -> int:
        found = self._class_ids.get(idents)
        if found is not None:
            return found
        found = self._class_ids[idents] = len(self._classes)
        self._classes.append(idents)
        if found >= self._mask_capacity:
            self._mask_capacity *= 2
            for each in self._iter_live_filters():
                assert each.mask is not None
                each.mask = np.concatenate(
                    [each.mask, np.zeros(self._mask_capacity - len(each.mask), np.uint8)]
                )
        for ident in idents:
            matching_filter = self._by_ident[ident]()
            if matching_filter is not None and matching_filter.mask is not None:
                matching_filter.mask[found] = 1
        return found

    def _iter_live_filters(self) -> Iterator[Filter]:
        for reference in self._by_ident.values():
            each = reference()
            if each is not None:
                yield each

    def drop_segment(self, segment: int) -> None:
        """Drop the cached rows of a segment that is gone."""
        for each in self._iter_live_filters():
            each.matching_rows.pop(segment, None)

    def on_subjects_remapped(self) -> None:
        """Handle new ids of subjects; their classes moved with them. `refresh` must run before."""
        self._classified = len(self._subjects)

    def refresh(self) -> None:
        """Assign a class to every subject that appeared since the last call."""
        total = len(self._subjects)
        if self._classified == total:
            return
        start, self._classified = self._classified, total
        if not self._by_ident:
            return
        if total - start >= _BULK_MIN:
            for each in list(self._iter_live_filters()):
                self._add_to_classes(self._find_matching_ids(each, start), each.ident)
            return
        for sid in range(start, total):
            self._subjects.classes[sid] = self._get_or_create_class(
                self._match_subject(self._subjects.name(sid))
            )

    def _match_subject(self, subject: bytes) -> tuple[int, ...]:
        found: list[int] = []
        nodes = [self._root]
        for token in syntax.tokens(subject):
            children = []
            for node in nodes:
                found += node.tail_wildcards
                for key in dict.fromkeys((token, b"*")):
                    if key in node.children:
                        children.append(node.children[key])
            nodes = children
        for node in nodes:
            found += node.ending_here
        return tuple(sorted(set(found)))
