"""The server as monitoring sees it, and the figures that both its pages and `$SYS.>` show.

It changes nothing, and knows neither HTTP nor the system account.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headrace.monitor.connz import connz
from headrace.monitor.jsz import jsz, make_totals
from headrace.monitor.leafz import leafz
from headrace.monitor.query import Query
from headrace.monitor.subsz import subsz
from headrace.monitor.varz import ServerStats, varz

if TYPE_CHECKING:
    from headrace.broker import Accounts
    from headrace.config.options import ServerOptions
    from headrace.monitor.server_archive import ServerArchive
    from headrace.net.listener import Listener

#: Builds one page; raises ValueError if the query is not valid.
PageReader = Callable[[Query], dict[str, Any]]


class MonitoredServer(Protocol):
    """A server, as far as its pages need it."""

    @property
    def options(self) -> ServerOptions: ...
    @property
    def server_id(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def listener(self) -> Listener: ...
    @property
    def accounts(self) -> Accounts: ...
    @property
    def archive(self) -> ServerArchive | None: ...
    def stats(self) -> ServerStats: ...
    def leafz_entries(self) -> list[dict[str, Any]]: ...
    def claim_metrics(self) -> bytes: ...
    def now_ns(self) -> int: ...
    async def stop(self) -> None: ...


def make_page_readers(server: MonitoredServer) -> dict[str, PageReader]:
    """Return the pages by nats-server's names; each call reads current figures."""

    def read_connz(query: Query) -> dict[str, Any]:
        listener = server.listener
        return connz(listener.connections, query, server.server_id, server.now_ns(), listener.loop.time())

    return {
        "varz": lambda _: varz(server.options, server.stats(), make_totals(server.accounts)),
        "connz": read_connz,
        "subsz": lambda query: subsz(server.accounts, server.listener.connections, query),
        "jsz": lambda query: jsz(server.options, server.accounts, query),
        "leafz": lambda query: leafz(server.leafz_entries(), query),
    }
