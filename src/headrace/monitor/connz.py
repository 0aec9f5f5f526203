"""The connections page, /connz: clients, their traffic, and on request their subscriptions.

Owns the format and the query (`acc`, `cid`, `offset`, `limit`, `subs`, `auth`, `sort`). It reads connections and changes
none.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.broker import Session
from headrace.monitor.query import Query, has_flag, parse_offset_limit
from headrace.monitor.sliced_page import PageRows, PageTotal
from headrace.monitor.varz import SECOND_NS, format_rfc3339, format_uptime
from headrace.net.client_connection import ClientConnection

_SORT_KEYS: dict[str, Callable[[ClientConnection], int]] = {
    "cid": lambda connection: connection.session.cid,
    "start": lambda connection: connection.session.cid,
    "subs": lambda connection: -len(connection.session.subs),
    "pending": lambda connection: -connection.bytes_pending,
    "msgs_to": lambda connection: -connection.session.out_msgs,
    "msgs_from": lambda connection: -connection.session.in_msgs,
    "bytes_to": lambda connection: -connection.session.out_bytes,
    "bytes_from": lambda connection: -connection.session.in_bytes,
}

#: Number of connections that one slice looks at.
_CONNECTIONS_PER_SLICE = 512


def connz(
    connections: Mapping[int, ClientConnection], query: Query, server_id: str, now_ns: int, loop_s: float
) -> dict[str, Any]:
    """Return the connections that match the query; raise ValueError if it is not valid."""
    offset, limit = parse_offset_limit(query)
    selection = _Selection(list(connections.values()), query)
    return {
        "server_id": server_id,
        "now": format_rfc3339(now_ns),
        "num_connections": PageTotal(lambda: selection.iter_count(offset, offset + limit)),
        "total": PageTotal(selection.iter_count),
        "offset": offset,
        "limit": limit,
        "connections": PageRows(
            lambda: (
                _make_entry(connection, query, now_ns, loop_s)
                for connection in selection.selected[offset : offset + limit]
            )
        ),
    }


class _Selection:
    """The connections that match a query, in its order: selected in slices while the page is written."""

    def __init__(self, connections: list[ClientConnection], query: Query) -> None:
        self._connections = connections
        self._account = query.get("acc", "")
        self._cid = int(query["cid"]) if "cid" in query else None
        sort = query.get("sort", "cid")
        if sort not in _SORT_KEYS:
            raise ValueError(f"cannot sort by {sort!r}: use one of {', '.join(_SORT_KEYS)}")
        self._get_key = _SORT_KEYS[sort]
        self._is_done = False
        self.selected: list[ClientConnection] = []

    def iter_count(self, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Yield 0 after each slice, then the number of selected connections from `start` to `end`."""
        if not self._is_done:
            yield from self._iter_select()
            self._is_done = True
        yield len(self.selected[start:end])

    def _iter_select(self) -> Iterator[int]:
        """Sort in slices, by the keys that connections had when they were looked at."""
        parts: list[list[tuple[int, int, ClientConnection]]] = []
        numbered = enumerate(self._connections)
        while part := list(itertools.islice(numbered, _CONNECTIONS_PER_SLICE)):
            parts.append(sorted((self._get_key(c), number, c) for number, c in part if self._matches(c)))
            yield 0
        merged = heapq.merge(*parts)
        while found := [entry[2] for entry in itertools.islice(merged, _CONNECTIONS_PER_SLICE)]:
            self.selected += found
            yield 0

    def _matches(self, connection: ClientConnection) -> bool:
        if self._account and get_account_name(connection.session) != self._account:
            return False
        return self._cid is None or connection.session.cid == self._cid


def get_account_name(session: Session) -> str:
    """Return the account of a client; "" before authentication."""
    return session.identity.account if session.identity is not None else ""


def _make_entry(connection: ClientConnection, query: Query, now_ns: int, loop_s: float) -> dict[str, Any]:
    session = connection.session
    age_ns = int((loop_s - connection.start_s) * SECOND_NS)
    entry: dict[str, Any] = {
        "cid": session.cid,
        "kind": "Client",
        "type": "nats",
        "ip": connection.client_ip,
        "port": connection.client_port,
        "start": format_rfc3339(now_ns - age_ns),
        "uptime": format_uptime(age_ns // SECOND_NS),
        "pending_bytes": connection.bytes_pending,
        "in_msgs": session.in_msgs,
        "out_msgs": session.out_msgs,
        "in_bytes": session.in_bytes,
        "out_bytes": session.out_bytes,
        "subscriptions": len(session.subs),
    }
    for name, value in (("name", session.name), ("lang", session.lang), ("version", session.version)):
        if value:
            entry[name] = value
    if has_flag(query, "auth") and session.identity is not None:
        entry |= {"authorized_user": session.identity.user, "account": session.identity.account}
    return entry | _make_subscriptions(connection, query)


def _make_subscriptions(connection: ClientConnection, query: Query) -> dict[str, Any]:
    subs = list(connection.session.subs.values())
    if query.get("subs") == "detail":
        details = [
            {
                "subject": sub.pattern.decode(errors="replace"),
                "sid": sub.sid.decode(errors="replace"),
                "msgs": sub.delivered,
                "cid": connection.session.cid,
            }
            | ({"qgroup": sub.queue.decode(errors="replace")} if sub.queue else {})
            for sub in subs
        ]
        return {"subscriptions_list_detail": details} if details else {}
    if has_flag(query, "subs") and subs:
        return {"subscriptions_list": [sub.pattern.decode(errors="replace") for sub in subs]}
    return {}
