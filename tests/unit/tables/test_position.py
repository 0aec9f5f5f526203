"""The position of a table: where it is recorded, and what counts as a conflict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import Table

from headrace.errors import PositionConflict
from headrace.tables.commits import send_commit
from headrace.tables.config import TableConfig
from headrace.tables.position import LastMessage, find_last_row, find_position, parse_position
from support.tables import add_snapshot, make_commit, make_table, reload


def land_twice(folder: Path) -> tuple[Table, TableConfig]:
    """Make a table with two commits: sequences 1 to 3 and 4 to 6."""
    table, config = make_table(folder)
    send_commit(table, make_commit(table, None, range(1, 4), "one"))
    table = reload(config)
    send_commit(table, make_commit(table, find_position(table), range(4, 7), "two"))
    return reload(config), config


def test_a_new_table_has_no_position(tmp_path: Path) -> None:
    assert find_position(make_table(tmp_path)[0]) is None


def test_property_and_summary_are_written_by_the_same_commit(tmp_path: Path) -> None:
    table, _ = land_twice(tmp_path)
    position = find_position(table)
    assert position is not None
    assert (position.seq, position.stream, position.commit_id) == (6, "ORDERS", "two")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (
        parse_position(snapshot.summary.additional_properties) == parse_position(table.properties) == position
    )
    assert len(table.metadata.snapshots) == 2
    assert find_last_row(table) == 6


def test_the_last_message_is_part_of_the_position(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    last = LastMessage(3, 1_763_500_000_000_000)
    commit = make_commit(table, None, range(1, 4), "one")
    send_commit(table, replace(commit, after=replace(commit.after, seq=5, last_message=last)))
    table = reload(config)
    position = find_position(table)
    assert position is not None
    assert position.last_message == last
    # The rows prove the position, although it is after them.
    ours = table.metadata.snapshots[0].snapshot_id
    add_snapshot(table)
    table.maintenance.expire_snapshots().by_ids([ours]).commit()
    assert find_position(reload(config)) == position


def test_an_earlier_version_leaves_a_last_message_that_does_not_count(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    commit = make_commit(table, None, range(1, 4), "one")
    send_commit(table, replace(commit, after=replace(commit.after, last_message=LastMessage(3, 1))))
    table = reload(config)
    later = make_commit(table, find_position(table), range(4, 7), "two")
    send_commit(table, later)
    with reload(config).transaction() as transaction:
        transaction.set_properties({"headrace.last-message": "3:1"})
    position = find_position(reload(config))
    assert position is not None
    assert (position.seq, position.last_message) == (6, None)


def test_a_rollback_is_a_conflict(tmp_path: Path) -> None:
    table, config = land_twice(tmp_path)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(PositionConflict, match=r"record sequence 6 .*made from sequence 3 .*resync"):
        find_position(reload(config))


def test_a_removed_property_is_a_conflict(tmp_path: Path) -> None:
    table, config = land_twice(tmp_path)
    with table.transaction() as transaction:
        transaction.remove_properties(*parse_position(table.properties).to_properties())  # type: ignore[union-attr]
    with pytest.raises(PositionConflict, match="record no position"):
        find_position(reload(config))


def test_an_incomplete_position_is_a_conflict(tmp_path: Path) -> None:
    table, config = land_twice(tmp_path)
    with table.transaction() as transaction:
        transaction.remove_properties("headrace.stream-identity")
    with pytest.raises(PositionConflict, match="incomplete"):
        find_position(reload(config))


def test_snapshots_of_others_leave_the_position(tmp_path: Path) -> None:
    table, config = land_twice(tmp_path)
    add_snapshot(table)
    assert reload(config).current_snapshot() != table.metadata.snapshots[1]
    position = find_position(reload(config))
    assert position is not None
    assert position.seq == 6


def test_the_rows_prove_the_position_if_its_snapshots_are_expired(tmp_path: Path) -> None:
    table, config = land_twice(tmp_path)
    ours = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    add_snapshot(table)
    table.maintenance.expire_snapshots().by_ids(ours).commit()
    table = reload(config)
    assert len(table.metadata.snapshots) == 1
    position = find_position(table)
    assert position is not None
    assert position.seq == 6
    with table.transaction() as transaction:
        transaction.set_properties({"headrace.sequence": "7"})
    with pytest.raises(PositionConflict):
        find_position(reload(config))
