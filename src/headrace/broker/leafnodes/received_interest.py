"""The interest that the other side of a leafnode connection announced, as entries of the router.

Invariant: all of it is in the router, and none of it after `clear`.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.routing.remote_interest import LeafnodeSender, RemoteInterest
from headrace.broker.routing.router import SubjectRouter


class ReceivedInterest:
    """The interest received over one connection; messages that match are sent by `sender`."""

    __slots__ = ("_entries", "_router", "_sender")

    def __init__(self, router: SubjectRouter, sender: LeafnodeSender) -> None:
        self._router = router
        self._sender = sender
        self._entries: dict[tuple[bytes, bytes | None], RemoteInterest] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: tuple[bytes, bytes | None]) -> bool:
        return key in self._entries

    def iter_subjects(self) -> Iterator[bytes]:
        """Iterate over the subjects, with one entry for each queue group."""
        return (subject for subject, _ in self._entries)

    def bind(self, router: SubjectRouter) -> None:
        """Move to another account, before there is any interest."""
        assert not self._entries
        self._router = router

    def add(self, subject: bytes, queue: bytes | None, weight: int) -> None:
        """Add interest, or change the size of a queue group."""
        entry = self._entries.get((subject, queue))
        if entry is None:
            entry = self._entries[(subject, queue)] = RemoteInterest(self._sender, subject, queue, weight)
            self._router.subscribe_remote(entry)
        elif entry.weight != weight:
            self._router.set_remote_weight(entry, weight)

    def remove(self, subject: bytes, queue: bytes | None) -> None:
        """Remove interest; no effect if there is none."""
        entry = self._entries.pop((subject, queue), None)
        if entry is not None:
            self._router.unsubscribe_remote(entry)

    def clear(self) -> None:
        """Remove all interest."""
        old_entries, self._entries = self._entries, {}
        for entry in old_entries.values():
            self._router.unsubscribe_remote(entry)
