"""Server health: what keeps it from working, and what needs an operator's attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker import Accounts


def find_unhealthy_reason(accounts: Accounts) -> str:
    """Why the server cannot do its work, or nothing when it is well."""
    for store in (jetstream.store for jetstream in accounts.jetstreams()):
        if store.poisoned is not None:
            return str(store.poisoned)
        if store.full:
            return "the disk is full: nothing is stored until space is freed"
    return ""


def find_warnings(accounts: Accounts) -> list[str]:
    """What does not keep the server from working but needs a person: damage, streams that did not start."""
    found: list[str] = []
    for jetstream in accounts.jetstreams():
        report = jetstream.store.report()
        found += [f"damage in the store: {damage}; headrace fsck tells more" for damage in report.damage]
        found += [f"stream {name} did not start: {reason}" for name, reason in report.offline_streams.items()]
    return found
