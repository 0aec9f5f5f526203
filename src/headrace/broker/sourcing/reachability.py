"""Watches whether an upstream is reachable, that is, whether its API subject has a subscriber.

It only looks at interest, so it works for upstreams in this server, behind a leafnode connection, and in tests alike.
See ADR 62.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.routing.router import SubjectRouter


class ReachabilityWatch:
    """Calls `on_reachable` whenever a subject has interest again after it had none."""

    __slots__ = ("_on_reachable", "_reachable", "_router", "_subject")

    def __init__(self, router: SubjectRouter, on_reachable: Callable[[], None]) -> None:
        self._router = router
        self._on_reachable = on_reachable
        self._subject = b""
        self._reachable = True

    def start(self, subject: bytes) -> None:
        """Start watching."""
        self._subject = subject
        self._reachable = self._router.has_interest(subject)
        self._router.watch_subject(subject, self._on_interest_change)

    def stop(self) -> None:
        """Stop watching; no effect if it never started."""
        if self._subject:
            self._router.unwatch_subject(self._subject, self._on_interest_change)
            self._subject = b""

    def _on_interest_change(self, subject: bytes) -> None:
        was_reachable, self._reachable = self._reachable, self._router.has_interest(subject)
        if self._reachable and not was_reachable:
            self._on_reachable()
