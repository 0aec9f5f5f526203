"""What the web page shows: the whole server in one value, read once a second by whoever watches.

Owns the form. Bounded: the busiest connections only, the newest events only, at most `ROWS_MAX` streams and consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from headrace import COMPATIBLE_VERSION, __version__
from headrace.api.responses import Origin
from headrace.broker.accounts import Account
from headrace.broker.consumer import Consumer
from headrace.broker.jetstream import JetStream
from headrace.broker.stream import Stream
from headrace.monitor.consumers import figures
from headrace.monitor.metrics import commit_latency
from headrace.monitor.varz import Vitals, resident_bytes, rfc3339
from headrace.net.connection import Connection

ROWS_MAX = 1000
CONNECTIONS_MAX = 100
_CLAIMS, _AUDIT = "CLAIMS", "CLAIMS_AUDIT"
_CLAIM_EVENTS = ("created", "retrieved", "released", "deleted", "expired", "failed", "collected")


def overview(
    vitals: Vitals, accounts: Iterable[Account], connections: Mapping[int, Connection], ailment: str
) -> dict[str, Any]:
    """Everything but messages."""
    there = [(a.title, a.jetstream) for a in accounts if a.jetstream is not None]
    streams = [(title, stream) for title, jetstream in there for stream in jetstream.sorted_streams()]
    consumers = [(title, c) for title, stream in streams for _, c in sorted(stream.consumers.items())]
    return {
        "server": _server(vitals),
        "health": {"ok": not ailment, "error": ailment},
        "stores": [_store(title, jetstream) for title, jetstream in there],
        "commits": [_commits(title, latency) for title, latency in commit_latency(accounts)],
        "streams": [_stream(title, stream) for title, stream in streams[:ROWS_MAX]],
        "consumers": [_consumer(title, consumer) for title, consumer in consumers[:ROWS_MAX]],
        "totals": {"streams": len(streams), "consumers": len(consumers)},
        "claims": [row for title, jetstream in there for row in claims(title, jetstream)],
        "connections": _connections(connections),
        "events": _events(there),
    }


def _server(vitals: Vitals) -> dict[str, Any]:
    return {
        "name": vitals.server_name,
        "version": __version__,
        "compatible": COMPATIBLE_VERSION,
        "address": f"{vitals.host}:{vitals.port}",
        "now_ms": vitals.now_ns // 1_000_000,
        "uptime_s": (vitals.now_ns - vitals.start_ns) // 1_000_000_000,
        "memory": resident_bytes(),
        "connections": vitals.connections,
        "leafnodes": vitals.leafnodes,
        "subscriptions": vitals.subscriptions,
        "slow_consumers": vitals.slow_consumers,
        "in_msgs": vitals.in_msgs,
        "in_bytes": vitals.in_bytes,
        "out_msgs": vitals.out_msgs,
        "out_bytes": vitals.out_bytes,
    }


def _store(title: str, jetstream: JetStream) -> dict[str, Any]:
    store, report = jetstream.store, jetstream.store.report()
    return {
        "account": title,
        "free": store.disk.free(),
        "pending_bytes": store.pending_bytes,
        "full": store.full,
        "poisoned": str(store.poisoned or ""),
        "damage": [str(damage) for damage in islice(report.damage, 20)],
        "offline": report.offline,
        "batches_open": jetstream.staging.open,
        "batch_bytes": jetstream.staging.bytes,
        "api_requests": jetstream.api_total,
        "api_errors": jetstream.api_errors,
    }


def _commits(title: str, latency: Any) -> dict[str, Any]:
    return {
        "account": title,
        "count": latency.count,
        "p50_us": latency.quantile_us(0.5),
        "p99_us": latency.quantile_us(0.99),
    }


def _stream(title: str, stream: Stream) -> dict[str, Any]:
    log, config, counts = stream.log, stream.config, stream.jetstream.diary.counts
    now_ns = stream.jetstream.timers.now_ns()
    mirror = stream.sourcing.mirror(now_ns)
    return {
        "account": title,
        "name": stream.name,
        "subjects": list(config.subjects),
        "messages": log.messages,
        "bytes": log.bytes,
        "first_seq": log.first_seq,
        "last_seq": log.last_seq,
        "last_time": rfc3339(log.last_time_ns) if log.last_time_ns else "",
        "num_subjects": log.num_subjects,
        "consumers": len(stream.consumers),
        "retention": config.retention,
        "storage": config.storage,
        "max_age_s": config.max_age // 1_000_000_000,
        "ttl": config.allow_msg_ttl,
        "marker_ttl_s": config.subject_delete_marker_ttl // 1_000_000_000,
        "expired": counts["expired", stream.name],
        "markers": counts["marker", stream.name],
        "batches": counts["batch", stream.name],
        "batches_open": len(stream.batches),
        "sources": [
            _origin(origin, kind)
            for kind, origin in [
                *([("mirror", mirror)] if mirror else []),
                *(("source", origin) for origin in stream.sourcing.sources(now_ns)),
            ]
        ],
    }


def _origin(origin: Origin, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": origin.name,
        "lag": origin.lag,
        "active_s": origin.active_ns / 1e9 if origin.active_ns >= 0 else None,
        "error": str(origin.error) if origin.error is not None else "",
    }


def _consumer(title: str, consumer: Consumer) -> dict[str, Any]:
    shown = figures(consumer)
    filters = [pattern.decode(errors="replace") for pattern in consumer.filters]
    return {
        "account": title,
        "stream": consumer.stream.name,
        "name": consumer.name,
        "filters": filters[:20],
    } | shown._asdict()


def _connections(connections: Mapping[int, Connection]) -> list[dict[str, Any]]:
    busiest = sorted(connections.values(), key=lambda c: -(c.session.in_msgs + c.session.out_msgs))
    return [
        {
            "cid": connection.session.cid,
            "name": connection.session.name,
            "lang": connection.session.lang,
            "version": connection.session.version,
            "account": connection.session.identity.account if connection.session.identity else "",
            "address": f"{connection.client_ip}:{connection.client_port}",
            "subscriptions": len(connection.session.subs),
            "pending": connection.bytes_pending,
            "in_msgs": connection.session.in_msgs,
            "out_msgs": connection.session.out_msgs,
        }
        for connection in busiest[:CONNECTIONS_MAX]
    ]


def _events(there: list[tuple[str, JetStream]]) -> list[dict[str, Any]]:
    return [
        {"account": title} | event._asdict() for title, jetstream in there for event in jetstream.diary.recent
    ]


def claims(title: str, jetstream: JetStream) -> list[dict[str, Any]]:
    """The claims of an account by namespace, where its streams hold any."""
    registry, audit = jetstream.streams.get(_CLAIMS), jetstream.streams.get(_AUDIT)
    if registry is None:
        return []
    log = registry.log
    found = log.subjects(log.filter((b"$CLAIMS.namespace.*",)))
    return [
        {
            "account": title,
            "namespace": subject.rpartition(b".")[2].decode(errors="replace"),
            "live": _count(registry, b"$CLAIMS.claim.%b.*" % subject.rpartition(b".")[2]),
            "events": _claim_events(audit, subject.rpartition(b".")[2]),
        }
        for subject, _ in islice(found, ROWS_MAX)
    ]


def _claim_events(audit: Stream | None, namespace: bytes) -> dict[str, int]:
    if audit is None:
        return {}
    return {
        event: _count(audit, b"$CLAIMS.audit.%b.*.%b" % (namespace, event.encode()))
        for event in _CLAIM_EVENTS
    }


def _count(stream: Stream, pattern: bytes) -> int:
    return stream.log.count(stream.log.filter((pattern,)), 1)
