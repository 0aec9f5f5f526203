"""The data of the web page's overview: the whole server in one value, polled by each viewer.

Owns the format. Bounded: only the busiest connections, only the newest events, at most `ROWS_MAX` streams and consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from headrace import COMPATIBLE_VERSION, __version__
from headrace.broker.accounts import Account
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.jetstream import AccountJetStream
from headrace.broker.stream import Stream
from headrace.jetstream_api.responses import SourceStatus
from headrace.monitor.consumer_stats import get_consumer_stats
from headrace.monitor.metrics import iter_commit_latency
from headrace.monitor.sliced_page import PAUSE, PageRows
from headrace.monitor.varz import ServerStats, format_rfc3339, get_resident_bytes, make_loop_stats
from headrace.net.client_connection import ClientConnection
from headrace.storage.io.latency import BOUNDS_US

ROWS_MAX = 1000
CONNECTIONS_MAX = 100


def make_overview(
    stats: ServerStats,
    accounts: Iterable[Account],
    connections: Mapping[int, ClientConnection],
    unhealthy_reason: str,
) -> dict[str, Any]:
    """Return everything but messages; for scripts, the page itself reads the summary and tables."""
    jetstreams = _list_jetstreams(accounts)
    return make_summary(stats, accounts, connections, unhealthy_reason) | {
        "streams": PageRows(lambda: islice(_iter_streams(jetstreams), ROWS_MAX)),
        "consumers": PageRows(lambda: _iter_consumers(jetstreams)),
        "connections": _make_connections(connections),
    }


def make_summary(
    stats: ServerStats,
    accounts: Iterable[Account],
    connections: Mapping[int, ClientConnection],
    unhealthy_reason: str,
) -> dict[str, Any]:
    """Return what is small whatever the server has: figures of the server, its stores, recent events."""
    jetstreams = _list_jetstreams(accounts)
    return {
        "server": _make_server(stats),
        "health": {"ok": not unhealthy_reason, "error": unhealthy_reason},
        "stores": [_make_store(display_name, jetstream) for display_name, jetstream in jetstreams],
        "commits": [
            _make_commits(display_name, latency) for display_name, latency in iter_commit_latency(accounts)
        ],
        "totals": {
            "streams": sum(len(jetstream.streams) for _, jetstream in jetstreams),
            "consumers": sum(jetstream.totals.consumers for _, jetstream in jetstreams),
            "connections": len(connections),
        },
        "events": _make_events(jetstreams),
    }


def _list_jetstreams(accounts: Iterable[Account]) -> list[tuple[str, AccountJetStream]]:
    return [(a.display_name, a.jetstream) for a in accounts if a.jetstream is not None]


def _iter_streams(jetstreams: list[tuple[str, AccountJetStream]]) -> Iterator[dict[str, Any]]:
    for display_name, jetstream in jetstreams:
        for stream in jetstream.registry.iter_streams():
            yield make_stream_row(display_name, stream)


def _iter_consumers(jetstreams: list[tuple[str, AccountJetStream]]) -> Iterator[object]:
    found = 0
    for display_name, jetstream in jetstreams:
        for stream in jetstream.registry.iter_streams():
            for name, consumer in sorted(stream.consumers.items()):
                if stream.consumers.get(name) is consumer:
                    yield make_consumer_row(display_name, consumer)
                    found += 1
                    if found == ROWS_MAX:
                        return
            yield PAUSE


def _make_server(stats: ServerStats) -> dict[str, Any]:
    return {
        "name": stats.server_name,
        "version": __version__,
        "compatible": COMPATIBLE_VERSION,
        "address": f"{stats.host}:{stats.port}",
        "now_ms": stats.now_ns // 1_000_000,
        "uptime_s": (stats.now_ns - stats.start_ns) // 1_000_000_000,
        "memory": get_resident_bytes(),
        "connections": stats.connections,
        "leafnodes": stats.leafnodes,
        "subscriptions": stats.subscriptions,
        "slow_consumers": stats.slow_consumers,
        "in_msgs": stats.in_msgs,
        "in_bytes": stats.in_bytes,
        "out_msgs": stats.out_msgs,
        "out_bytes": stats.out_bytes,
        "event_loop": make_loop_stats(stats.loop_stalls),
    }


def _make_store(display_name: str, jetstream: AccountJetStream) -> dict[str, Any]:
    store, report = jetstream.store, jetstream.store.report()
    return {
        "account": display_name,
        "free": store.disk.free(),
        "stored_bytes": jetstream.quota.usage("file")[0],
        "pending_bytes": store.pending_bytes,
        "full": store.full,
        "poisoned": str(store.poisoned or ""),
        "damage": [str(damage) for damage in islice(report.damage, 20)],
        "offline": report.offline_streams,
        "batches_open": len(jetstream.totals.staged_batches),
        "batch_bytes": jetstream.totals.staged_bytes,
        "api_requests": jetstream.api_total,
        "api_errors": jetstream.api_errors,
    }


def _make_commits(display_name: str, latency: Any) -> dict[str, Any]:
    return {
        "account": display_name,
        "count": latency.count,
        "p50_us": latency.quantile_us(0.5),
        "p99_us": latency.quantile_us(0.99),
        "bounds_us": list(BOUNDS_US),
        "counts": list(latency.counts),
    }


def make_stream_row(display_name: str, stream: Stream) -> dict[str, Any]:
    """Return the figures of a stream."""
    log, config, counts = stream.log, stream.config, stream.jetstream.event_history.counts
    now_ns = stream.jetstream.timers.now_ns()
    mirror = stream.sourcing.make_mirror_info(now_ns)
    return {
        "account": display_name,
        "name": stream.name,
        "subjects": list(config.subjects),
        "messages": log.messages,
        "bytes": log.bytes,
        "first_seq": log.first_seq,
        "last_seq": log.last_seq,
        "last_time": format_rfc3339(log.last_time_ns) if log.last_time_ns else "",
        "num_subjects": log.num_subjects,
        "consumers": len(stream.consumers),
        "retention": config.retention,
        "storage": config.storage,
        "max_bytes": config.max_bytes,
        "max_msgs": config.max_msgs,
        "max_age_s": config.max_age // 1_000_000_000,
        "ttl": config.allow_msg_ttl,
        "marker_ttl_s": config.subject_delete_marker_ttl // 1_000_000_000,
        "expired": counts["expired", stream.name],
        "markers": counts["marker", stream.name],
        "batches": counts["batch", stream.name],
        "batches_open": len(stream.atomic_batches),
        "sources": [
            _make_source(source, kind)
            for kind, source in [
                *([("mirror", mirror)] if mirror else []),
                *(("source", source) for source in stream.sourcing.make_source_infos(now_ns)),
            ]
        ],
    }


def _make_source(source: SourceStatus, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": source.name,
        "lag": source.lag,
        "active_s": source.active_ns / 1e9 if source.active_ns >= 0 else None,
        "error": str(source.error) if source.error is not None else "",
    }


def make_consumer_row(display_name: str, consumer: Consumer) -> dict[str, Any]:
    """Return the figures of a consumer."""
    consumer_stats = get_consumer_stats(consumer)
    filters = [pattern.decode(errors="replace") for pattern in consumer.filters]
    return {
        "account": display_name,
        "stream": consumer.stream.name,
        "name": consumer.name,
        "filters": filters[:20],
    } | consumer_stats._asdict()


def _make_connections(connections: Mapping[int, ClientConnection]) -> list[dict[str, Any]]:
    busiest = sorted(connections.values(), key=lambda c: -(c.session.in_msgs + c.session.out_msgs))
    return [make_connection_row(connection) for connection in busiest[:CONNECTIONS_MAX]]


def make_connection_row(connection: ClientConnection) -> dict[str, Any]:
    """Return the figures of a connection."""
    session = connection.session
    return {
        "cid": session.cid,
        "name": session.name,
        "lang": session.lang,
        "version": session.version,
        "account": session.identity.account if session.identity else "",
        "address": f"{connection.client_ip}:{connection.client_port}",
        "subscriptions": len(session.subs),
        "pending": connection.bytes_pending,
        "in_msgs": session.in_msgs,
        "out_msgs": session.out_msgs,
    }


def _make_events(jetstreams: list[tuple[str, AccountJetStream]]) -> list[dict[str, Any]]:
    return [
        {"account": display_name} | event._asdict()
        for display_name, jetstream in jetstreams
        for event in jetstream.event_history.recent
    ]
