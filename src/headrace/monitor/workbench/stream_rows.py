"""The table of streams, and how fast each grows while somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.broker.accounts import Account
from headrace.broker.stream import Stream
from headrace.broker.streams.stream_info import make_stream_info
from headrace.monitor.overview import make_stream_row
from headrace.monitor.query import Query
from headrace.monitor.workbench.table_page import parse_table_request, select_rows

#: Rates are averages of at least this time.
_RATE_WINDOW_S = 2.0
#: After this time without a request the readings say nothing about now.
_FORGET_S = 30.0
_KINDS: dict[str, Callable[[Stream], bool]] = {
    "": lambda stream: True,
    "kv": lambda stream: stream.name.startswith("KV_"),
    "schedules": lambda stream: stream.config.allow_msg_schedules,
    "sourced": lambda stream: stream.config.mirror is not None or bool(stream.config.sources),
    "expiring": lambda stream: bool(stream.config.max_age) or stream.config.allow_msg_ttl,
}
#: A stream with the name of its account.
NamedStream = tuple[str, Stream]


class StreamRates:
    """How fast streams grow, from readings that the requests of viewers make: without viewers, there is no work."""

    def __init__(self, get_time_s: Callable[[], float]) -> None:
        self._get_time_s = get_time_s
        self._before: dict[tuple[str, str], tuple[int, int]] = {}
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        self._before_s = self._newest_s = float("-inf")
        self._now_s = 0.0

    def begin(self) -> None:
        """Begin a request: readings that are old enough become the ones to compare with."""
        now_s = self._now_s = self._get_time_s()
        if now_s - self._newest_s > _FORGET_S:
            self._before, self._before_s = {}, now_s
            self._newest, self._newest_s = {}, now_s
        elif now_s - self._newest_s >= _RATE_WINDOW_S:
            self._before, self._before_s = self._newest, self._newest_s
            self._newest, self._newest_s = {}, now_s

    def read(self, named: NamedStream) -> tuple[float, float]:
        """Return messages stored and bytes gained per second, 0 if the stream was not read before."""
        log = named[1].log
        key, reading = (named[0], named[1].name), (log.last_seq, log.bytes)
        self._newest.setdefault(key, reading)
        seconds = self._now_s - self._before_s
        before = self._before.get(key)
        if before is None or seconds <= 0:
            return 0.0, 0.0
        return max(reading[0] - before[0], 0) / seconds, (reading[1] - before[1]) / seconds


async def make_stream_table(accounts: Iterable[Account], query: Query, rates: StreamRates) -> dict[str, Any]:
    """Return a page of the streams; raise ValueError if the query is not valid."""
    rates.begin()
    columns: dict[str, Callable[[NamedStream], Any]] = {
        "name": lambda named: named[1].name,
        "rate": lambda named: rates.read(named)[0],
        "growth": lambda named: rates.read(named)[1],
        "messages": lambda named: named[1].log.messages,
        "bytes": lambda named: named[1].log.bytes,
        "subjects": lambda named: named[1].log.num_subjects,
        "consumers": lambda named: len(named[1].consumers),
        "expired": lambda named: _count_events(named[1], "expired"),
        "markers": lambda named: _count_events(named[1], "marker"),
        "batches": lambda named: _count_events(named[1], "batch"),
    }
    request = parse_table_request(query, columns, "name")
    kind = query.get("kind", "")
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r}; use one of {', '.join(filter(None, _KINDS))}")
    items = _iter_named(accounts, query.get("account", ""), _KINDS[kind])
    page = await select_rows(items, request, columns, _get_text)
    rows = [_make_row(named, rates) for named in page.rows if not named[1].closed]
    return {"rows": rows, "matching": page.matching, "total": page.total}


def make_stream_detail(display_name: str, stream: Stream, rates: StreamRates) -> dict[str, Any]:
    """Return the figures and the info of one stream."""
    stream.retention.enforce()
    return {
        "row": _make_row((display_name, stream), rates),
        "info": make_stream_info(stream),
        "schedules": len(stream.schedules) if stream.schedules is not None else 0,
    }


def _make_row(named: NamedStream, rates: StreamRates) -> dict[str, Any]:
    rate, growth = rates.read(named)
    return make_stream_row(*named) | {"rate": rate, "growth": growth}


def _iter_named(
    accounts: Iterable[Account], account_name: str, is_wanted: Callable[[Stream], bool]
) -> Iterator[NamedStream]:
    for account in accounts:
        jetstream, name = account.jetstream, account.display_name
        if jetstream is None or (account_name and account_name != name):
            continue
        for stream in jetstream.registry.iter_streams():
            if is_wanted(stream):
                yield name, stream


def _count_events(stream: Stream, kind: str) -> int:
    return stream.jetstream.event_history.counts[kind, stream.name]


def _get_text(named: NamedStream) -> str:
    """Return what the search looks at: name and subjects."""
    return " ".join((named[1].name, *named[1].config.subjects[:20]))
