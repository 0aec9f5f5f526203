"""The page of connections, /connz: who is there, what they moved, and on request what they listen to.

Owns the form and the query (`acc`, `cid`, `offset`, `limit`, `subs`, `auth`, `sort`). It reads connections and changes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker import Session
from headrace.monitor.query import Query, asked, window
from headrace.monitor.varz import SECOND_NS, rfc3339, uptime
from headrace.net.connection import Connection

_SORTS: dict[str, Callable[[Connection], int]] = {
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
    connections: Mapping[int, Connection], query: Query, server_id: str, now_ns: int, loop_s: float
) -> dict[str, Any]:
    """The connections that the query asks for; ValueError for a query that makes no sense."""
    offset, limit = window(query)
    chosen = _chosen(connections, query)
    shown = chosen[offset : offset + limit]
    return {
        "server_id": server_id,
        "now": rfc3339(now_ns),
        "num_connections": len(shown),
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "connections": [_entry(connection, query, now_ns, loop_s) for connection in shown],
    }


def _chosen(connections: Mapping[int, Connection], query: Query) -> list[Connection]:
    account = query.get("acc", "")
    chosen = [c for c in connections.values() if not account or account_of(c.session) == account]
    if "cid" in query:
        cid = int(query["cid"])
        return [connection for connection in chosen if connection.session.cid == cid]
    sort = query.get("sort", "cid")
    if sort not in _SORTS:
        raise ValueError(f"cannot sort by {sort!r}: use one of {', '.join(_SORTS)}")
    return sorted(chosen, key=_SORTS[sort])


def account_of(session: Session) -> str:
    """Which account a client is in; none before it is let in."""
    return session.identity.account if session.identity is not None else ""


def _entry(connection: Connection, query: Query, now_ns: int, loop_s: float) -> dict[str, Any]:
    session = connection.session
    age_ns = int((loop_s - connection.start_s) * SECOND_NS)
    entry: dict[str, Any] = {
        "cid": session.cid,
        "kind": "Client",
        "type": "nats",
        "ip": connection.client_ip,
        "port": connection.client_port,
        "start": rfc3339(now_ns - age_ns),
        "uptime": uptime(age_ns // SECOND_NS),
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
    if asked(query, "auth") and session.identity is not None:
        entry |= {"authorized_user": session.identity.user, "account": session.identity.account}
    return entry | _subscriptions(connection, query)


def _subscriptions(connection: Connection, query: Query) -> dict[str, Any]:
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
    if asked(query, "subs") and subs:
        return {"subscriptions_list": [sub.pattern.decode(errors="replace") for sub in subs]}
    return {}
