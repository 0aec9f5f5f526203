"""Metrics of tables: names, values, and alerts that use them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from headrace.errors import PositionConflict
from headrace.tables.metrics import METRICS, STOPPED, MetricsServer, render_metrics
from headrace.tables.service import RunOptions, TableService
from support.tables import make_config

ROOT = Path(__file__).parents[3]


@pytest.fixture
def service(tmp_path: Path) -> TableService:
    tables = {"ORDERS": make_config(tmp_path), "OTHER": make_config(tmp_path, name="OTHER")}
    made = TableService(tables, {}, RunOptions(), lambda name, text: None)
    stats = made.stats["ORDERS"]
    stats.rows, stats.seq, stats.stream_seq, stats.commit_s = 5, 7, 10, 0.25
    stats.caught_up_s -= 100
    made.errors["OTHER"] = PositionConflict("rolled back")
    return made


def fetch(server: MetricsServer, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as reply:
        return str(reply.read().decode())


def test_metrics_and_their_json(service: TableService) -> None:
    server = MetricsServer(service, "127.0.0.1", 0)
    try:
        text = fetch(server, "/metrics")
        report = json.loads(fetch(server, "/tablez"))["tables"]
        with pytest.raises(urllib.error.HTTPError):
            fetch(server, "/other")
    finally:
        server.close()
    values = dict(re.findall(r'^(\w+)\{table="ORDERS"\} (\S+)$', text, re.MULTILINE))
    assert set(values) == {metric.name for metric in METRICS} | {STOPPED}
    assert (values["headrace_table_lag_messages"], values["headrace_table_rows_total"]) == ("3", "5")
    assert float(values["headrace_table_lag_seconds"]) >= 100
    assert 'headrace_table_stopped{table="OTHER"} 1' in text
    orders, other = report
    assert (orders["name"], orders["table"], orders["lag_messages"], orders["error"]) == (
        "ORDERS",
        "shop.orders",
        3,
        "",
    )
    assert other["error"] == "rolled back"


def test_counters_keep_all_digits(service: TableService) -> None:
    service.stats["ORDERS"].rows = 123_456_789_012
    assert 'headrace_table_rows_total{table="ORDERS"} 123456789012\n' in render_metrics(service)


def test_alerts_and_documentation_use_metrics_that_exist() -> None:
    names = {metric.name for metric in METRICS} | {STOPPED}
    rules = yaml.safe_load((ROOT / "deploy" / "tables.rules.yml").read_text())
    used = {
        name
        for group in rules["groups"]
        for rule in group["rules"]
        for name in re.findall(r"headrace_table_\w+", rule["expr"])
    }
    assert used <= names
    page = (ROOT / "docs" / "reference" / "tables.md").read_text()
    assert set(re.findall(r"`(headrace_table_\w+)`", page)) == names
