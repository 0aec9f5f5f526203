"""Snapshots that expire, and files that nothing refers to: what is needed always stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.exceptions import CommitFailedException

from headrace.errors import TableError
from headrace.tables import maintenance
from headrace.tables.catalog import create_table, open_catalog
from headrace.tables.commits import send_commit
from headrace.tables.config import TableConfig
from headrace.tables.maintenance import (
    MAINTAINED_MS,
    expire_if_due,
    find_expired,
    maintain_table,
    remove_orphans_if_due,
)
from headrace.tables.orphan_files import MaintenanceStopped, remove_orphans
from headrace.tables.position import CREATED_MS, find_position
from support.tables import add_snapshot, make_commit, make_table, read_seqs, reload


@pytest.fixture
def config(tmp_path: Path) -> TableConfig:
    """A table with three commits."""
    table, config = make_table(tmp_path)
    before = None
    for number in range(3):
        seqs = range(number * 3 + 1, number * 3 + 4)
        commit = make_commit(table, before, seqs, f"c{number}")
        send_commit(table, commit)
        before, table = commit.after, reload(config)
    return config


def list_files(folder: Path) -> set[Path]:
    return {path for path in (folder / "lake" / "files").rglob("*") if path.is_file()}


def age(folder: Path, config: TableConfig, days: float) -> None:
    """Make all files older, and the creation of the table, too."""
    then_s = time.time() - days * 86400
    for path in list_files(folder):
        os.utime(path, (then_s, then_s))
    with reload(config).transaction() as transaction:
        transaction.set_properties({CREATED_MS: str(int((then_s - 60) * 1000))})


def change(config: TableConfig, **values: Any) -> TableConfig:
    return msgspec.structs.replace(config, **values)


def expire(config: TableConfig, **values: Any) -> int:
    """Expire what is older than a moment ago."""
    time.sleep(0.01)
    return maintain_table(
        change(config, **{"snapshot_expiry": "1ms", "remove_orphans": False, **values})
    ).expired_snapshots


def test_the_newest_snapshot_with_a_position_stays(config: TableConfig) -> None:
    add_snapshot(reload(config))
    short = change(config, snapshot_expiry="1ms")
    time.sleep(0.01)
    assert maintain_table(short, dry_run=True).expired_snapshots == 2
    assert expire(config) == 2
    table = reload(config)
    assert len(table.metadata.snapshots) == 2
    position = find_position(table)
    assert position is not None
    assert (position.seq, read_seqs(config)) == (9, list(range(1, 10)))
    assert expire(config) == 0


def test_young_snapshots_and_tags_stay(config: TableConfig) -> None:
    assert expire(config, snapshot_expiry="1h") == 0
    first = reload(config).metadata.snapshots[0].snapshot_id
    reload(config).manage_snapshots().create_tag(first, "audit").commit()
    assert expire(config) == 1
    assert reload(config).snapshot_by_id(first) is not None


def test_only_the_newest_snapshots_stay(config: TableConfig) -> None:
    oldest, _, newest = (snapshot.snapshot_id for snapshot in reload(config).metadata.snapshots)
    assert expire(config, snapshot_expiry="7d", snapshots_max=3) == 0
    assert expire(config, snapshot_expiry="never", snapshots_max=1) == 0
    assert expire(config, snapshot_expiry="7d", snapshots_max=2) == 1
    table = reload(config)
    assert table.snapshot_by_id(oldest) is None
    assert table.snapshot_by_id(newest) is not None
    assert read_seqs(config) == list(range(1, 10))


def test_expiry_waits_until_it_is_worth_a_commit(
    config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = change(config, snapshot_expiry="1ms")
    time.sleep(0.01)
    assert expire_if_due(reload(config), short) == 0
    monkeypatch.setattr(maintenance, "EXPIRED_MIN", 2)
    assert expire_if_due(reload(config), short) == 2
    assert len(reload(config).metadata.snapshots) == 1


def test_snapshots_that_are_an_hour_too_old_expire(
    config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr("headrace.tables.maintenance.time.time", lambda: now_s + 7 * 86400 + 1800)
    assert expire_if_due(reload(config), config) == 0
    monkeypatch.setattr("headrace.tables.maintenance.time.time", lambda: now_s + 7 * 86400 + 3700)
    assert expire_if_due(reload(config), config) == 2


def test_an_expiry_that_is_overtaken_changes_nothing(
    config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "EXPIRED_MIN", 1)
    planned = reload(config)
    add_snapshot(reload(config))
    time.sleep(0.01)
    with pytest.raises(CommitFailedException):
        expire_if_due(planned, change(config, snapshot_expiry="1ms"))
    assert len(reload(config).metadata.snapshots) == 4


def test_the_metadata_is_not_copied_for_each_snapshot_that_expires(
    config: TableConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table.metadata import TableMetadataCommonFields, TableMetadataV2

    for _ in range(20):
        add_snapshot(reload(config))
    add = make_commit(reload(config), find_position(reload(config)), range(10, 12), "last")
    send_commit(reload(config), add)
    copies: list[int] = []
    copy = TableMetadataCommonFields.model_copy

    def count(self: Any, **options: Any) -> Any:
        copies.append(1)
        return copy(self, **options)

    monkeypatch.setattr(TableMetadataV2, "model_copy", count)
    assert expire(config) == 23
    assert len(copies) < 20


def test_only_old_files_without_a_reference_are_deleted(config: TableConfig, tmp_path: Path) -> None:
    make_commit(reload(config), None, range(50, 60), "lost")
    age(tmp_path, config, 2)
    make_commit(reload(config), None, range(60, 70), "running")
    before = list_files(tmp_path)
    dry = remove_orphans(lambda: reload(config), dry_run=True)
    assert list_files(tmp_path) == before
    report = remove_orphans(lambda: reload(config))
    assert report == dry
    assert sum(report.values()) > 0
    gone = before - list_files(tmp_path)
    assert [path.name[:4] for path in gone if path.suffix == ".parquet"] == ["lost"]
    assert len(gone) == len(report)
    assert read_seqs(config) == list(range(1, 10))
    for snapshot in reload(config).metadata.snapshots:
        assert reload(config).scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows


def test_files_of_an_earlier_table_stay(config: TableConfig, tmp_path: Path) -> None:
    table = reload(config)
    age(tmp_path, config, 2)
    with reload(config).transaction() as transaction:
        transaction.set_properties({CREATED_MS: str(int(time.time() * 1000))})
    assert remove_orphans(lambda: reload(config)) == {}
    with reload(config).transaction() as transaction:
        transaction.remove_properties(CREATED_MS)
    assert remove_orphans(lambda: reload(config)) == {}
    assert table.scan().to_arrow().num_rows == 9


def test_files_of_expired_snapshots_are_deleted_and_the_rows_stay(
    config: TableConfig, tmp_path: Path
) -> None:
    age(tmp_path, config, 2)
    short = change(config, snapshot_expiry="1ms")
    time.sleep(0.01)
    report = maintain_table(short)
    assert (report.expired_snapshots, report.orphan_files > 0) == (2, True)
    assert read_seqs(config) == list(range(1, 10))
    never = change(config, snapshot_expiry="never", remove_orphans=False)
    assert maintain_table(never).expired_snapshots == 0


def test_tables_of_catalogs_that_do_not_know_of_each_other_have_their_own_folders(
    config: TableConfig, tmp_path: Path
) -> None:
    """As after `table add` from another folder with a relative address of the catalog, or a catalog file that was lost."""
    newer = change(config, catalog=f"sqlite:///{tmp_path}/lake/other.db")
    create_table(open_catalog(newer), newer)
    assert reload(newer).location() != reload(config).location()
    age(tmp_path, newer, 2)
    make_commit(reload(newer), None, range(1, 4), "lost")
    age(tmp_path, newer, 2)
    remove_orphans(lambda: reload(newer))
    assert read_seqs(config) == list(range(1, 10))


def test_nothing_is_deleted_in_a_folder_with_another_table(config: TableConfig, tmp_path: Path) -> None:
    newer = change(config, catalog=f"sqlite:///{tmp_path}/lake/other.db")
    catalog, older_table = open_catalog(newer), reload(config)
    catalog.create_namespace("shop")
    catalog.create_table(
        newer.table,
        older_table.schema(),
        older_table.location(),
        properties={CREATED_MS: older_table.properties[CREATED_MS]},
    )
    before = list_files(tmp_path)
    age(tmp_path, newer, 2)
    with pytest.raises(TableError, match="is the metadata of another table"):
        maintain_table(newer)
    assert before <= list_files(tmp_path)
    assert read_seqs(config) == list(range(1, 10))


def test_orphans_are_removed_once_a_day_by_short_runs_too(config: TableConfig, tmp_path: Path) -> None:
    assert remove_orphans_if_due(config) is None
    make_commit(reload(config), None, range(50, 60), "lost")
    age(tmp_path, config, 2)
    report = remove_orphans_if_due(config)
    assert report is not None
    assert report.orphan_files > 0
    assert time.time() - int(reload(config).properties[MAINTAINED_MS]) / 1000 < 600
    assert remove_orphans_if_due(config) is None
    assert remove_orphans_if_due(change(config, remove_orphans=False)) is None
    assert find_position(reload(config)) is not None


def test_a_removal_that_is_stopped_is_continued(config: TableConfig, tmp_path: Path) -> None:
    make_commit(reload(config), None, range(50, 60), "lost")
    age(tmp_path, config, 2)
    with pytest.raises(MaintenanceStopped):
        remove_orphans_if_due(config, lambda: True)
    assert MAINTAINED_MS not in reload(config).properties
    assert remove_orphans_if_due(config) is not None


def test_expired_snapshots_are_the_oldest(config: TableConfig) -> None:
    snapshots = reload(config).metadata.snapshots
    expired = find_expired(reload(config), change(config, snapshots_max=2))
    assert [snapshot.snapshot_id for snapshot in expired] == [snapshots[0].snapshot_id]
