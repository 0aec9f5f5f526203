"""The pages by path, and what each waits for and checks before it responds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.monitor import metrics as prometheus
from headrace.monitor.assets import get_asset
from headrace.monitor.health import find_unhealthy_reason, find_warnings
from headrace.monitor.http import HttpRequest, HttpResponse, PageHandler, make_json_response
from headrace.monitor.monitored_server import MonitoredServer, PageReader, make_page_readers
from headrace.monitor.pin_files import make_pin_file_page
from headrace.monitor.server_history import ServerHistory
from headrace.monitor.varz import format_rfc3339
from headrace.monitor.web_api import WebApi, make_page_response, read_archive
from headrace.storage import Store

COMMIT_TIMEOUT_S = 2.0
#: Paths that accept more than GET.
METHODS = {"/headrace/": ("POST",)}


def make_pages(server: MonitoredServer, history: ServerHistory) -> dict[str, PageHandler]:
    """Return the pages of one server; each request reads current figures."""
    handlers, content, web_api = Pages(server), make_page_readers(server), WebApi(server, history)
    return {
        "/": handlers.index,
        "/varz": lambda request: make_json_response(content["varz"](request.query)),
        "/connz": handlers.with_timestamp(content["connz"]),
        "/subsz": handlers.with_timestamp(content["subsz"]),
        "/jsz": handlers.after_commit(handlers.with_timestamp(content["jsz"])),
        "/leafz": handlers.with_timestamp(content["leafz"]),
        "/healthz": handlers.health,
        "/metrics": handlers.after_commit(handlers.metrics),
        "/headrace/": handlers.after_commit(web_api.handle),
        "/pins/": make_pin_file_page(server.accounts.jetstreams),
    }


class Pages:
    """One method per page."""

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server

    # For launchers, health checks and dashboards

    def health(self, _: HttpRequest) -> HttpResponse:
        """Return 503 if the server cannot work; 200 otherwise, with warnings for the operator."""
        accounts = self._server.accounts
        if reason := find_unhealthy_reason(accounts):
            return make_json_response({"status": "unavailable", "status_code": 503, "error": reason}, 503)
        found = find_warnings(accounts, read_archive(self._server))
        return make_json_response({"status": "ok"} | ({"complaints": found} if found else {}))

    async def metrics(self, _: HttpRequest) -> HttpResponse:
        server = self._server
        accounts = server.accounts
        body = await prometheus.render_metrics_sliced(
            server.stats(),
            accounts,
            find_unhealthy_reason(accounts),
            server.claim_metrics() + prometheus.render_archive(read_archive(server)),
        )
        return HttpResponse(200, prometheus.CONTENT_TYPE, body)

    def index(self, _: HttpRequest) -> HttpResponse:
        page = get_asset("index.html")
        assert page is not None
        return page

    # Common parts

    def with_timestamp(self, read_page: PageReader) -> PageHandler:
        """Wrap a page with nats-server's format: server and time come first, and an invalid query is a client error."""

        async def page(request: HttpRequest) -> HttpResponse:
            timestamp = {"server_id": self._server.server_id, "now": format_rfc3339(self._server.now_ns())}
            try:
                return await make_page_response(timestamp | read_page(request.query))
            except ValueError as error:
                return make_json_response({"error": str(error)}, 400)

        return page

    def after_commit(self, page: Callable[[HttpRequest], Any]) -> PageHandler:
        """Wrap a page about streams: the response is sent when everything in it is durable."""

        async def page_after_commit(request: HttpRequest) -> HttpResponse:
            found = page(request)
            response: HttpResponse = await found if asyncio.iscoroutine(found) else found
            await _wait_committed([jetstream.store for jetstream in self._server.accounts.jetstreams()])
            return response

        return page_after_commit


async def _wait_committed(stores: list[Store]) -> None:
    """Wait until everything accepted is durable, with a timeout: a page must respond even if the disk does not."""
    targets = [(store, store.frame_number if store.dirty else store.frame_number - 1) for store in stores]
    time = asyncio.get_running_loop().time
    deadline = time() + COMMIT_TIMEOUT_S
    # Poll: the store has a single commit callback, and the broker uses it.
    while time() < deadline and any(s.committed_frame < frame and s.poisoned is None for s, frame in targets):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
