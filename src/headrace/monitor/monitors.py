"""The monitoring ports of a server, plain and with TLS: which are open, and what was asked there."""

from __future__ import annotations

import ssl
from collections import Counter

from headrace.monitor.http import HttpServer
from headrace.monitor.pages import METHODS, pages
from headrace.monitor.watched import Watched
from headrace.net.doors import address, not_to_be_had
from headrace.net.logs import Log
from headrace.net.options import Options


class Monitors:
    """One small HTTP server a scheme, all with the same pages."""

    def __init__(self, server: Watched, options: Options, log: Log) -> None:
        self._server = server
        self._host = options.monitoring_host
        self._wanted = (("http", options.http_port, "-m"), ("https", options.https_port, "-ms"))
        self._log = log
        self._open: dict[str, HttpServer] = {}

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Open the ports that are wanted; OptionsError for one that is not to be had."""
        for scheme, port, flag in self._wanted:
            if not port:
                continue
            monitor = HttpServer(pages(self._server), self._log.error, methods=METHODS)
            try:
                await monitor.start(self._host, port, tls if scheme == "https" else None)
            except OSError as error:
                raise not_to_be_had(self._host, port, flag, error) from error
            self._open[scheme] = monitor
            self._log.info(f"Starting {scheme} monitor on {address(self._host, monitor.port)}")

    async def stop(self) -> None:
        for monitor in self._open.values():
            await monitor.stop()

    def ports(self) -> dict[str, int]:
        """The ports in use, by scheme."""
        return {scheme: monitor.port for scheme, monitor in self._open.items()}

    def urls(self) -> list[str]:
        return [f"{scheme}://{address(self._host, port)}" for scheme, port in self.ports().items()]

    def counts(self) -> dict[str, int]:
        """How often each page was asked for."""
        asked: Counter[str] = Counter()
        for monitor in self._open.values():
            asked.update(monitor.counts)
        return dict(asked)
