"""The page of streams, /jsz: the reference's field names, by account when asked for.

Owns the form and the query (`acc`, `accounts`, `streams`, `consumers`, `config`, `offset`, `limit`). What it shows may
not be durable yet; whoever serves it waits for the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.monitor.query import Query, asked, window

if TYPE_CHECKING:
    from headrace.broker.accounts import Account
    from headrace.broker.jetstream import JetStream
    from headrace.broker.stream import Stream
    from headrace.net.options import Options


def jsz(options: Options, accounts: Iterable[Account], query: Query) -> dict[str, Any]:
    """What all accounts hold together; ValueError for a query that makes no sense."""
    chosen = [
        (account, account.jetstream)
        for account in accounts
        if account.jetstream is not None and query.get("acc", account.name) == account.name
    ]
    if not chosen:
        return {"disabled": True}
    shown = _stats([jetstream for _, jetstream in chosen], len(chosen)) | _totals(chosen)
    shown["config"] = _config(options)
    if any(asked(query, name) for name in ("accounts", "streams", "consumers", "config")) or "acc" in query:
        offset, limit = window(query)
        details = [_account(account, jetstream, query) for account, jetstream in chosen]
        shown["account_details"] = details[offset : offset + limit]
    return shown


def totals(accounts: Iterable[Account]) -> dict[str, Any] | None:
    """The part that /varz shows; None without streams."""
    there = [account.jetstream for account in accounts if account.jetstream is not None]
    return _stats(there, len(there)) if there else None


def _stats(streams: list[JetStream], accounts: int) -> dict[str, Any]:
    used = {kind: [jetstream.usage(kind) for jetstream in streams] for kind in ("memory", "file")}
    return {
        "memory": sum(usage for usage, _ in used["memory"]),
        "storage": sum(usage for usage, _ in used["file"]),
        "reserved_memory": sum(reserved for _, reserved in used["memory"]),
        "reserved_storage": sum(reserved for _, reserved in used["file"]),
        "accounts": accounts,
        "ha_assets": 0,
        "api": {
            "total": sum(jetstream.api_total for jetstream in streams),
            "errors": sum(jetstream.api_errors for jetstream in streams),
        },
    }


def _totals(chosen: list[tuple[Account, JetStream]]) -> dict[str, Any]:
    streams = [stream for _, jetstream in chosen for stream in jetstream.streams.values()]
    return {
        "streams": len(streams),
        "consumers": sum(len(stream.consumers) for stream in streams),
        "messages": sum(stream.log.messages for stream in streams),
        "bytes": sum(stream.log.bytes for stream in streams),
        "total": len(chosen),
    }


def _config(options: Options) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "max_memory": options.max_memory_store,
        "max_storage": options.max_file_store,
        "store_dir": options.store_dir,
        "sync_always": True,
    }
    if options.domain:
        shown["domain"] = options.domain
    return shown


def _account(account: Account, jetstream: JetStream, query: Query) -> dict[str, Any]:
    shown = {"name": account.title, "id": account.name} | _stats([jetstream], 1)
    if any(asked(query, name) for name in ("streams", "consumers", "config")):
        shown["stream_detail"] = [_stream(stream, query) for stream in jetstream.sorted_streams()]
    return shown


def _stream(stream: Stream, query: Query) -> dict[str, Any]:
    # Where no account has streams, nothing of theirs is loaded.
    from headrace.broker.consumer_info import consumer_info
    from headrace.broker.info import stream_info

    info = _plain(stream_info(stream, listed=True))
    wanted = ["name", "created", "state", "mirror", "sources"] + (
        ["config"] if asked(query, "config") else []
    )
    shown = {"name": stream.name} | {key: info[key] for key in wanted if key in info}
    if asked(query, "consumers"):
        shown["consumer_detail"] = [
            _plain(consumer_info(consumer, listed=True)) for _, consumer in sorted(stream.consumers.items())
        ]
    return shown


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    """Configurations are kept encoded; a page needs them as values."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(info))
    return plain
