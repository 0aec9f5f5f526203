"""The table of consumers: those that are stuck first, unless the viewer sorts by something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.broker.accounts import Account
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.dead_letter_target import find_capturing
from headrace.monitor.consumer_stats import STATES, describe_state, get_consumer_stats
from headrace.monitor.overview import make_consumer_row
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PAUSE
from headrace.monitor.workbench.table_page import parse_table_request, select_rows

#: A consumer with the name of its account.
NamedConsumer = tuple[str, Consumer]

#: Streams without consumers after which others may be served.
_STREAMS_PER_PAUSE = 64
_COLUMNS: dict[str, Callable[[NamedConsumer], Any]] = {
    "name": lambda named: named[1].name,
    "stream": lambda named: named[1].stream.name,
    "state": lambda named: _rank(named[1]),
    "pending": lambda named: named[1].num_pending(),
    "ack_pending": lambda named: len(named[1].ack_state.pending),
    "redelivered": lambda named: len(named[1].ack_state.delivery_counts),
    "ack_floor": lambda named: named[1].ack_state.get_ack_floor()[1],
    "blocked_keys": lambda named: _count_blocked(named[1]),
    "dead_letters": lambda named: get_consumer_stats(named[1]).dead_letters,
}


async def make_consumer_table(accounts: Iterable[Account], query: Query) -> dict[str, Any]:
    """Return a page of the consumers; raise ValueError if the query is not valid."""
    request = parse_table_request(query, _COLUMNS, "-state")
    items = _iter_named(accounts, query.get("account", ""), query.get("stream", ""))
    page = await select_rows(items, request, _COLUMNS, _choose_text(request.search))
    rows = [make_consumer_row(account, each) for account, each in page.rows if not each.closed]
    return {"rows": rows, "matching": page.matching, "total": page.total}


async def make_dead_letter_table(accounts: Iterable[Account], query: Query) -> dict[str, Any]:
    """Return a page of the consumers with dead letters, and the streams that store these."""
    request = parse_table_request(query, _COLUMNS, "-dead_letters")
    account_list = list(accounts)
    items = _iter_named(account_list, query.get("account", ""), query.get("stream", ""))
    items = (each for each in items if each is PAUSE or each[1].config.dead_letter is not None)  # type: ignore[index]
    page = await select_rows(items, request, _COLUMNS, _choose_text(request.search))
    by_name = {account.display_name: account for account in account_list}
    rows = [_make_dead_letter_row(by_name[name], each) for name, each in page.rows if not each.closed]
    return {"rows": rows, "matching": page.matching, "total": page.total}


def _make_dead_letter_row(account: Account, consumer: Consumer) -> dict[str, Any]:
    assert consumer.config.dead_letter is not None
    subject = consumer.config.dead_letter.subject
    target = find_capturing(account.router, subject.encode())
    dead_letters = consumer.ack_handler.dead_letters
    return {
        "account": account.display_name,
        "stream": consumer.stream.name,
        "name": consumer.name,
        "subject": subject,
        "target": target.name if target is not None else "",
        "stored": target.log.get_subject_count(subject.encode()) if target is not None else 0,
        "published": dead_letters.published,
        "failed": dead_letters.failed,
    }


def _iter_named(
    accounts: Iterable[Account], account_name: str, stream_name: str
) -> Iterator[NamedConsumer | object]:
    for account in accounts:
        jetstream, name = account.jetstream, account.display_name
        if jetstream is None or (account_name and account_name != name):
            continue
        streams = [jetstream.streams.get(stream_name)] if stream_name else jetstream.registry.iter_streams()
        for number, stream in enumerate(streams):
            if stream is not None and stream.consumers:
                for consumer in list(stream.consumers.values()):
                    yield name, consumer
            if number % _STREAMS_PER_PAUSE == 0:
                yield PAUSE


def _choose_text(search: str) -> Callable[[NamedConsumer], str]:
    """Return what the search looks at: also the state, which takes long, only if it can match."""
    return _get_text_and_state if any(search in state for state in STATES) else _get_text


def _get_text(named: NamedConsumer) -> str:
    """Return stream, name and filters."""
    consumer = named[1]
    filters = [pattern.decode(errors="replace") for pattern in consumer.filters[:20]]
    return " ".join([consumer.stream.name, consumer.name, *filters])


def _get_text_and_state(named: NamedConsumer) -> str:
    consumer = named[1]
    return f"{_get_text(named)} {describe_state(consumer, consumer.num_pending())}"


def _rank(consumer: Consumer) -> tuple[int, int]:
    """Order consumers: stuck ones last in ascending order, then by what is unfinished."""
    pending = consumer.num_pending()
    state = describe_state(consumer, pending)
    unfinished = pending + len(consumer.ack_state.pending)
    return (0 if not state else 1 if state == "redelivering" else 2), unfinished


def _count_blocked(consumer: Consumer) -> int:
    key_order = consumer.ack_state.key_order
    return key_order.blocked if key_order is not None else 0
