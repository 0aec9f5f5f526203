"""The connections page, /connz: clients, their traffic, and on request their subscriptions.

Owns the format and the query (`acc`, `cid`, `offset`, `limit`, `subs`, `auth`, `sort`). It reads connections and changes
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker import Session
from headrace.monitor.query import Query, has_flag, parse_offset_limit
from headrace.monitor.sliced_page import PageRows
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


def connz(
    connections: Mapping[int, ClientConnection], query: Query, server_id: str, now_ns: int, loop_s: float
) -> dict[str, Any]:
    """Return the connections that match the query; raise ValueError if it is not valid."""
    offset, limit = parse_offset_limit(query)
    selected = _select(connections, query)
    page = selected[offset : offset + limit]
    return {
        "server_id": server_id,
        "now": format_rfc3339(now_ns),
        "num_connections": len(page),
        "total": len(selected),
        "offset": offset,
        "limit": limit,
        "connections": PageRows(
            lambda: (_make_entry(connection, query, now_ns, loop_s) for connection in page)
        ),
    }


def _select(connections: Mapping[int, ClientConnection], query: Query) -> list[ClientConnection]:
    account = query.get("acc", "")
    selected = [c for c in connections.values() if not account or get_account_name(c.session) == account]
    if "cid" in query:
        cid = int(query["cid"])
        return [connection for connection in selected if connection.session.cid == cid]
    sort = query.get("sort", "cid")
    if sort not in _SORT_KEYS:
        raise ValueError(f"cannot sort by {sort!r}: use one of {', '.join(_SORT_KEYS)}")
    return sorted(selected, key=_SORT_KEYS[sort])


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
