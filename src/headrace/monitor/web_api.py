"""The data that the web page reads, and the changes that it makes: everything below `/headrace/`.

Owns the paths and who may use them: message contents and subjects require that the viewer may read, changes the admin
token. Every table has pages, so that a response is small whatever the server has.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.broker.accounts import Account
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.stream import Stream
from headrace.monitor.access_control import AccessControl
from headrace.monitor.admin_actions import parse_action, parse_message, publish_message, run_action
from headrace.monitor.assets import get_asset
from headrace.monitor.health import find_unhealthy_reason, find_warnings
from headrace.monitor.http import HttpRequest, HttpResponse, make_json_response, make_text_response
from headrace.monitor.message_browser import browse_messages
from headrace.monitor.monitored_server import MonitoredServer
from headrace.monitor.overview import make_overview, make_summary
from headrace.monitor.query import Query
from headrace.monitor.server_history import ServerHistory
from headrace.monitor.sliced_page import encode_page
from headrace.monitor.workbench.claim_rows import make_claim_table
from headrace.monitor.workbench.connection_rows import make_connection_table
from headrace.monitor.workbench.consumer_detail import make_consumer_detail
from headrace.monitor.workbench.consumer_rows import make_consumer_table, make_dead_letter_table
from headrace.monitor.workbench.delivery_check import check_subject, explain_message
from headrace.monitor.workbench.message_export import export_messages
from headrace.monitor.workbench.message_search import search_messages
from headrace.monitor.workbench.stream_comparison import compare_streams
from headrace.monitor.workbench.stream_rows import StreamRates, make_stream_detail, make_stream_table
from headrace.monitor.workbench.subject_rows import make_schedule_table, make_subject_table

if TYPE_CHECKING:
    from headrace.archive.archive_stats import ArchiveStats

_HIDDEN = "shown with the admin token"
_NO_STORE = (("Cache-Control", "no-store"),)
#: A page of something that exists on every server.
ServerPage = Callable[[HttpRequest], Awaitable[dict[str, Any]]]
#: A page about one stream.
StreamPage = Callable[[Stream, Query], Awaitable[dict[str, Any]]]


class _NotFoundError(Exception):
    """What the request names does not exist."""


class WebApi:
    """The requests of the web page."""

    def __init__(self, server: MonitoredServer, history: ServerHistory) -> None:
        self._server = server
        self._history = history
        self._access_control = AccessControl(lambda: server.options)
        self._rates = StreamRates(monotonic)
        accounts = server.accounts
        #: Figures, as on the other pages of the monitor.
        self._open_pages: dict[str, ServerPage] = {
            "streams": lambda request: make_stream_table(accounts, request.query, self._rates),
            "consumers": lambda request: make_consumer_table(accounts, request.query),
            "connections": lambda request: make_connection_table(
                self._server.listener.connections, request.query
            ),
            "claims": lambda request: make_claim_table(accounts, request.query),
            "dead_letters": lambda request: make_dead_letter_table(accounts, request.query),
            "stream": self._make_stream,
            "consumer": self._make_consumer,
            "history": self._make_history,
            "route": self._check_subject,
        }
        #: Subjects and contents of messages.
        self._stream_pages: dict[str, StreamPage] = {
            "messages": browse_messages,
            "search": search_messages,
            "export": export_messages,
            "subjects": make_subject_table,
            "schedules": make_schedule_table,
            "compare": self._compare,
        }

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Respond to a request for data, for a change, or for a file of the page."""
        name = request.path.removeprefix("/headrace/")
        try:
            if request.method == "POST":
                return await self._change(name, request)
            if name in ("overview", "summary"):
                return await self._make_overview(request, is_whole=name == "overview")
            if name in self._open_pages:
                return _with_no_store(await make_page_response(await self._open_pages[name](request)))
            if name in self._stream_pages:
                return await self._make_stream_page(name, request)
        except ValueError as error:
            return make_json_response({"error": str(error)}, 400)
        except _NotFoundError as error:
            return make_json_response({"error": str(error)}, 404)
        return get_asset(name) or make_text_response(404, "404 page not found")

    async def _make_overview(self, request: HttpRequest, *, is_whole: bool) -> HttpResponse:
        server, access_control = self._server, self._access_control
        accounts = server.accounts
        make = make_overview if is_whole else make_summary
        content = make(server.stats(), accounts, server.listener.connections, find_unhealthy_reason(accounts))
        archive = read_archive(server)
        content["complaints"] = find_warnings(accounts, archive)
        content["leafs"] = server.leafz_entries()
        content["archive"] = _make_archive(archive)
        content["host"] = _get_host_name()
        may_read = access_control.may_read(request)
        if not may_read:  # details are subjects of markers, and names of batches
            content["events"] = [event | {"text": _HIDDEN} for event in content["events"]]
        content["access"] = {
            "read": may_read,
            "admin": access_control.is_admin(request),
            "admin_possible": access_control.has_admin_token,
        }
        return _with_no_store(await make_page_response(content))

    async def _make_stream_page(self, name: str, request: HttpRequest) -> HttpResponse:
        if not self._access_control.may_read(request):
            return make_json_response({"error": "message contents require the admin token"}, 403)
        stream = self._find_stream(request.query)
        return _with_no_store(await make_page_response(await self._stream_pages[name](stream, request.query)))

    async def _make_stream(self, request: HttpRequest) -> dict[str, Any]:
        query = request.query
        account, stream = self._get_account(query), self._find_stream(query)
        self._rates.begin()
        return make_stream_detail(account.display_name, stream, self._rates)

    async def _make_consumer(self, request: HttpRequest) -> dict[str, Any]:
        query, may_read = request.query, self._access_control.may_read(request)
        consumer = self._find_consumer(query)
        detail = await make_consumer_detail(self._get_account(query).display_name, consumer)
        if not may_read:
            detail["blocked_keys"] = []  # they are parts of subjects
        if seq := int(query.get("seq", 0) or 0):
            detail["message"] = {"seq": seq, "text": explain_message(consumer, seq, with_subject=may_read)}
        return detail

    async def _check_subject(self, request: HttpRequest) -> dict[str, Any]:
        return await check_subject(self._get_account(request.query), request.query)

    async def _make_history(self, _: HttpRequest) -> dict[str, Any]:
        return self._history.to_columns()

    async def _compare(self, stream: Stream, query: Query) -> dict[str, Any]:
        other = {
            "account": query.get("other_account", "") or query.get("account", ""),
            "stream": query.get("other", ""),
        }
        return await compare_streams(stream, self._find_stream(other))

    # Changes

    async def _change(self, name: str, request: HttpRequest) -> HttpResponse:
        if name not in ("request", "publish"):
            return make_text_response(405, "method not allowed")
        if not self._access_control.may_act(request):
            return make_json_response({"error": "changes require the admin token, sent from this page"}, 403)
        if name == "publish":
            message = parse_message(request.body)
            account = self._get_account({"account": message.account})
            if len(message.header) + len(message.payload) > self._server.options.max_payload:
                raise ValueError("the message is larger than max_payload")
            response = await publish_message(account, message)
        else:
            account_name, subject, body = parse_action(request.body)
            response = await run_action(self._get_account({"account": account_name}), subject, body)
        return _with_no_store(HttpResponse(200, "application/json", response))

    # What a request names

    def _get_account(self, query: Query) -> Account:
        accounts, name = self._server.accounts, query.get("account", "")
        if not name:
            return accounts.main
        for account in accounts:
            if name in (account.display_name, account.name) and account.jetstream is not None:
                return account
        raise _NotFoundError("account not found")

    def _find_stream(self, query: Query) -> Stream:
        jetstream = self._get_account(query).jetstream
        stream = jetstream.streams.get(query.get("stream", "")) if jetstream is not None else None
        if stream is None:
            raise _NotFoundError("stream not found")
        return stream

    def _find_consumer(self, query: Query) -> Consumer:
        consumer = self._find_stream(query).consumer_set.find(query.get("name", ""))
        if consumer is None:
            raise _NotFoundError("consumer not found")
        return consumer


async def make_page_response(content: dict[str, Any]) -> HttpResponse:
    """Return a page as JSON, encoded in slices."""
    return HttpResponse(200, "application/json", await encode_page(content))


def read_archive(server: MonitoredServer) -> ArchiveStats | None:
    """Return how far the archive of a server is behind; None if it has none."""
    return server.archive.read_stats() if server.archive is not None else None


def _make_archive(archive: ArchiveStats | None) -> dict[str, Any] | None:
    if archive is None:
        return None
    return {
        "lag_s": archive.lag_s,
        "lag_bytes": archive.lag_bytes,
        "lag_groups": archive.lag_groups,
        "epoch": archive.epoch,
        "group": archive.group,
        "bases": archive.bases,
        "base_age_s": archive.base_age_s,
        "bytes": archive.bytes,
        "error": archive.error,
        "warning": archive.warning,
    }


@cache
def _get_host_name() -> str:
    return socket.gethostname()


def _with_no_store(response: HttpResponse) -> HttpResponse:
    return response._replace(headers=_NO_STORE)
