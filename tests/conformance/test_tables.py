"""Tables of streams on both servers: each message once, whatever happens in between."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server
from headrace.errors import PositionConflict, StreamGap, StreamReplaced
from headrace.tables import service
from headrace.tables.inspection import list_history
from headrace.tables.service import RunOptions, TableService
from headrace.tables.worker import TableWorker
from support.table_landing import Landing, run_cli
from support.tables import (
    FaultyCatalog,
    lose_request,
    lose_response,
    make_table,
    read_rows,
    read_seqs,
    reload,
)

MakeStream = Callable[..., dict[str, Any]]


@pytest.fixture
def landing(server: Server, client: Client, name: str, tmp_path: Path) -> Landing:
    return Landing(server, client, name, tmp_path)


@pytest.mark.parametrize("allow_direct", [True, False], ids=["direct", "pull"])
def test_every_message_lands_once(landing: Landing, make_stream: MakeStream, allow_direct: bool) -> None:
    make_stream(allow_direct=allow_direct)
    landing.make_table()
    landing.publish(5)
    landing.client.store(f"{landing.name}.h", b"\x00\xff", {"Key": "value"})
    landing.client.api(f"STREAM.MSG.DELETE.{landing.name}", {"seq": 2})
    assert landing.land().rows == 5
    assert landing.land().rows == 0
    landing.publish(2)
    stats = landing.land()
    assert (stats.rows, stats.commits, stats.lag_messages) == (2, 1, 0)
    rows = read_rows(landing.config)
    assert [row["seq"] for row in rows] == [1, 3, 4, 5, 6, 7, 8]
    assert (rows[4]["data"], rows[4]["headers"]) == (b"\x00\xff", [("Key", ["value"])])
    assert rows[0]["subject"] == f"{landing.name}.0"
    assert landing.verify() == []


def test_a_large_backlog_is_written_in_several_commits(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.make_table(commit_bytes="1MiB")
    landing.publish(60, size=400_000)
    stats = landing.land()
    assert stats.rows == 60
    assert stats.commits >= 3
    assert read_seqs(landing.config) == list(range(1, 61))
    history = list_history(reload(landing.config))
    assert len(history) == stats.commits
    assert history[-1].seq == 60
    assert sum(entry.added_rows for entry in history) == 60


def test_faults_of_the_catalog_cost_and_duplicate_nothing(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    faulty = FaultyCatalog(monkeypatch)
    for faults in ([lose_request], [lose_response], [lose_request, lose_response], []):
        landing.publish(3)
        faulty.faults = list(faults)
        landing.land()
    assert read_seqs(landing.config) == list(range(1, 13))
    assert landing.verify() == []


def test_two_workers_write_each_message_once(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.make_table(commit_bytes="1MiB")
    errors: list[Exception] = []
    is_published = threading.Event()

    def work() -> None:
        worker = TableWorker(f"{landing.name}-{threading.get_ident()}", landing.config, landing.connection)
        try:
            while True:
                is_last = is_published.is_set()
                worker.land()
                if is_last:
                    return
        except Exception as error:
            errors.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        landing.publish(10, size=40_000)
    is_published.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read_seqs(landing.config) == list(range(1, 101))
    assert landing.verify() == []


def test_a_rollback_stops_the_table_until_it_is_resynced(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(3)
    landing.land()
    first = reload(landing.config).current_snapshot()
    assert first is not None
    landing.publish(3)
    landing.land()
    reload(landing.config).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    landing.publish(1)
    with pytest.raises(PositionConflict, match="resync"):
        landing.land()
    with pytest.raises(PositionConflict, match="has rows up to sequence 3"):
        landing.resync(2)
    assert landing.resync() == 3
    landing.land()
    assert read_seqs(landing.config) == list(range(1, 8))
    assert landing.verify() == []


def test_a_stream_that_was_created_again_is_refused_until_it_is_accepted(
    landing: Landing, make_stream: MakeStream
) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(3)
    landing.land()
    landing.client.api(f"STREAM.DELETE.{landing.name}")
    make_stream(allow_direct=True)
    landing.publish(5)
    with pytest.raises(StreamReplaced, match="deleted and created again"):
        landing.land()
    with pytest.raises(StreamReplaced, match="is not the default: name the last sequence"):
        landing.resync()
    assert read_seqs(landing.config) == [1, 2, 3]
    assert landing.land(accept_new_stream=True).rows == 5
    assert read_seqs(landing.config) == [1, 1, 2, 2, 3, 3, 4, 5]
    landing.publish(1)
    assert landing.land().rows == 1


def test_a_purge_is_a_gap(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(2)
    landing.land()
    landing.publish(3)
    landing.client.api(f"STREAM.PURGE.{landing.name}", {"seq": 5})
    with pytest.raises(StreamGap, match="3 to 4 were removed"):
        landing.land()
    import msgspec

    landing.config = msgspec.structs.replace(landing.config, on_gap="continue")
    stats = landing.land()
    assert (stats.rows, stats.gap_messages) == (1, 2)
    assert read_seqs(landing.config) == [1, 2, 5]
    landing.publish(1)
    landing.client.api(f"STREAM.PURGE.{landing.name}", {})
    assert landing.land().rows == 0
    landing.publish(1)
    landing.land()
    assert read_seqs(landing.config) == [1, 2, 5, 7]
    assert [entry.gap for entry in list_history(reload(landing.config))] == ["", "3-4", "6-6", ""]


def delete(landing: Landing, *seqs: int) -> None:
    for seq in seqs:
        landing.client.api(f"STREAM.MSG.DELETE.{landing.name}", {"seq": seq})


@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
def test_deleted_messages_are_no_lag_and_no_gap(
    landing: Landing, make_stream: MakeStream, restarts: bool
) -> None:
    """The worker has read that nothing was there, before the first sequence passed it."""
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(5)
    worker = TableWorker(landing.name, landing.config, landing.connection)
    worker.land()
    landing.publish(3)
    delete(landing, 6, 7, 8)
    stats = worker.land()
    assert (stats.rows, stats.commits, stats.lag_messages, stats.read_seq) == (5, 1, 0, 8)
    landing.client.api(f"STREAM.PURGE.{landing.name}", {})
    assert worker.land().lag_messages == 0
    if restarts:
        worker.close()
        worker = TableWorker(landing.name, landing.config, landing.connection)
        assert worker.land().lag_messages == 0
    landing.publish(1)
    worker.land()
    worker.close()
    assert read_seqs(landing.config) == [1, 2, 3, 4, 5, 9]
    assert [(entry.seq, entry.added_rows) for entry in list_history(reload(landing.config))] == [
        (5, 5),
        (8, 0),
        (9, 1),
    ]
    assert landing.verify() == []


def test_the_position_passes_deleted_messages_at_the_end_with_the_next_rows(
    landing: Landing, make_stream: MakeStream
) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(5)
    delete(landing, 4, 5)
    stats = landing.land()
    assert (stats.rows, stats.seq, stats.lag_messages) == (3, 5, 0)
    landing.client.api(f"STREAM.PURGE.{landing.name}", {})
    assert landing.land().rows == 0
    assert landing.verify() == []


@pytest.mark.parametrize("allow_direct", [True, False], ids=["direct", "pull"])
def test_messages_that_are_removed_while_they_are_read_are_recorded(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, allow_direct: bool
) -> None:
    make_stream(allow_direct=allow_direct)
    landing.make_table(commit_bytes="1MiB", on_gap="continue")
    landing.publish(60, size=400_000)
    delete(landing, 2)
    commit = TableWorker._commit

    def purge_once(worker: TableWorker, *arguments: Any) -> Any:
        monkeypatch.setattr(TableWorker, "_commit", commit)
        landing.client.api(f"STREAM.PURGE.{landing.name}", {"seq": 55})
        return worker._commit(*arguments)

    monkeypatch.setattr(TableWorker, "_commit", purge_once)
    stats = landing.land()
    seqs = read_seqs(landing.config)
    gaps = [entry.gap for entry in list_history(reload(landing.config)) if entry.gap]
    last_read = max(seq for seq in seqs if seq < 55 and seq + 1 not in seqs)
    assert gaps == [f"{last_read + 1}-54"]
    assert (stats.rows, stats.gap_messages) == (len(seqs), 54 - last_read)
    assert seqs == [seq for seq in range(1, 61) if seq != 2 and not last_read < seq < 55]


def test_a_service_runs_all_tables_and_stops_one_that_needs_a_person(
    landing: Landing, make_stream: MakeStream
) -> None:
    make_stream(allow_direct=True)
    landing.make_table()
    landing.publish(3)
    landing.land()
    first = reload(landing.config).current_snapshot()
    landing.publish(3)
    landing.land()
    assert first is not None
    reload(landing.config).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    _, second = make_table(landing.folder, name="SECOND", stream=landing.name)
    texts: list[str] = []
    running = TableService(
        {"broken": landing.config, "second": second},
        landing.connection,
        RunOptions(is_once=True),
        lambda name, text: texts.append(f"{name}: {text}"),
    )
    errors = running.run()
    assert list(errors) == ["broken"]
    assert isinstance(errors["broken"], PositionConflict)
    assert read_seqs(second) == list(range(1, 7))
    assert any(text.startswith("second: 6 rows up to sequence 6") for text in texts)


class RunningService:
    """A service on a thread, and what it reports."""

    def __init__(self, landing: Landing, *, accept_new_stream: bool = False) -> None:
        options = RunOptions(accept_new_stream=accept_new_stream)
        self.reports: queue.Queue[str] = queue.Queue()
        self.service = TableService(
            {landing.name: landing.config},
            landing.connection,
            options,
            lambda _, text: self.reports.put(text),
        )
        self._thread = threading.Thread(target=self.service.run)

    def __enter__(self) -> RunningService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.stop()
        self._thread.join()

    def await_report(self, start: str) -> str:
        """Return the next report, which must begin in this way."""
        text = self.reports.get(timeout=100)
        assert text.startswith(start), text
        return text


def test_a_stopped_table_continues_after_a_resync(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RECHECK_S", 0.2)
    make_stream(allow_direct=True)
    landing.make_table(commit_interval="2s")
    landing.publish(3)
    landing.land()
    first = reload(landing.config).current_snapshot()
    assert first is not None
    landing.publish(3)
    landing.land()
    reload(landing.config).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with RunningService(landing) as running:
        running.await_report("stopped: table")
        assert list(running.service.errors) == [landing.name]
        landing.resync()
        running.await_report("continues")
        running.await_report("3 rows up to sequence 6")
        assert running.service.errors == {}
    assert read_seqs(landing.config) == list(range(1, 7))


def test_a_service_accepts_one_new_stream(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RECHECK_S", 0.2)
    make_stream(allow_direct=True)
    landing.make_table(commit_interval="2s")
    landing.publish(3)
    landing.land()
    landing.client.api(f"STREAM.DELETE.{landing.name}")
    make_stream(allow_direct=True)
    landing.publish(4)
    with RunningService(landing, accept_new_stream=True) as running:
        running.await_report("4 rows up to sequence 4")
        landing.client.api(f"STREAM.DELETE.{landing.name}")
        make_stream(allow_direct=True)
        landing.publish(5)
        while not running.await_report("").startswith("stopped: "):
            # The worker may find no stream first.
            pass
    assert sorted(read_seqs(landing.config)) == [1, 1, 2, 2, 3, 3, 4]


def test_json_payloads_and_subjects_become_columns(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.make_table(payload="json", schema={"id": "long"}, subject_columns={"kind": 2})
    landing.client.store(f"{landing.name}.new", b'{"id": 1}')
    landing.client.store(f"{landing.name}.paid", b"broken")
    landing.land()
    first, second = read_rows(landing.config)
    assert (first["id"], first["kind"], first["_error"]) == (1, "new", None)
    assert (second["id"], second["kind"], second["data"]) == (None, "paid", b"broken")
    assert second["_error"].startswith("not JSON")


def test_the_command_line(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(allow_direct=True)
    landing.publish(4)
    name = landing.name
    where = ["--catalog", "sqlite:///lake/catalog.db", "--warehouse", "lake/files"]
    assert run_cli(landing, "add", "MISSING", "--table", "a.b", *where)[0] != 0
    more = ["-o", "commit_interval=5s", "-o", "subject_columns={kind: 2}"]
    code, text, errors = run_cli(landing, "add", name, "--table", "shop.orders", *where, *more)
    assert (code, errors) == (0, "")
    assert "shop.orders" in text
    assert run_cli(landing, "add", name, "--table", "shop.other", *where)[0] == 4
    code, _, errors = run_cli(landing, "run", "--once")
    assert (code, "4 rows up to sequence 4" in errors) == (0, True)
    code, text, _ = run_cli(landing, "status", "--json")
    (status,) = json.loads(text)
    assert (code, status["seq"], status["lag_messages"], status["rows"], status["error"]) == (0, 4, 0, 4, "")
    code, text, _ = run_cli(landing, "history", name, "--json")
    assert [(entry["seq"], entry["operation"]) for entry in json.loads(text)] == [(4, "append")]
    assert run_cli(landing, "history", name)[0] == 0
    code, text, _ = run_cli(landing, "verify", name)
    assert (code, text) == (0, "4 rows up to sequence 4, 4 compared with the stream: no problems\n")
    code, text, _ = run_cli(landing, "resync", name, "--position", "4")
    assert (code, text) == (0, f"table {name} continues after sequence 4\n")
    assert run_cli(landing, "verify", "OTHER")[0] == 1
    assert run_cli(landing, "rm", name, "--drop")[0] == 0
    assert run_cli(landing, "status")[0] == 2
