"""Server health: errors that stop the server from working, and warnings for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.archive.archive_stats import ArchiveStats
    from headrace.broker import Accounts


def find_unhealthy_reason(accounts: Accounts) -> str:
    """Return the error that stops the server from working, or "" if it is healthy."""
    for store in (jetstream.store for jetstream in accounts.jetstreams()):
        if store.poisoned is not None:
            return str(store.poisoned)
        if store.full:
            return "the disk is full: nothing is stored until space is freed"
    return ""


def find_warnings(accounts: Accounts, archive: ArchiveStats | None = None) -> list[str]:
    """Return warnings of a server that works: damage in the store, streams that could not be started, a late archive."""
    found: list[str] = [archive.warning] if archive is not None and archive.warning else []
    for jetstream in accounts.jetstreams():
        report = jetstream.store.report()
        found += [f"damage in the store: {damage}; run headrace fsck for details" for damage in report.damage]
        found += [f"cannot start stream {name}: {reason}" for name, reason in report.offline_streams.items()]
    return found
