"""The table of client connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.monitor.overview import make_connection_row
from headrace.monitor.query import Query
from headrace.monitor.workbench.table_page import parse_table_request, select_rows
from headrace.net.client_connection import ClientConnection

_COLUMNS: dict[str, Callable[[ClientConnection], Any]] = {
    "cid": lambda connection: connection.session.cid,
    "name": lambda connection: connection.session.name,
    "messages": lambda connection: connection.session.in_msgs + connection.session.out_msgs,
    "in_msgs": lambda connection: connection.session.in_msgs,
    "out_msgs": lambda connection: connection.session.out_msgs,
    "subscriptions": lambda connection: len(connection.session.subs),
    "pending": lambda connection: connection.bytes_pending,
}


async def make_connection_table(connections: Mapping[int, ClientConnection], query: Query) -> dict[str, Any]:
    """Return a page of the connections, the busiest first; raise ValueError if the query is not valid."""
    request = parse_table_request(query, _COLUMNS, "-messages")
    page = await select_rows(list(connections.values()), request, _COLUMNS, _get_text)
    rows = [make_connection_row(connection) for connection in page.rows]
    return {"rows": rows, "matching": page.matching, "total": page.total}


def _get_text(connection: ClientConnection) -> str:
    """Return what the search looks at: number, name, address and library."""
    session = connection.session
    address = f"{connection.client_ip}:{connection.client_port}"
    return f"#{session.cid} {session.name} {address} {session.lang} {session.version}"
