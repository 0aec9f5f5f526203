"""Server health: what keeps it from working, and what needs an operator's attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker import Accounts


def find_unhealthy_reason(accounts: Accounts) -> str:
    """Return why the server cannot work, or "" if it is healthy."""
    for store in (jetstream.store for jetstream in accounts.jetstreams()):
        if store.poisoned is not None:
            return str(store.poisoned)
        if store.full:
            return "the disk is full: nothing is stored until space is freed"
    return ""


def find_warnings(accounts: Accounts) -> list[str]:
    """Return what needs an operator's attention although the server works: damage, streams that did not start."""
    found: list[str] = []
    for jetstream in accounts.jetstreams():
        report = jetstream.store.report()
        found += [f"damage in the store: {damage}; headrace fsck tells more" for damage in report.damage]
        found += [f"stream {name} did not start: {reason}" for name, reason in report.offline_streams.items()]
    return found
