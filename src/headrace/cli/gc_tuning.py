"""Keeps the pauses of Python's garbage collector short in the server process.

A collection of the oldest generation looks at every object: with 10,000 streams it stops all clients for more than
100 ms. Here that generation stays small: its objects are collected in portions and then frozen, that is, excluded from
later collections. Frozen objects are still freed by their reference counts, closed client connections among them. Only
cycles are not, such as those of deleted consumers, so all objects are collected again after many of those. See ADR 22.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

#: Number of new objects before a collection of the young generation; Python's default since 3.13 is 2,000.
YOUNG_OBJECTS = 700
#: Number of collections of the young generation before one of the middle generation; Python's default of 10 takes 3 ms.
YOUNG_COLLECTIONS = 3
#: Number of collections of the middle generation in one portion; each has about 2,100 new objects.
COLLECTIONS_PER_PORTION = 3
#: All objects are collected after this many leafnodes, consumers and streams have ended.
ENDED_MAX = 10_000
#: These Pythons collect old objects in increments by themselves; 3.14.5 went back to generations.
INCREMENTAL = (3, 14) <= sys.version_info < (3, 14, 5)
#: Never reached: collections of the oldest generation are started here only.
_NEVER = 1_000_000_000


class PortionedGc:
    """Collects and freezes old objects in portions. `call_soon_threadsafe` runs a call on the server's thread."""

    def __init__(
        self, call_soon_threadsafe: Callable[[Callable[[], None]], object], count_ended: Callable[[], int]
    ) -> None:
        """`count_ended` returns how many leafnodes, consumers and streams have ended since the start."""
        self._call_soon_threadsafe = call_soon_threadsafe
        self._count_ended = count_ended
        self._thresholds = gc.get_threshold()
        self._ended = 0
        self._collections = 0

    def start(self) -> None:
        """Freeze what exists and begin, even if collection was disabled.

        Nothing is collected first: there is hardly any garbage after a start, and clients may be waiting already.
        Nothing else is done if collections are incremental.
        """
        gc.freeze()
        gc.enable()
        if not INCREMENTAL:
            gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, _NEVER)
            gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Restore Python's defaults."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase != "stop" or info["generation"] != 1:
            return
        self._collections += 1
        if self._collections == COLLECTIONS_PER_PORTION:
            self._call_soon_threadsafe(self._collect_portion)

    def _collect_portion(self) -> None:
        self._collections = 0
        ended = self._count_ended()
        if ended - self._ended >= ENDED_MAX:
            self._ended = ended
            gc.unfreeze()
        gc.collect()
        gc.freeze()
