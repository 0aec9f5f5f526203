"""The subscriptions page, /subsz: how many there are, and on request which.

Owns the format and the query (`subs`, `offset`, `limit`, `test`, `acc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.broker.accounts import Account
from headrace.monitor.connz import get_account_name
from headrace.monitor.query import Query, has_flag, parse_offset_limit
from headrace.net.client_connection import ClientConnection
from headrace.protocol import subjects


def subsz(
    accounts: Iterable[Account], connections: Mapping[int, ClientConnection], query: Query
) -> dict[str, Any]:
    """Return the page for all accounts; raise ValueError if the query is not valid."""
    test = query.get("test", "").encode()
    if test and not (subjects.is_valid(test) and subjects.is_literal(test)):
        raise ValueError(f"invalid test subject, must be literal: {query['test']!r}")
    offset, limit = parse_offset_limit(query)
    total = sum(account.router.subscriptions for account in accounts)
    page: dict[str, Any] = {"num_subscriptions": total, "total": total, "offset": offset, "limit": limit}
    if has_flag(query, "subs"):
        found = [
            entry for entry in _iter_subscriptions(connections, query.get("acc", "")) if _matches(entry, test)
        ]
        page["total"] = len(found)
        page["subscriptions_list"] = found[offset : offset + limit]
    return page


def _matches(entry: dict[str, Any], test: bytes) -> bool:
    return not test or subjects.matches(entry["subject"].encode(), test)


def _iter_subscriptions(
    connections: Mapping[int, ClientConnection], account: str
) -> Iterator[dict[str, Any]]:
    for connection in connections.values():
        session = connection.session
        name = get_account_name(session)
        if account and name != account:
            continue
        for sub in session.subs.values():
            yield {
                "account": name,
                "subject": sub.pattern.decode(errors="replace"),
                **({"qgroup": sub.queue.decode(errors="replace")} if sub.queue else {}),
                "sid": sub.sid.decode(errors="replace"),
                "msgs": sub.delivered,
                "cid": session.cid,
            }
