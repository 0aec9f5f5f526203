"""Which pages there are, by path."""

from __future__ import annotations

from collections.abc import Callable

from headrace.monitor.http import Answer, Page, Query, json_answer
from headrace.monitor.varz import Vitals, varz
from headrace.net.options import Options


def pages(options: Options, vitals: Callable[[], Vitals]) -> dict[str, Page]:
    """The pages of one server, which is asked for its figures each time."""

    def general(_: Query) -> Answer:
        return json_answer(varz(options, vitals()))

    def health(_: Query) -> Answer:
        return json_answer({"status": "ok"})

    return {"/varz": general, "/healthz": health}
