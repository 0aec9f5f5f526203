"""Filters of a stream: which subjects a set of patterns wants, kept up as subjects appear.

Owns the classes of subjects: two subjects are of one class when exactly the same filters want them. A
filter is a mask over classes, so a subject costs four bytes however many filters there are, and a new
subject is looked up once in a trie. Invariant: after `refresh` every known subject has its class. Must
not know rows or files.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from headrace.protocol import subjects as syntax
from headrace.store.records import Array, Subjects

_BATCH = 32  # from so many new subjects on, one pass a filter is cheaper than a walk a subject


class Filter:
    """Patterns of which a subject must match at least one. Made by `FilterTable.get` only, which
    interns them.
    """

    __slots__ = ("__weakref__", "hits", "ident", "mask", "patterns")

    def __init__(self, patterns: tuple[bytes, ...], ident: int, mask: Array | None) -> None:
        self.patterns = patterns
        self.ident = ident
        self.mask = mask  # None: every class
        self.hits: dict[
            int, Array | None
        ] = {}  # sealed segment -> its matching rows, None where they are many

    def __repr__(self) -> str:
        return f"Filter{self.patterns!r}"


class _Node:
    __slots__ = ("below", "ends", "rest")

    def __init__(self) -> None:
        self.below: dict[bytes, _Node] = {}
        self.ends: list[int] = []  # filters whose pattern ends here
        self.rest: list[int] = []  # ... goes on with `>`


class FilterTable:
    """All filters of one stream."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self._everything = Filter((), -1, None)
        self._interned: weakref.WeakValueDictionary[tuple[bytes, ...], Filter] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self._by_ident: dict[int, weakref.ref[Filter]] = {}
        self._top = _Node()
        self._classes: list[tuple[int, ...]] = [()]
        self._class_of: dict[tuple[int, ...], int] = {(): 0}
        self._known = 0
        self._next = 0
        self._room = 8

    def get(self, patterns: tuple[bytes, ...]) -> Filter:
        """The one filter for these patterns; no pattern at all means everything."""
        wanted = tuple(sorted(dict.fromkeys(patterns)))
        if not wanted or b">" in wanted:
            return self._everything
        found = self._interned.get(wanted)
        if found is not None:
            return found
        if self._next > 64 and self._next > 4 * len(self._interned):
            self._rebuild()
        self.refresh()
        found = self._interned[wanted] = Filter(wanted, 0, np.zeros(self._room, np.uint8))
        self._admit(found)
        return found

    def _admit(self, fresh: Filter) -> None:
        fresh.ident = self._next
        self._next += 1
        self._by_ident[fresh.ident] = weakref.ref(fresh)
        for pattern in fresh.patterns:
            self._plant(pattern, fresh.ident)
        self._reclass(self._wanted_ids(fresh, 0), fresh.ident)

    def _rebuild(self) -> None:
        """Most filters are gone: start again with those that live, so that dead ones cost nothing."""
        alive = sorted(self._interned.items())
        self._reset()
        self._subjects.classes[:] = 0
        self._known = len(self._subjects)
        for _, each in alive:
            each.mask = np.zeros(self._room, np.uint8)
            self._admit(each)

    def _plant(self, pattern: bytes, ident: int) -> None:
        node, tokens = self._top, syntax.tokens(pattern)
        for token in tokens[:-1]:
            node = node.below.setdefault(token, _Node())
        if tokens[-1] == b">":
            node.rest.append(ident)
        else:
            node.below.setdefault(tokens[-1], _Node()).ends.append(ident)

    def _wanted_ids(self, each: Filter, start: int) -> Array:
        found = []
        for pattern in each.patterns:
            if syntax.literal(pattern):
                sid = self._subjects.find(pattern)
                found.append(np.array([sid] if sid >= start else [], np.uint32))
            else:
                found.append(self._subjects.match(pattern, start))
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _reclass(self, sids: Array, ident: int) -> None:
        """These subjects are wanted by one filter more."""
        classes = self._subjects.classes
        old = classes[sids]
        for one in np.unique(old).tolist():
            classes[sids[old == one]] = self._intern((*self._classes[one], ident))

    def _intern(self, idents: tuple[int, ...]) -> int:
        found = self._class_of.get(idents)
        if found is not None:
            return found
        found = self._class_of[idents] = len(self._classes)
        self._classes.append(idents)
        if found >= self._room:
            self._room *= 2
            for each in self._alive():
                assert each.mask is not None
                each.mask = np.concatenate([each.mask, np.zeros(self._room - len(each.mask), np.uint8)])
        for ident in idents:
            wanting = self._by_ident[ident]()
            if wanting is not None and wanting.mask is not None:
                wanting.mask[found] = 1
        return found

    def _alive(self) -> Iterator[Filter]:
        for reference in self._by_ident.values():
            each = reference()
            if each is not None:
                yield each

    def forget(self, segment: int) -> None:
        """A segment is gone: no filter need remember its rows."""
        for each in self._alive():
            each.hits.pop(segment, None)

    def renumbered(self) -> None:
        """Subjects have other ids, and their classes with them; `refresh` came before."""
        self._known = len(self._subjects)

    def refresh(self) -> None:
        """Gives every subject that appeared since its class."""
        total = len(self._subjects)
        if self._known == total:
            return
        start, self._known = self._known, total
        if not self._by_ident:
            return
        if total - start >= _BATCH:
            for each in list(self._alive()):
                self._reclass(self._wanted_ids(each, start), each.ident)
            return
        for sid in range(start, total):
            self._subjects.classes[sid] = self._intern(self._walk(self._subjects.name(sid)))

    def _walk(self, subject: bytes) -> tuple[int, ...]:
        found: list[int] = []
        nodes = [self._top]
        for token in syntax.tokens(subject):
            below = []
            for node in nodes:
                found += node.rest
                for key in dict.fromkeys((token, b"*")):
                    if key in node.below:
                        below.append(node.below[key])
            nodes = below
        for node in nodes:
            found += node.ends
        return tuple(sorted(set(found)))
