"""Subject filters of a stream: which subjects match a set of patterns, updated as new subjects appear.

Owns the classes of subjects: two subjects are in one class when exactly the same filters match them. A filter is a mask
over classes, so a subject costs four bytes however many filters there are, and a new subject is looked up once in a
trie. Invariant: after `refresh` every known subject has its class. Must not know rows or files.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator

import numpy as np

from headrace.protocol import subjects as syntax
from headrace.storage.native_records import Array, SubjectIndex
from headrace.storage.sequence_arrays import sort_unique

#: From this many new subjects on, one pass per filter is cheaper than one trie walk per subject.
_BULK_MIN = 32
#: A filter with more patterns has a trie of its own: it is walked once per subject, instead of a pass per pattern.
_MANY_PATTERNS = 64
#: Number of patterns that are added, subjects that walk a trie, and subjects that are compared with one pattern or get
#: another class, in one slice.
_PATTERNS_PER_SLICE = 512
_WALKS_PER_SLICE = 1_024
_MATCHES_PER_SLICE = 65_536


_NO_IDS: Array = np.empty(0, np.uint32)


class Filter:
    """Patterns of which a subject must match at least one. Only `FilterTable.get` makes filters; it interns them."""

    __slots__ = ("__weakref__", "mask", "matching_rows", "owner", "patterns", "root")

    def __init__(self, patterns: tuple[bytes, ...], mask: Array | None = None) -> None:
        self.patterns = patterns
        self.owner = _Owner()
        #: The trie of its own; None if it has few patterns.
        self.root: _PatternNode | None = None
        self.mask = mask  # None: every class
        #: Sealed segment -> its matching rows, None if there are many.
        self.matching_rows: dict[int, Array | None] = {}

    def __repr__(self) -> str:
        return f"Filter{self.patterns!r}"

    @property
    def has_many_patterns(self) -> bool:
        """Whether `matches` is cheaper than to look for its patterns elsewhere."""
        return self.root is not None

    def matches(self, subject: bytes) -> bool:
        """Return whether a subject, known or not, matches."""
        if self.root is not None:
            return bool(_find_owners([self.root], subject))
        return not self.patterns or any(syntax.matches(pattern, subject) for pattern in self.patterns)


class _Owner:
    """Stands for a filter in the tries, which must not keep it alive."""

    __slots__ = ("ident",)

    def __init__(self) -> None:
        self.ident = -1  # until it is registered


class _PatternNode:
    __slots__ = ("children", "ending_here", "tail_wildcards")

    def __init__(self) -> None:
        self.children: dict[bytes, _PatternNode] = {}
        self.ending_here: list[_Owner] = []  # filters whose pattern ends here
        self.tail_wildcards: list[_Owner] = []  # filters whose pattern continues with `>` here

    def insert(self, pattern: bytes, owner: _Owner) -> None:
        """Add a pattern of a filter below this node."""
        node, tokens = self, syntax.tokens(pattern)
        for token in tokens[:-1]:
            node = node.children.setdefault(token, _PatternNode())
        if tokens[-1] == b">":
            node.tail_wildcards.append(owner)
        else:
            node.children.setdefault(tokens[-1], _PatternNode()).ending_here.append(owner)


def _find_owners(roots: list[_PatternNode], subject: bytes) -> list[_Owner]:
    """Return the filters in some tries that match a subject; a filter may appear more than once."""
    found: list[_Owner] = []
    nodes = roots
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
    return found


class FilterTable:
    """All filters of one stream."""

    def __init__(self, subjects: SubjectIndex) -> None:
        self._subjects = subjects
        self._match_all = Filter(())
        self.remapped = 0  # how often subjects got new ids
        self._interned: weakref.WeakValueDictionary[tuple[bytes, ...], Filter] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self._by_ident: dict[int, weakref.ref[Filter]] = {}
        self._roots = [_PatternNode()]  # of all filters with few patterns, then one for each other filter
        self._classes: list[tuple[int, ...]] = [()]
        self._class_ids: dict[tuple[int, ...], int] = {(): 0}
        self._classified = 0
        self._next_ident = 0
        self._mask_capacity = 8

    def get(self, patterns: tuple[bytes, ...]) -> Filter:
        """Return the one filter for these patterns; no pattern matches everything."""
        known = self._interned.get(patterns)
        if known is not None:
            return known
        steps = self.iter_get(patterns)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                found: Filter = finished.value
                return found

    def iter_get(self, patterns: tuple[bytes, ...]) -> Generator[None, None, Filter]:
        """Return the one filter for these patterns; work in slices if there are many patterns or subjects."""
        key_patterns = tuple(sorted(dict.fromkeys(patterns)))
        if not key_patterns or b">" in key_patterns:
            return self._match_all
        known = self._interned.get(key_patterns)
        if known is not None:
            return known
        new_filter = Filter(key_patterns)
        if len(key_patterns) > _MANY_PATTERNS:
            new_filter.root = yield from _iter_build_trie(new_filter)
        yield from self._iter_register(new_filter)
        # Somebody else may have been faster.
        return self._interned.setdefault(key_patterns, new_filter)

    def _iter_register(self, new_filter: Filter) -> Generator[None, None, None]:
        """Add a filter to the classes of all known subjects that match it, in slices."""
        sids = yield from self._iter_matching_ids(new_filter)
        # From here on, subjects that appear are compared with it, too.
        self._register(new_filter, _NO_IDS)
        at, remapped = 0, self.remapped
        while at < len(sids):
            self._add_to_classes(sids[at : at + _MATCHES_PER_SLICE], new_filter.owner.ident)
            at += _MATCHES_PER_SLICE
            if at < len(sids):
                yield
            if remapped != self.remapped:
                sids = yield from self._iter_matching_ids(new_filter)
                at, remapped = 0, self.remapped

    def _iter_matching_ids(self, new_filter: Filter) -> Generator[None, None, Array]:
        """Find the ids of all known subjects that match, in slices of subjects."""
        while True:
            found, at, remapped = [_NO_IDS], 0, self.remapped
            per_slice = (
                _WALKS_PER_SLICE if new_filter.root else _MATCHES_PER_SLICE // len(new_filter.patterns)
            )
            while (known := len(self._subjects)) > at and remapped == self.remapped:
                end = min(at + max(per_slice, 1), known)
                found.append(self._find_matching_ids(new_filter, at, end))
                at = end
                if at < known:
                    yield
            if remapped == self.remapped:
                return np.concatenate(found)

    def _register(self, new_filter: Filter, sids: Array) -> None:
        """Add a filter; `sids` are the known subjects that match it."""
        if self._next_ident > 64 and self._next_ident > 4 * len(self._interned):
            self._rebuild()
        self.refresh()
        new_filter.owner.ident = self._next_ident
        new_filter.mask = np.zeros(self._mask_capacity, np.uint8)
        self._next_ident += 1
        self._by_ident[new_filter.owner.ident] = weakref.ref(new_filter)
        self._insert_patterns(new_filter)
        self._add_to_classes(sids, new_filter.owner.ident)

    def _insert_patterns(self, new_filter: Filter) -> None:
        if new_filter.root is not None:
            self._roots.append(new_filter.root)
            return
        for pattern in new_filter.patterns:
            self._roots[0].insert(pattern, new_filter.owner)

    def _rebuild(self) -> None:
        """Rebuild from the filters that are alive, when most are gone, so that dead ones cost nothing."""
        self.refresh()
        classes = self._subjects.classes
        alive = [
            (each, np.flatnonzero(each.mask[classes]).astype(np.uint32))
            for each in self._iter_live_filters()
            if each.mask is not None
        ]
        self._reset()
        self._subjects.classes[:] = 0
        self._classified = len(self._subjects)
        for each, sids in alive:
            self._register(each, sids)

    def _find_matching_ids(self, each: Filter, start: int, end: int) -> Array:
        """Return the ids from `start` to `end` (exclusive) that match."""
        name = self._subjects.name
        if each.root is not None:
            roots = [each.root]
            return np.array([sid for sid in range(start, end) if _find_owners(roots, name(sid))], np.uint32)
        found = []
        for pattern in each.patterns:
            if syntax.is_literal(pattern):
                sid = self._subjects.find(pattern)
                found.append(np.array([sid] if start <= sid < end else [], np.uint32))
            else:
                found.append(self._subjects.match(pattern, start, end))
        return found[0] if len(found) == 1 else sort_unique(np.concatenate(found))

    def _add_to_classes(self, sids: Array, ident: int) -> None:
        """Add a filter to the classes of these subjects."""
        classes = self._subjects.classes
        old = classes[sids]
        found = np.flatnonzero(np.bincount(old)).tolist()
        if len(found) == 1:  # usually: there is no other filter
            classes[sids] = self._add_to_class(found[0], ident)
            return
        for one in found:
            classes[sids[old == one]] = self._add_to_class(one, ident)

    def _add_to_class(self, class_id: int, ident: int) -> int:
        """Return the class of subjects that a filter matches besides the filters of a class."""
        idents = self._classes[class_id]
        return class_id if ident in idents else self._get_or_create_class(tuple(sorted((*idents, ident))))

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
        self.remapped += 1

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
                self._add_to_classes(self._find_matching_ids(each, start, total), each.owner.ident)
            return
        for sid in range(start, total):
            self._subjects.classes[sid] = self._get_or_create_class(
                self._match_subject(self._subjects.name(sid))
            )

    def _match_subject(self, subject: bytes) -> tuple[int, ...]:
        return tuple(sorted({each.ident for each in _find_owners(self._roots, subject)}))


def _iter_build_trie(new_filter: Filter) -> Generator[None, None, _PatternNode]:
    root = _PatternNode()
    for number, pattern in enumerate(new_filter.patterns, 1):
        root.insert(pattern, new_filter.owner)
        if number % _PATTERNS_PER_SLICE == 0:
            yield
    return root
