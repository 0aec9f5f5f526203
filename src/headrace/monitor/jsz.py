"""The JetStream page, /jsz: nats-server's field names, by account on request.

Owns the format and the query (`acc`, `accounts`, `streams`, `consumers`, `config`, `offset`, `limit`). What it shows may
not be durable yet; code that serves it waits for the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.monitor.query import Query, has_flag, parse_offset_limit
from headrace.monitor.sliced_page import PageRows, PageTotal

if TYPE_CHECKING:
    from headrace.broker.accounts import Account
    from headrace.broker.jetstream import AccountJetStream
    from headrace.broker.stream import Stream
    from headrace.config.options import ServerOptions

_STREAMS_PER_STEP = 100
#: Up to this many, the consumers of a stream are encoded together with it.
_FEW_CONSUMERS = 8


def jsz(options: ServerOptions, accounts: Iterable[Account], query: Query) -> dict[str, Any]:
    """Return the page for all accounts together; raise ValueError if the query is not valid."""
    selected = [
        (account, account.jetstream)
        for account in accounts
        if account.jetstream is not None and query.get("acc", account.name) == account.name
    ]
    if not selected:
        return {"disabled": True}
    page = _make_stats([jetstream for _, jetstream in selected], len(selected)) | _make_counts(selected)
    page["config"] = _make_config(options)
    if (
        any(has_flag(query, name) for name in ("accounts", "streams", "consumers", "config"))
        or "acc" in query
    ):
        offset, limit = parse_offset_limit(query)
        details = [_make_account_detail(account, jetstream, query) for account, jetstream in selected]
        page["account_details"] = details[offset : offset + limit]
    return page


def make_totals(accounts: Iterable[Account]) -> dict[str, Any] | None:
    """Return the part that /varz shows; None without JetStream."""
    jetstreams = [account.jetstream for account in accounts if account.jetstream is not None]
    return _make_stats(jetstreams, len(jetstreams)) if jetstreams else None


def _make_stats(jetstreams: list[AccountJetStream], accounts: int) -> dict[str, Any]:
    used = {kind: [jetstream.quota.usage(kind) for jetstream in jetstreams] for kind in ("memory", "file")}
    return {
        "memory": sum(usage for usage, _ in used["memory"]),
        "storage": sum(usage for usage, _ in used["file"]),
        "reserved_memory": sum(reserved for _, reserved in used["memory"]),
        "reserved_storage": sum(reserved for _, reserved in used["file"]),
        "accounts": accounts,
        "ha_assets": 0,
        "api": {
            "total": sum(jetstream.api_total for jetstream in jetstreams),
            "errors": sum(jetstream.api_errors for jetstream in jetstreams),
        },
    }


def _make_counts(selected: list[tuple[Account, AccountJetStream]]) -> dict[str, Any]:
    jetstreams = [jetstream for _, jetstream in selected]
    return {
        "streams": sum(len(jetstream.streams) for jetstream in jetstreams),
        "consumers": sum(jetstream.totals.consumers for jetstream in jetstreams),
        "messages": PageTotal(lambda: _iter_message_totals(jetstreams)),
        "bytes": sum(
            jetstream.quota.usage(kind)[0] for jetstream in jetstreams for kind in ("memory", "file")
        ),
        "total": len(selected),
    }


def _iter_message_totals(jetstreams: list[AccountJetStream]) -> Iterator[int]:
    total = 0
    yield total
    for jetstream in jetstreams:
        for number, stream in enumerate(jetstream.registry.iter_streams(), 1):
            total += stream.log.messages
            if number % _STREAMS_PER_STEP == 0:
                yield total
    yield total


def _make_config(options: ServerOptions) -> dict[str, Any]:
    page: dict[str, Any] = {
        "max_memory": options.max_memory_store,
        "max_storage": options.max_file_store,
        "store_dir": options.store_dir,
        "sync_always": True,
    }
    if options.domain:
        page["domain"] = options.domain
    return page


def _make_account_detail(account: Account, jetstream: AccountJetStream, query: Query) -> dict[str, Any]:
    page: dict[str, Any] = {"name": account.display_name, "id": account.name} | _make_stats([jetstream], 1)
    if any(has_flag(query, name) for name in ("streams", "consumers", "config")):
        page["stream_detail"] = PageRows(lambda: _iter_stream_details(jetstream, query))
    return page


def _iter_stream_details(jetstream: AccountJetStream, query: Query) -> Iterator[dict[str, Any]]:
    for stream in jetstream.registry.iter_streams():
        yield _make_stream_detail(stream, query)


def _make_stream_detail(stream: Stream, query: Query) -> dict[str, Any]:
    # If no account has JetStream, its modules are not loaded.
    from headrace.broker.streams.stream_info import make_stream_info

    info = make_stream_info(stream, in_list=True)
    keys = ["name", "created", "state", "mirror", "sources"] + (
        ["config"] if has_flag(query, "config") else []
    )
    page: dict[str, Any] = {"name": stream.name} | {key: info[key] for key in keys if key in info}
    if has_flag(query, "consumers"):
        details = PageRows(lambda: _iter_consumer_details(stream))
        page["consumer_detail"] = list(details) if len(stream.consumers) <= _FEW_CONSUMERS else details
    return page


def _iter_consumer_details(stream: Stream) -> Iterator[dict[str, Any]]:
    from headrace.broker.consumers.consumer_info import make_consumer_info

    for name, consumer in sorted(stream.consumers.items()):
        if stream.consumers.get(name) is consumer:
            yield make_consumer_info(consumer, in_list=True)
