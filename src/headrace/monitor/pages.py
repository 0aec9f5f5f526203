"""Which pages there are, by path."""

from __future__ import annotations

from typing import Protocol

from headrace.monitor.connz import connz
from headrace.monitor.http import Answer, HttpRequest, Page, json_answer
from headrace.monitor.varz import Vitals, varz
from headrace.net.listener import Listener
from headrace.net.options import Options


class Watched(Protocol):
    """A server, as far as its pages need it."""

    @property
    def options(self) -> Options: ...
    @property
    def server_id(self) -> str: ...
    @property
    def listener(self) -> Listener: ...
    def vitals(self) -> Vitals: ...
    def ailment(self) -> str: ...
    def now_ns(self) -> int: ...


def pages(server: Watched) -> dict[str, Page]:
    """The pages of one server, which is asked for its figures each time."""

    def general(_: HttpRequest) -> Answer:
        return json_answer(varz(server.options, server.vitals()))

    def connections(request: HttpRequest) -> Answer:
        listener = server.listener
        try:
            found = connz(
                listener.connections, request.query, server.server_id, server.now_ns(), listener.loop.time()
            )
        except ValueError as error:
            return json_answer({"error": str(error)}, 400)
        return json_answer(found)

    def health(_: HttpRequest) -> Answer:
        ailment = server.ailment()
        if ailment:
            return json_answer({"status": "unavailable", "status_code": 503, "error": ailment}, 503)
        return json_answer({"status": "ok"})

    return {"/varz": general, "/connz": connections, "/healthz": health}
