"""The subscriptions page, /subsz: how many there are, and on request which.

Owns the format and the query (`subs`, `offset`, `limit`, `test`, `acc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from headrace._native import Subscription
from headrace.broker import Session
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
        account = query.get("acc", "")
        sessions = [
            connection.session
            for connection in connections.values()
            if not account or get_account_name(connection.session) == account
        ]
        page["total"] = _count(sessions, test)
        page["subscriptions_list"] = [
            _make_entry(session, sub)
            for session, sub in islice(_iter_matching(sessions, test), offset, offset + limit)
        ]
    return page


def _count(sessions: list[Session], test: bytes) -> int:
    if not test:
        return sum(len(session.subs) for session in sessions)
    return sum(1 for _ in _iter_matching(sessions, test))


def _iter_matching(sessions: list[Session], test: bytes) -> Iterator[tuple[Session, Subscription]]:
    for session in sessions:
        for sub in session.subs.values():
            if not test or subjects.matches(sub.pattern, test):
                yield session, sub


def _make_entry(session: Session, sub: Subscription) -> dict[str, Any]:
    return {
        "account": get_account_name(session),
        "subject": sub.pattern.decode(errors="replace"),
        **({"qgroup": sub.queue.decode(errors="replace")} if sub.queue else {}),
        "sid": sub.sid.decode(errors="replace"),
        "msgs": sub.delivered,
        "cid": session.cid,
    }
