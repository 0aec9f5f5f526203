"""The monitoring port of a process that does not serve yet: `/healthz` with 503, `/varz` with `standby`, and `/metrics`.

It is a standby, or a server that takes its archive over. Owns the HTTP servers; there are no other pages. Must not know
what the process waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace import COMPATIBLE_VERSION, __version__
from headrace.config.options import ServerOptions
from headrace.monitor.http import HttpRequest, HttpResponse, HttpServer, make_json_response
from headrace.monitor.varz import format_rfc3339
from headrace.net.listener_profile import format_address, make_bind_error
from headrace.net.logs import Logger
from headrace.net.tls_context import make_server_context


class WaitingMonitor:
    """The pages of one process; `describe` returns its fields for `/varz`, `explain` the text for `/healthz`."""

    def __init__(
        self,
        options: ServerOptions,
        log: Logger,
        describe: Callable[[], Mapping[str, Any]],
        explain: Callable[[], str],
        render_metrics: Callable[[], bytes] = bytes,
        *,
        is_standby: bool = True,
    ) -> None:
        self._options = options
        self._log = log
        self._describe = describe
        self._explain = explain
        self._render_metrics = render_metrics
        self._is_standby = is_standby
        self._start_ns = time.time_ns()
        self._http_servers: list[HttpServer] = []

    async def start(self) -> None:
        """Listen on the configured ports."""
        options = self._options
        tls = make_server_context(options)
        pages = {"/healthz": self._healthz, "/varz": self._varz, "/metrics": self._metrics}
        for port, flag, context in ((options.http_port, "-m", None), (options.https_port, "-ms", tls)):
            if not port:
                continue
            http_server = HttpServer(pages, self._log.error)
            try:
                await http_server.start(options.monitoring_host, port, context)
            except OSError as error:
                raise make_bind_error(options.monitoring_host, port, flag, error) from error
            self._http_servers.append(http_server)
            address = format_address(options.monitoring_host, http_server.port)
            self._log.info(f"{'Standby' if self._is_standby else 'Starting'}: monitoring on {address}")

    async def stop(self) -> None:
        """Close the ports, so that the server can use them."""
        http_servers, self._http_servers = self._http_servers, []
        for http_server in http_servers:
            await http_server.stop()

    def _healthz(self, _: HttpRequest) -> HttpResponse:
        fields: dict[str, Any] = {"status": "unavailable", "status_code": 503, "standby": self._is_standby}
        fields["error"] = self._explain()
        return make_json_response(fields | dict(self._describe()), 503)

    def _varz(self, _: HttpRequest) -> HttpResponse:
        return make_json_response(
            {
                "server_name": self._options.server_name,
                "version": COMPATIBLE_VERSION,
                "headrace_version": __version__,
                "standby": self._is_standby,
                **self._describe(),
                "start": format_rfc3339(self._start_ns),
                "now": format_rfc3339(time.time_ns()),
            }
        )

    def _metrics(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse(200, "text/plain; version=0.0.4", self._render_metrics())
