"""The subscriptions page, /subsz: how many there are, and on request which.

Owns the format and the query (`subs`, `offset`, `limit`, `test`, `acc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace._native import Subscription
from headrace.broker import Session
from headrace.broker.accounts import Account
from headrace.monitor.connz import get_account_name
from headrace.monitor.query import Query, has_flag, parse_offset_limit
from headrace.monitor.sliced_page import PageRows, PageTotal
from headrace.net.client_connection import ClientConnection
from headrace.protocol import subjects

_SUBS_PER_STEP = 64


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
        matching = _Matching(sessions, test, offset, limit)
        page["total"] = PageTotal(matching.count)
        page["subscriptions_list"] = PageRows(matching.make_rows)
    return page


class _Matching:
    """The subscriptions of some clients that match a subject; all of them if it is empty."""

    def __init__(self, sessions: list[Session], test: bytes, offset: int, limit: int) -> None:
        self._sessions = sessions
        self._test = test
        self._wanted = range(offset, offset + limit)
        self._found: list[tuple[Session, Subscription]] = []

    def count(self) -> Iterator[int]:
        """Count them, a few at a time, and keep those that the page shows."""
        self._found.clear()
        total = 0
        yield total
        for session in self._sessions:
            for number, sub in enumerate(list(session.subs.values())):
                if not self._test or subjects.matches(sub.pattern, self._test):
                    if total in self._wanted:
                        self._found.append((session, sub))
                    total += 1
                if number % _SUBS_PER_STEP == 0:
                    yield total
        yield total

    def make_rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of the page; only after `count`."""
        return (_make_entry(session, sub) for session, sub in self._found)


def _make_entry(session: Session, sub: Subscription) -> dict[str, Any]:
    return {
        "account": get_account_name(session),
        "subject": sub.pattern.decode(errors="replace"),
        **({"qgroup": sub.queue.decode(errors="replace")} if sub.queue else {}),
        "sid": sub.sid.decode(errors="replace"),
        "msgs": sub.delivered,
        "cid": session.cid,
    }
