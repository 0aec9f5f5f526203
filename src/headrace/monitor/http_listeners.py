"""The monitoring ports of a server, plain and with TLS, and how often each page was requested."""

from __future__ import annotations

import ssl
from collections import Counter

from headrace.config.options import ServerOptions
from headrace.monitor.http import HttpServer
from headrace.monitor.monitored_server import MonitoredServer
from headrace.monitor.routes import METHODS, make_pages
from headrace.monitor.server_history import ServerHistory
from headrace.net.listener_profile import format_address, make_bind_error
from headrace.net.logs import Logger


class MonitorPorts:
    """One small HTTP server per scheme, all with the same pages."""

    def __init__(self, server: MonitoredServer, options: ServerOptions, log: Logger) -> None:
        self._server = server
        self._host = options.monitoring_host
        self._port_settings = (("http", options.http_port, "-m"), ("https", options.https_port, "-ms"))
        self._log = log
        self._http_servers: dict[str, HttpServer] = {}
        self._history = ServerHistory(server)

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Open the configured ports; raise OptionsError if one is not available."""
        self._history.start()
        for scheme, port, flag in self._port_settings:
            if not port:
                continue
            http_server = HttpServer(
                make_pages(self._server, self._history),
                self._log.error,
                methods=METHODS,
                may_send=self._server.listener.context.may_send,
            )
            try:
                await http_server.start(self._host, port, tls if scheme == "https" else None)
            except OSError as error:
                raise make_bind_error(self._host, port, flag, error) from error
            self._http_servers[scheme] = http_server
            self._log.info(f"Starting {scheme} monitor on {format_address(self._host, http_server.port)}")

    async def stop(self) -> None:
        self._history.stop()
        for http_server in self._http_servers.values():
            await http_server.stop()

    def get_ports(self) -> dict[str, int]:
        """Return the ports in use, by scheme."""
        return {scheme: http_server.port for scheme, http_server in self._http_servers.items()}

    def get_urls(self) -> list[str]:
        return [f"{scheme}://{format_address(self._host, port)}" for scheme, port in self.get_ports().items()]

    def get_page_counts(self) -> dict[str, int]:
        """Return how often each page was requested."""
        page_counts: Counter[str] = Counter()
        for http_server in self._http_servers.values():
            page_counts.update(http_server.page_counts)
        return dict(page_counts)
