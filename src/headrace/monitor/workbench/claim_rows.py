"""The table of claims by namespace, with the events of the audit trail.

Counted in slices, because a registry may have millions of claims, and only while somebody looks at the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from headrace.broker.accounts import Account
from headrace.broker.stream import Stream
from headrace.monitor.message_browser import make_subject_filter
from headrace.monitor.query import Query
from headrace.monitor.workbench.subject_rows import iter_subjects
from headrace.monitor.workbench.table_page import parse_table_request, select_rows

_CLAIMS, _AUDIT = "CLAIMS", "CLAIMS_AUDIT"
_NAMESPACES = b"$CLAIMS.namespace.*"
_EVENTS = ("created", "retrieved", "released", "deleted", "expired", "failed", "collected")


class ClaimNamespace(NamedTuple):
    """A namespace of an account, with its streams."""

    account: str
    name: str
    registry: Stream
    audit: Stream | None


_COLUMNS: dict[str, Callable[[ClaimNamespace], Any]] = {"namespace": lambda each: each.name}


async def make_claim_table(accounts: Iterable[Account], query: Query) -> dict[str, Any]:
    """Return a page of the namespaces; raise ValueError if the query is not valid."""
    request = parse_table_request(query, _COLUMNS, "namespace")
    lists = [await _find_namespaces(account) for account in list(accounts)]
    page = await select_rows(chain.from_iterable(lists), request, _COLUMNS, lambda each: each.name)
    rows = [await _make_row(each) for each in page.rows]
    return {"rows": rows, "matching": page.matching, "total": page.total}


async def _find_namespaces(account: Account) -> Iterator[ClaimNamespace | object]:
    """Return an iterator over the namespaces of an account, with PAUSE where others may be served."""
    streams = account.jetstream.streams if account.jetstream is not None else {}
    registry, audit = streams.get(_CLAIMS), streams.get(_AUDIT)
    if registry is None:
        return iter(())
    found = iter_subjects(registry, await make_subject_filter(registry, _NAMESPACES))
    return (
        ClaimNamespace(account.display_name, each[0].rpartition(".")[2], registry, audit)
        if isinstance(each, tuple)
        else each
        for each in found
    )


async def _make_row(namespace: ClaimNamespace) -> dict[str, Any]:
    name, audit = namespace.name, namespace.audit
    live = await _count_messages(namespace.registry, f"$CLAIMS.claim.{name}.*")
    events = (
        {event: await _count_messages(audit, f"$CLAIMS.audit.{name}.*.{event}") for event in _EVENTS}
        if audit is not None
        else {}
    )
    return {"account": namespace.account, "namespace": name, "live": live, "events": events}


async def _count_messages(stream: Stream, pattern: str) -> int:
    return stream.log.count_from(await make_subject_filter(stream, pattern.encode()), 1)
