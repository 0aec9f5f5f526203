"""Tables are maintained by long and by short runs, beside commits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server
from headrace.tables import maintenance
from headrace.tables.maintenance import MAINTAINED_MS
from headrace.tables.position import CREATED_MS
from headrace.tables.service import RunOptions, TableService
from support.table_landing import Landing
from support.tables import FaultyCatalog, lose_request, make_commit, read_seqs, reload

MakeStream = Callable[..., dict[str, Any]]
_DEADLINE_S = 120


@pytest.fixture
def landing(server: Server, client: Client, name: str, tmp_path: Path, make_stream: MakeStream) -> Landing:
    """A stream with rows, and its table."""
    made = Landing(server, client, name, tmp_path)
    make_stream(allow_direct=True)
    made.make_table(commit_interval="2s", snapshots_max=2)
    made.publish(3)
    return made


def make_service(landing: Landing, *, is_once: bool) -> TableService:
    tables = {landing.name: landing.config}
    return TableService(tables, landing.connection, RunOptions(is_once), lambda name, text: None)


def add_orphan(landing: Landing) -> Path:
    """Write a data file that nothing refers to, two days ago; return it."""
    files = {*landing.folder.rglob("*.parquet")}
    make_commit(reload(landing.config), None, range(50, 60), "lost")
    then_s = time.time() - 2 * 86400
    orphan = next(iter({*landing.folder.rglob("*.parquet")} - files))
    os.utime(orphan, (then_s, then_s))
    with reload(landing.config).transaction() as transaction:
        transaction.set_properties({CREATED_MS: str(int((then_s - 60) * 1000))})
    return orphan


def test_a_short_run_removes_orphans_and_expires_snapshots(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EXPIRED_MIN", 2)
    orphan = add_orphan(landing)
    for _ in range(4):
        landing.publish(1)
        assert make_service(landing, is_once=True).run() == {}
    assert not orphan.exists()
    assert len(reload(landing.config).metadata.snapshots) == 2
    assert MAINTAINED_MS in reload(landing.config).properties
    assert read_seqs(landing.config) == list(range(1, 8))
    assert landing.verify() == []


def test_a_table_is_maintained_after_errors(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = add_orphan(landing)
    faulty = FaultyCatalog(monkeypatch)
    faulty.faults = [lose_request] * 9
    service = make_service(landing, is_once=False)
    running = threading.Thread(target=service.run)
    running.start()
    try:
        deadline_s = time.monotonic() + _DEADLINE_S
        while orphan.exists() and time.monotonic() < deadline_s:
            running.join(0.1)
    finally:
        service.stop()
        running.join()
    assert not orphan.exists()
    assert faulty.calls > 9
    assert landing.verify() == []
