"""Metrics of the workers of tables, over HTTP: `/metrics` for Prometheus, and `/tablez` as JSON for a page.

Owns the names of the metrics. Reads the statistics of running workers, which other threads change: each value is taken once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.tables.redaction import hide_secrets
from headrace.tables.service import TableService
from headrace.tables.worker import LandingStats


@dataclass(frozen=True)
class TableMetric:
    """One metric, with a value for each table."""

    name: str
    kind: str
    text: str
    read: Callable[[LandingStats], float]


METRICS = (
    TableMetric(
        "headrace_table_lag_messages",
        "gauge",
        "Messages of the stream that are not in the table yet, when they were last counted.",
        lambda stats: stats.lag_messages,
    ),
    TableMetric(
        "headrace_table_lag_seconds",
        "gauge",
        "Time since the table last had everything that the stream had.",
        lambda stats: stats.age_s,
    ),
    TableMetric("headrace_table_sequence", "gauge", "Last sequence in the table.", lambda stats: stats.seq),
    TableMetric(
        "headrace_table_rows_total", "counter", "Rows written since the start.", lambda stats: stats.rows
    ),
    TableMetric(
        "headrace_table_bytes_total",
        "counter",
        "Bytes of data files written since the start.",
        lambda stats: stats.bytes,
    ),
    TableMetric(
        "headrace_table_commits_total", "counter", "Commits since the start.", lambda stats: stats.commits
    ),
    TableMetric(
        "headrace_table_commit_seconds",
        "gauge",
        "Duration of the last commit, with its repetitions.",
        lambda stats: stats.commit_s,
    ),
    TableMetric(
        "headrace_table_retries_total",
        "counter",
        "Commits that were sent again, and attempts after other errors.",
        lambda stats: stats.retries,
    ),
    TableMetric(
        "headrace_table_gap_messages_total",
        "counter",
        "Sequences that were removed before they were written.",
        lambda stats: stats.gap_messages,
    ),
)
STOPPED = "headrace_table_stopped"


def render_metrics(service: TableService) -> str:
    """Return the metrics in the text format of Prometheus."""
    stats = dict(service.stats)
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f'{metric.name}{{table="{name}"}} {metric.read(each)!r}' for name, each in stats.items()]
    lines += [
        f"# HELP {STOPPED} Whether the table stopped because a person has to decide.",
        f"# TYPE {STOPPED} gauge",
    ]
    lines += [f'{STOPPED}{{table="{name}"}} {int(name in service.errors)}' for name in stats]
    return "\n".join([*lines, ""])


def make_report(service: TableService) -> dict[str, Any]:
    """Return the state of all tables as JSON."""
    errors: Mapping[str, Exception] = dict(service.errors)
    return {
        "tables": [
            {
                "name": name,
                "table": service.tables[name].table,
                "stream": service.tables[name].stream,
                "sequence": stats.seq,
                "stream_sequence": stats.stream_seq,
                **{
                    metric.name.removeprefix("headrace_table_").removesuffix("_total"): metric.read(stats)
                    for metric in METRICS
                },
                "error": hide_secrets(str(errors.get(name, "")), service.tables[name]),
            }
            for name, stats in dict(service.stats).items()
        ]
    }


class MetricsServer:
    """Serves metrics on a thread, until it is closed."""

    def __init__(self, service: TableService, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply("text/plain; version=0.0.4", render_metrics(service))
                elif self.path == "/tablez":
                    self._reply("application/json", json.dumps(make_report(service)))
                else:
                    self.send_error(404)

            def _reply(self, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Requests are not logged."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="headrace-table-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
