"""Which pages there are, by path, and what each waits for and asks before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.broker.accounts import Account
from headrace.monitor import metrics as prometheus
from headrace.monitor.acts import act, checked
from headrace.monitor.assets import asset
from headrace.monitor.browse import messages
from headrace.monitor.guard import Guard
from headrace.monitor.health import ailment, complaints
from headrace.monitor.http import Answer, HttpRequest, Page, json_answer, text_answer
from headrace.monitor.overview import overview
from headrace.monitor.segments import segments
from headrace.monitor.varz import rfc3339
from headrace.monitor.watched import Figures, Watched, figures
from headrace.store import Store

COMMIT_PATIENCE_S = 2.0
_NO_STORE = (("Cache-Control", "no-store"),)
#: What takes more than GET.
METHODS = {"/headrace/": ("POST",)}


def pages(server: Watched) -> dict[str, Page]:
    """The pages of one server, which is asked for its figures each time."""
    board, shown = Board(server), figures(server)
    return {
        "/": board.front,
        "/varz": lambda request: json_answer(shown["varz"](request.query)),
        "/connz": board.stamped(shown["connz"]),
        "/subsz": board.stamped(shown["subsz"]),
        "/jsz": board.durable(board.stamped(shown["jsz"])),
        "/leafz": board.stamped(shown["leafz"]),
        "/healthz": board.health,
        "/metrics": board.durable(board.metrics),
        "/headrace/": board.durable(board.inside),
        "/pins/": segments(server.accounts.streams),
    }


class Board:
    """One method a page."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._guard = Guard(lambda: server.options)

    # For launchers, probes and dashboards

    def health(self, _: HttpRequest) -> Answer:
        """Red when the server cannot do its work; amber (200 with complaints) when something needs a person."""
        accounts = self._server.accounts
        if why := ailment(accounts):
            return json_answer({"status": "unavailable", "status_code": 503, "error": why}, 503)
        found = complaints(accounts)
        return json_answer({"status": "ok"} | ({"complaints": found} if found else {}))

    def metrics(self, _: HttpRequest) -> Answer:
        server = self._server
        accounts = server.accounts
        body = prometheus.metrics(server.vitals(), accounts, ailment(accounts), server.claim_metrics())
        return Answer(200, prometheus.CONTENT_TYPE, body)

    # The web page

    def front(self, _: HttpRequest) -> Answer:
        page = asset("index.html")
        assert page is not None
        return page

    def inside(self, request: HttpRequest) -> Answer | Any:
        name = request.path.removeprefix("/headrace/")
        if request.method == "POST":
            return self._act(request) if name == "request" else text_answer(405, "method not allowed")
        if name == "overview":
            return self._overview(request)
        if name == "messages":
            return self._messages(request)
        return asset(name) or text_answer(404, "404 page not found")

    def _overview(self, request: HttpRequest) -> Answer:
        server, guard = self._server, self._guard
        accounts = server.accounts
        shown = overview(server.vitals(), accounts, server.listener.connections, ailment(accounts))
        shown["complaints"] = complaints(accounts)
        shown["leafs"] = server.leafs()
        shown["access"] = {
            "read": guard.may_read(request),
            "admin": guard.is_admin(request),
            "admin_possible": guard.acts_possible,
        }
        return _private(json_answer(shown))

    def _messages(self, request: HttpRequest) -> Answer:
        if not self._guard.may_read(request):
            return json_answer({"error": "contents are shown with the admin token only"}, 403)
        account = self._account(request.query.get("account", ""))
        jetstream = account.jetstream if account is not None else None
        stream = jetstream.streams.get(request.query.get("stream", "")) if jetstream is not None else None
        if stream is None:
            return json_answer({"error": "no such stream"}, 404)
        try:
            return _private(json_answer(messages(stream, request.query)))
        except ValueError as error:
            return json_answer({"error": str(error)}, 400)

    async def _act(self, request: HttpRequest) -> Answer:
        if not self._guard.may_act(request):
            return json_answer({"error": "changes need the admin token, sent from this page"}, 403)
        try:
            name, subject, body = checked(request.body)
        except ValueError as error:
            return json_answer({"error": str(error)}, 400)
        account = self._account(name)
        if account is None or account.jetstream is None:
            return json_answer({"error": "no such account"}, 404)
        return _private(Answer(200, "application/json", await act(account, subject, body)))

    def _account(self, name: str) -> Account | None:
        accounts = self._server.accounts
        return accounts.main if not name else next((a for a in accounts if name in (a.title, a.name)), None)

    # What pages have in common

    def stamped(self, make: Figures) -> Page:
        """A page of the reference: server and time first, and a bad query is the peer's mistake."""

        def page(request: HttpRequest) -> Answer:
            stamp = {"server_id": self._server.server_id, "now": rfc3339(self._server.now_ns())}
            try:
                return json_answer(stamp | make(request.query))
            except ValueError as error:
                return json_answer({"error": str(error)}, 400)

        return page

    def durable(self, page: Callable[[HttpRequest], Any]) -> Page:
        """A page that speaks of streams: it leaves when everything it may speak of is durable."""

        async def settled(request: HttpRequest) -> Answer:
            found = page(request)
            answer: Answer = await found if asyncio.iscoroutine(found) else found
            await _written([jetstream.store for jetstream in self._server.accounts.streams()])
            return answer

        return settled


async def _written(stores: list[Store]) -> None:
    """Wait until all that was admitted is durable; not for ever: a page must answer when the disk does not."""
    ahead = [(store, store.frame if store.dirty else store.frame - 1) for store in stores]
    time = asyncio.get_running_loop().time
    deadline = time() + COMMIT_PATIENCE_S
    # The store tells one listener of a commit, and that is the broker.
    while time() < deadline and any(s.committed < frame and s.poisoned is None for s, frame in ahead):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def _private(answer: Answer) -> Answer:
    return answer._replace(headers=_NO_STORE)
