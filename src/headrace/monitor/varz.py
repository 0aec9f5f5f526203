"""The general page, /varz: those of nats-server's fields that this server has.

Owns the format. The figures come in through `ServerStats`, so that it knows neither sockets nor streams.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from typing import Any

from headrace import COMPATIBLE_VERSION, __version__
from headrace._native import describe_core
from headrace.broker import GLOBAL
from headrace.config.leafnode_options import LeafnodeRemote, LeafnodeTlsOptions, parse_leafnode_url
from headrace.config.options import ServerOptions
from headrace.net.loop_watchdog import LoopStalls

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """The figures of a running server at one time."""

    server_id: str
    server_name: str
    host: str
    port: int
    http_port: int
    https_port: int
    start_ns: int
    now_ns: int
    connections: int
    total_connections: int
    subscriptions: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    slow_consumers: int
    stale_connections: int
    page_counts: dict[str, int]
    loop_stalls: LoopStalls
    leafnodes: int = 0
    leafnode_port: int = 0


def varz(
    options: ServerOptions, stats: ServerStats, jetstream_totals: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the page; `jetstream_totals` are those of all accounts, None without JetStream."""
    page = _make_identity(options, stats) | _make_limits(options, stats) | _make_stats(stats)
    limits = {"max_memory": options.max_memory_store, "max_storage": options.max_file_store}
    config = limits | {"store_dir": options.store_dir, "sync_always": True}
    return page | {
        "leaf": _make_leafnodes(options, stats),
        **{name: {} for name in ("cluster", "gateway", "mqtt")},
        "jetstream": {"config": config, "stats": jetstream_totals} if jetstream_totals is not None else {},
    }


def _make_leafnodes(options: ServerOptions, stats: ServerStats) -> dict[str, Any]:
    """Return the configured listener for leafnodes and the remotes, without credentials."""
    settings = options.effective_leafnodes
    fields: dict[str, Any] = {}
    if stats.leafnode_port:
        fields = {
            "host": settings.host or options.host or "0.0.0.0",
            "port": stats.leafnode_port,
            "auth_timeout": settings.auth_timeout_s,
            "tls_timeout": (settings.tls or LeafnodeTlsOptions()).timeout_s,
        }
    if settings.remotes:
        fields["remotes"] = [_make_remote(remote) for remote in settings.remotes]
    return fields


def _make_remote(remote: LeafnodeRemote) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "local_account": remote.account or GLOBAL,
        "urls": [parse_leafnode_url(url).host_port for url in remote.urls],
    }
    if remote.deny_imports or remote.deny_exports:
        fields["deny"] = {"exports": list(remote.deny_exports), "imports": list(remote.deny_imports)}
    return fields


def _make_identity(options: ServerOptions, stats: ServerStats) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "server_id": stats.server_id,
        "server_name": stats.server_name,
        "version": COMPATIBLE_VERSION,
        "headrace_version": __version__,
        "headrace_core": describe_core(),
        "proto": 1,
        "go": f"python{platform.python_version()}",
        "host": stats.host,
        "port": stats.port,
    }
    if options.auth_required:
        fields["auth_required"] = True
    if options.tls_enabled:
        fields |= {"tls_required": True, "tls_verify": options.tls_verify}
    if options.client_advertise:
        fields["connect_urls"] = [options.client_advertise]
    if options.standby:
        fields["standby"] = False  # it has taken over; see `headrace.cli.standby`
    if options.server_tags:
        fields["tags"] = list(options.server_tags)
    return fields


def _make_limits(options: ServerOptions, stats: ServerStats) -> dict[str, Any]:
    return {
        "max_connections": options.max_connections,
        "max_subscriptions": options.max_subscriptions,
        "ping_interval": int(options.ping_interval_s * SECOND_NS),
        "ping_max": options.ping_max,
        "http_host": options.monitoring_host,
        "http_port": stats.http_port,
        "http_base_path": "",
        "https_port": stats.https_port,
        "auth_timeout": options.auth_timeout_s,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "tls_timeout": options.tls_timeout_s,
        "write_deadline": int(options.write_deadline_s * SECOND_NS),
    }


def _make_stats(stats: ServerStats) -> dict[str, Any]:
    return {
        "start": format_rfc3339(stats.start_ns),
        "now": format_rfc3339(stats.now_ns),
        "uptime": format_uptime((stats.now_ns - stats.start_ns) // SECOND_NS),
        "mem": get_resident_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": 0,
        "connections": stats.connections,
        "total_connections": stats.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": stats.leafnodes,
        "in_msgs": stats.in_msgs,
        "in_bytes": stats.in_bytes,
        "out_msgs": stats.out_msgs,
        "out_bytes": stats.out_bytes,
        "slow_consumers": stats.slow_consumers,
        "stale_connections": stats.stale_connections,
        "subscriptions": stats.subscriptions,
        "http_req_stats": stats.page_counts,
        "config_load_time": format_rfc3339(stats.start_ns),
        "event_loop": make_loop_stats(stats.loop_stalls),
    }


def make_loop_stats(stalls: LoopStalls) -> dict[str, Any]:
    """Return the turns of the event loop that took long; clients wait meanwhile."""
    return {
        "stalls": stalls.count,
        "stalled_ms": round(stalls.total_s * 1000),
        "longest_ms": round(stalls.longest_s * 1000),
        "longest_cpu_ms": round(stalls.longest_cpu_s * 1000),
        "last_operation": stalls.last_operation,
    }


def format_rfc3339(time_ns: int) -> str:
    """Format a time as nats-server does: UTC, nanoseconds, no trailing zeros."""
    second, rest = divmod(time_ns, SECOND_NS)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{fraction}Z"


def format_uptime(seconds: int) -> str:
    """Format a duration as nats-server does: 1y2d3h4m5s, from the largest unit that is not zero."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    year, day = divmod(days, 365)
    parts = [(year, "y"), (day, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return "".join(f"{count}{unit}" for count, unit in parts)


def get_resident_bytes() -> int:
    """Return the memory in use; 0 if the system does not provide it."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
