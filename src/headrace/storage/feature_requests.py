"""Which format features may be used: makes the store's root name them.

Owns the requests for features. Invariant: nothing that needs a feature is written before a durable root names it, and a
store that never used a feature does not need it. Must not know what a feature is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from headrace.errors import StoreError
from headrace.storage.io.disk import DoneCallback


class SpaceState(Protocol):
    """Knows whether the disk is full."""

    full: bool


class FeatureRequests:
    """The features of one store."""

    def __init__(self, require: Callable[[str, DoneCallback], None], space: SpaceState) -> None:
        """`require` is that of the store's checkpoints."""
        self._require = require
        self._space = space
        self._requested: set[str] = set()
        self._ready: set[str] = set()

    def add_ready(self, features: Iterable[str]) -> None:
        """Add features that the newest durable root names."""
        self._ready.update(features)

    def is_ready(self, feature: str) -> bool:
        """Return whether the newest durable root names a feature, so that it may be used."""
        return feature in self._ready

    def request(self, feature: str) -> bool:
        """Request a feature unless that is done; return whether it may be used.

        After a failure for lack of space it can be requested again, but not while the disk is full.
        """
        if feature in self._ready or feature in self._requested or self._space.full:
            return feature in self._ready
        self._requested.add(feature)
        try:
            self._require(feature, partial(self._on_root_durable, feature))
        except StoreError:
            self._requested.discard(feature)  # the store failed: nothing is written any more
        return False

    def _on_root_durable(self, feature: str, error: OSError | None) -> None:
        self._requested.discard(feature)
        if error is None:
            self._ready.add(feature)
