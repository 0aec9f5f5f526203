"""Commits under faults: each message is in the table once, and no file is deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from headrace.errors import TableError
from headrace.tables import commits
from headrace.tables.commits import CommitOutcome, Committer, send_commit
from headrace.tables.config import TableConfig
from headrace.tables.position import find_position
from support.tables import (
    FaultyCatalog,
    add_snapshot,
    lose_request,
    lose_response,
    make_commit,
    make_table,
    read_seqs,
    reload,
)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyCatalog:
    return FaultyCatalog(monkeypatch)


def make_committer(config: TableConfig, is_stopped: bool = False) -> Committer:
    return Committer(lambda: reload(config), lambda pause_s: is_stopped, config)


def count_files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def test_a_commit_that_was_lost_is_repeated(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    faulty.faults = [lose_request, lose_request]
    committer = make_committer(config)
    assert committer.commit(table, commit) is CommitOutcome.COMMITTED
    assert read_seqs(config) == [1, 2, 3]
    assert (faulty.calls, committer.retries) == (3, 2)


def test_a_commit_whose_response_was_lost_is_not_repeated(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    faulty.faults = [lose_response]
    assert make_committer(config).commit(table, commit) is CommitOutcome.COMMITTED
    assert read_seqs(config) == [1, 2, 3]
    assert faulty.calls == 1


def test_a_refusal_of_a_commit_that_happened_deletes_nothing(tmp_path: Path, faulty: FaultyCatalog) -> None:
    """A proxy repeats a request whose response it lost, and the catalog refuses the second one."""
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")

    def refuse_after_commit(send: Callable[[], Any]) -> Any:
        send()
        raise CommitFailedException("branch main has changed")

    faulty.faults = [refuse_after_commit]
    assert make_committer(config).commit(table, commit) is CommitOutcome.COMMITTED
    assert read_seqs(config) == [1, 2, 3]


def test_an_attempt_that_arrives_late_changes_nothing(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    delayed: list[Callable[[], Any]] = []

    def delay(send: Callable[[], Any]) -> Any:
        delayed.append(send)
        raise TimeoutError("no response")

    faulty.faults = [delay]
    assert make_committer(config).commit(table, commit) is CommitOutcome.COMMITTED
    with pytest.raises(CommitFailedException):
        delayed[0]()
    assert read_seqs(config) == [1, 2, 3]


def test_a_commit_of_another_worker_makes_the_rows_outdated(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    mine, other = (
        make_commit(table, None, range(1, last), name) for last, name in ((4, "mine"), (6, "other"))
    )
    send_commit(reload(config), other)
    before = count_files(tmp_path)
    assert make_committer(config).commit(table, mine) is CommitOutcome.OUTDATED
    assert read_seqs(config) == [1, 2, 3, 4, 5]
    assert count_files(tmp_path) >= before


def test_a_snapshot_of_another_program_is_no_obstacle(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    add_snapshot(reload(config))
    assert make_committer(config).commit(table, commit) is CommitOutcome.COMMITTED
    assert read_seqs(config) == [1, 2, 3]


def test_a_changed_schema_makes_the_rows_outdated(tmp_path: Path) -> None:
    from pyiceberg.types import StringType

    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    other = reload(config)
    with other.update_schema() as update:
        update.add_column("note", StringType())
    add_snapshot(other)
    assert make_committer(config).commit(table, commit) is CommitOutcome.OUTDATED
    assert find_position(reload(config)) is None


def test_a_stop_ends_the_attempts_with_an_error(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    faulty.faults = [lose_request] * 3
    with pytest.raises(TableError, match="the request was lost"):
        make_committer(config, is_stopped=True).commit(table, commit)
    assert faulty.calls == 1


def test_attempts_end(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    faulty.faults = [lose_request] * 100
    with pytest.raises(TableError, match="cannot be committed to"):
        make_committer(config).commit(table, commit)
    assert faulty.calls == commits.ATTEMPTS_MAX


def test_the_log_of_a_failed_commit_has_no_secret(
    tmp_path: Path, faulty: FaultyCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    table, config = make_table(tmp_path, properties={"token": "hush"})
    commit = make_commit(table, None, range(1, 4), "one")

    def refuse(send: Any) -> Any:
        raise ConnectionError("token hush was refused")

    faulty.faults = [refuse]
    assert make_committer(config).commit(table, commit) is CommitOutcome.COMMITTED
    assert "ConnectionError: token *** was refused" in caplog.text


def test_a_catalog_that_does_not_answer_is_an_error(tmp_path: Path, faulty: FaultyCatalog) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    faulty.faults = [lose_response]

    def fail() -> Any:
        raise ConnectionError("the catalog is down")

    with pytest.raises(TableError, match="outcome of a commit is unknown"):
        Committer(fail, lambda pause_s: False, config).commit(table, commit)
