"""Passwords of catalogs are not in messages, reports and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from headrace.cli.exit_codes import CliError
from headrace.cli.table_session import catalog_errors
from headrace.errors import TableError
from headrace.tables import service as service_module
from headrace.tables.catalog import load_table
from headrace.tables.metrics import make_report
from headrace.tables.redaction import hide_secrets, show_catalog
from headrace.tables.service import RunOptions, TableService
from support.tables import make_config

SECRET = "pa/s?s"
CATALOG = f"postgresql+psycopg2://lake:{SECRET}@db/lake"


@pytest.mark.parametrize(
    ("catalog", "shown"),
    [
        (CATALOG, "postgresql+psycopg2://lake:***@db/lake"),
        ("postgresql://lake@db/lake?password=a%20b&x=1", "postgresql://lake@db/lake?password=***&x=1"),
        ("https://lake:secret@catalog/v1", "https://lake:***@catalog/v1"),
        ("sqlite:///lake/catalog.db", "sqlite:///lake/catalog.db"),
        ("http://127.0.0.1:8181", "http://127.0.0.1:8181"),
    ],
)
def test_addresses_are_shown_without_passwords(tmp_path: Path, catalog: str, shown: str) -> None:
    assert show_catalog(make_config(tmp_path, catalog=catalog)) == shown


def test_secrets_are_hidden_as_they_are_written_and_used(tmp_path: Path) -> None:
    properties = {"credential": "id:hush", "s3.secret-access-key": "quiet", "s3.endpoint": "http://s3"}
    config = make_config(tmp_path, catalog="postgresql://u:a%40b@db/lake", properties=properties)
    text = "a%40b a@b quiet id:hush hush http://s3"
    assert hide_secrets(text, config) == "*** *** *** *** *** http://s3"


def test_errors_of_the_command_line_have_no_password(tmp_path: Path) -> None:
    config = make_config(tmp_path, catalog=CATALOG)
    with pytest.raises(CliError) as caught, catalog_errors(config):
        raise sqlalchemy.exc.ArgumentError(f"Could not parse {CATALOG}")
    assert SECRET not in str(caught.value)
    assert "db/lake" in str(caught.value)


def test_a_missing_table_has_no_password(tmp_path: Path) -> None:
    from pyiceberg.catalog.memory import InMemoryCatalog

    catalog = InMemoryCatalog("test")
    with pytest.raises(TableError) as caught:
        load_table(catalog, make_config(tmp_path, catalog=CATALOG))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("is_once", [False, True])
def test_reports_and_tablez_have_no_password(
    tmp_path: Path, is_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []

    def report(name: str, text: str) -> None:
        reports.append(text)
        service.stop()

    def fail(*arguments: Any, **options: Any) -> Any:
        raise sqlalchemy.exc.ArgumentError(f"Could not parse {CATALOG}")

    monkeypatch.setattr(service_module, "TableWorker", fail)
    tables = {"ORDERS": make_config(tmp_path, catalog=CATALOG)}
    service = TableService(tables, {}, RunOptions(is_once), report)
    service.run()
    assert "Could not parse postgresql+psycopg2://lake:***@db/lake" in reports[0]
    assert SECRET not in json.dumps(make_report(service))
