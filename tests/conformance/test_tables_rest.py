"""Tables in a REST catalog: that of SeaweedFS, with the files in its S3 storage."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claims.object_stores import Weed
from conformance.client import Client
from conformance.servers import OURS, Server
from headrace.errors import PositionConflict
from headrace.tables.catalog import evolve_table, open_catalog
from headrace.tables.inspection import list_history
from headrace.tables.rest_catalog import RestCatalogWithTimeouts
from headrace.tables.worker import TableWorker
from support.table_landing import Landing, run_cli
from support.tables import (
    FaultyCatalog,
    lose_request,
    lose_response,
    make_config,
    make_rest_values,
    read_rows,
    read_seqs,
    reload,
)

BUCKET = "lake"
pytestmark = pytest.mark.slow
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def weed() -> Iterator[Weed]:
    store = Weed(table_bucket=BUCKET)
    yield store
    store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(OURS) as running:
        yield running


@pytest.fixture
def landing(server: Server, weed: Weed, tmp_path: Path) -> Iterator[Landing]:
    """A stream of its own, and its table."""
    name = f"R{os.getpid()}X{next(_numbers)}"
    with Client(server.port) as client:
        client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        made = Landing(server, client, name, tmp_path)
        made.make_table(**make_rest_values(weed, BUCKET))
        yield made


def test_each_message_lands_once_with_its_columns(landing: Landing) -> None:
    landing.publish(5)
    landing.client.store(f"{landing.name}.h", b"\x00\xff", {"Key": "value"})
    assert landing.land().rows == 6
    landing.publish(2)
    assert (landing.land().rows, landing.land().rows) == (2, 0)
    rows = read_rows(landing.config)
    assert [row["seq"] for row in rows] == list(range(1, 9))
    assert (rows[5]["data"], rows[5]["headers"]) == (b"\x00\xff", [("Key", ["value"])])
    assert [entry.seq for entry in list_history(reload(landing.config))] == [6, 8]
    assert landing.verify() == []
    assert reload(landing.config).metadata.location.startswith(f"s3://{BUCKET}/")


def test_a_commit_asserts_its_snapshot_at_the_catalog(landing: Landing) -> None:
    """Two workers have the same plan: one of them reads again."""
    landing.publish(10)
    workers = [TableWorker(f"w{number}", landing.config, landing.connection) for number in range(2)]
    table = reload(landing.config)
    first, second = (worker._reader.plan(None) for worker in workers)
    assert workers[0]._land_range(table, None, first)
    assert not workers[1]._land_range(table, None, second)
    landing.publish(10)
    for worker in workers:
        worker.land()
        worker.close()
    assert read_seqs(landing.config) == list(range(1, 21))


def test_lost_requests_and_responses_duplicate_nothing(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyCatalog(monkeypatch, RestCatalogWithTimeouts)
    for faults in ([lose_request], [lose_response], [lose_request, lose_response]):
        landing.publish(3)
        faulty.faults = list(faults)
        landing.land()
    assert read_seqs(landing.config) == list(range(1, 10))


def test_a_rollback_stops_the_table_until_it_is_resynced(landing: Landing) -> None:
    landing.publish(3)
    landing.land()
    first = reload(landing.config).current_snapshot()
    assert first is not None
    landing.publish(3)
    landing.land()
    reload(landing.config).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(PositionConflict, match="resync"):
        landing.land()
    assert landing.resync() == 3
    landing.land()
    assert read_seqs(landing.config) == list(range(1, 7))


def test_the_schema_evolves(landing: Landing, weed: Weed) -> None:
    landing.client.store(f"{landing.name}.new", b'{"id": 1}')
    landing.land()
    values = make_rest_values(weed, BUCKET)
    landing.config = make_config(
        landing.folder, name=landing.name, payload="json", schema={"id": "long"}, **values
    )
    evolve_table(open_catalog(landing.config), landing.config)
    landing.client.store(f"{landing.name}.new", b'{"id": 2}')
    landing.land()
    assert [row["id"] for row in read_rows(landing.config)] == [None, 2]


def test_a_store_that_restarts_loses_nothing(landing: Landing, weed: Weed) -> None:
    landing.publish(3)
    landing.land()
    weed.restart()
    landing.publish(3)
    landing.land()
    assert landing.verify() == []
    assert read_seqs(landing.config) == list(range(1, 7))


def test_the_command_line_takes_credentials(
    landing: Landing, weed: Weed, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.publish(4)
    values: dict[str, Any] = make_rest_values(weed, BUCKET)
    name = landing.name
    options = [item for key, value in values["properties"].items() for item in ("-o", f"{key}={value}")]
    where = ["--catalog", values["catalog"], "--warehouse", values["warehouse"]]
    run: Callable[..., tuple[int, str, str]] = run_cli
    code, _, errors = run(landing, "add", name, "--table", f"cli.{name.lower()}", *where, *options)
    assert (code, errors) == (0, "")
    path = landing.folder / "tables.yaml"
    assert path.stat().st_mode & 0o077 == 0
    assert run(landing, "run", "--once")[0] == 0
    code, text, _ = run(landing, "status", "--json")
    assert (code, json.loads(text)[0]["rows"]) == (0, 4)
    path.write_text(
        path.read_text().replace(f"credential: {values['properties']['credential']}", "scope: catalog")
    )
    assert run(landing, "run", "--once")[0] == 1
    monkeypatch.setenv("PYICEBERG_CATALOG__HEADRACE__CREDENTIAL", values["properties"]["credential"])
    code, text, errors = run(landing, "verify", name)
    assert (code, errors) == (0, ""), text
