"""The pages by path, and what each waits for and checks before it responds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.broker.accounts import Account
from headrace.monitor import metrics as prometheus
from headrace.monitor.access_control import AccessControl
from headrace.monitor.admin_actions import parse_action, run_action
from headrace.monitor.assets import get_asset
from headrace.monitor.health import find_unhealthy_reason, find_warnings
from headrace.monitor.http import (
    HttpRequest,
    HttpResponse,
    PageHandler,
    make_json_response,
    make_text_response,
)
from headrace.monitor.message_browser import browse_messages
from headrace.monitor.monitored_server import MonitoredServer, PageReader, make_page_readers
from headrace.monitor.overview import make_overview
from headrace.monitor.pin_files import make_pin_file_page
from headrace.monitor.sliced_page import encode_page
from headrace.monitor.varz import format_rfc3339
from headrace.storage import Store

COMMIT_TIMEOUT_S = 2.0
_NO_STORE = (("Cache-Control", "no-store"),)
#: Paths that accept more than GET.
METHODS = {"/headrace/": ("POST",)}


def make_pages(server: MonitoredServer) -> dict[str, PageHandler]:
    """Return the pages of one server; each request reads current figures."""
    handlers, content = Pages(server), make_page_readers(server)
    return {
        "/": handlers.index,
        "/varz": lambda request: make_json_response(content["varz"](request.query)),
        "/connz": handlers.with_timestamp(content["connz"]),
        "/subsz": handlers.with_timestamp(content["subsz"]),
        "/jsz": handlers.after_commit(handlers.with_timestamp(content["jsz"])),
        "/leafz": handlers.with_timestamp(content["leafz"]),
        "/healthz": handlers.health,
        "/metrics": handlers.after_commit(handlers.metrics),
        "/headrace/": handlers.after_commit(handlers.web_api),
        "/pins/": make_pin_file_page(server.accounts.jetstreams),
    }


class Pages:
    """One method per page."""

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server
        self._access_control = AccessControl(lambda: server.options)

    # For launchers, health checks and dashboards

    def health(self, _: HttpRequest) -> HttpResponse:
        """Return 503 if the server cannot work; 200 otherwise, with warnings for the operator."""
        accounts = self._server.accounts
        if reason := find_unhealthy_reason(accounts):
            return make_json_response({"status": "unavailable", "status_code": 503, "error": reason}, 503)
        found = find_warnings(accounts)
        return make_json_response({"status": "ok"} | ({"complaints": found} if found else {}))

    async def metrics(self, _: HttpRequest) -> HttpResponse:
        server = self._server
        accounts = server.accounts
        body = await prometheus.render_metrics_sliced(
            server.stats(), accounts, find_unhealthy_reason(accounts), server.claim_metrics()
        )
        return HttpResponse(200, prometheus.CONTENT_TYPE, body)

    # The web page

    def index(self, _: HttpRequest) -> HttpResponse:
        page = get_asset("index.html")
        assert page is not None
        return page

    def web_api(self, request: HttpRequest) -> HttpResponse | Any:
        name = request.path.removeprefix("/headrace/")
        if request.method == "POST":
            return (
                self._run_action(request)
                if name == "request"
                else make_text_response(405, "method not allowed")
            )
        if name == "overview":
            return self._overview(request)
        if name == "messages":
            return self._messages(request)
        return get_asset(name) or make_text_response(404, "404 page not found")

    async def _overview(self, request: HttpRequest) -> HttpResponse:
        server, access_control = self._server, self._access_control
        accounts = server.accounts
        content = make_overview(
            server.stats(), accounts, server.listener.connections, find_unhealthy_reason(accounts)
        )
        content["complaints"] = find_warnings(accounts)
        content["leafs"] = server.leafz_entries()
        content["access"] = {
            "read": access_control.may_read(request),
            "admin": access_control.is_admin(request),
            "admin_possible": access_control.has_admin_token,
        }
        return _with_no_store(await _make_page_response(content))

    def _messages(self, request: HttpRequest) -> HttpResponse:
        if not self._access_control.may_read(request):
            return make_json_response({"error": "message contents require the admin token"}, 403)
        account = self._find_account(request.query.get("account", ""))
        jetstream = account.jetstream if account is not None else None
        stream = jetstream.streams.get(request.query.get("stream", "")) if jetstream is not None else None
        if stream is None:
            return make_json_response({"error": "stream not found"}, 404)
        try:
            return _with_no_store(make_json_response(browse_messages(stream, request.query)))
        except ValueError as error:
            return make_json_response({"error": str(error)}, 400)

    async def _run_action(self, request: HttpRequest) -> HttpResponse:
        if not self._access_control.may_act(request):
            return make_json_response({"error": "changes require the admin token, sent from this page"}, 403)
        try:
            name, subject, body = parse_action(request.body)
        except ValueError as error:
            return make_json_response({"error": str(error)}, 400)
        account = self._find_account(name)
        if account is None or account.jetstream is None:
            return make_json_response({"error": "account not found"}, 404)
        return _with_no_store(HttpResponse(200, "application/json", await run_action(account, subject, body)))

    def _find_account(self, name: str) -> Account | None:
        accounts = self._server.accounts
        return (
            accounts.main
            if not name
            else next((a for a in accounts if name in (a.display_name, a.name)), None)
        )

    # Common parts

    def with_timestamp(self, read_page: PageReader) -> PageHandler:
        """Wrap a page with nats-server's format: server and time come first, and an invalid query is a client error."""

        async def page(request: HttpRequest) -> HttpResponse:
            timestamp = {"server_id": self._server.server_id, "now": format_rfc3339(self._server.now_ns())}
            try:
                return await _make_page_response(timestamp | read_page(request.query))
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


async def _make_page_response(content: dict[str, Any]) -> HttpResponse:
    return HttpResponse(200, "application/json", await encode_page(content))


async def _wait_committed(stores: list[Store]) -> None:
    """Wait until everything accepted is durable, with a timeout: a page must respond even if the disk does not."""
    targets = [(store, store.frame_number if store.dirty else store.frame_number - 1) for store in stores]
    time = asyncio.get_running_loop().time
    deadline = time() + COMMIT_TIMEOUT_S
    # Poll: the store has a single commit callback, and the broker uses it.
    while time() < deadline and any(s.committed_frame < frame and s.poisoned is None for s, frame in targets):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def _with_no_store(response: HttpResponse) -> HttpResponse:
    return response._replace(headers=_NO_STORE)
