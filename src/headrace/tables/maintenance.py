"""Maintains a table: expires its snapshots, and removes its orphan files, when that is due.

Owns when that is, and which snapshots stay: the newest one with a position, the current one and those between them, those
with a tag or a branch, and as many of the others as the configuration wants. When orphan files were last searched for is a
property of the table, so that short runs maintain it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from headrace.tables.catalog import load_table, open_catalog
from headrace.tables.commits import SingleAttempt
from headrace.tables.config import TableConfig
from headrace.tables.orphan_files import IsStopped, never_stopped, remove_orphans
from headrace.tables.position import CREATED_MS, parse_position

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

#: Property: when orphan files were last searched for, in milliseconds.
MAINTAINED_MS = "headrace.maintained-ms"
ORPHAN_INTERVAL_S = 24 * 3600.0
#: Expiry is a commit of its own: it waits until there are so many old snapshots, or one is older by so much.
EXPIRED_MIN, EXPIRED_AGE_S = 50, 3600.0
#: How often the property is written while workers commit.
_MARKS_MAX = 5


@dataclass
class MaintenanceReport:
    """What was removed, or would be in a dry run."""

    expired_snapshots: int = 0
    orphan_files: int = 0
    orphan_bytes: int = 0


def maintain_table(config: TableConfig, *, dry_run: bool = False) -> MaintenanceReport:
    """Expire old snapshots and delete orphan files now, as far as the table's configuration allows."""
    catalog = open_catalog(config)
    table = load_table(catalog, config)
    expired = find_expired(table, config)
    if expired and not dry_run:
        _expire(table, expired)
    report = MaintenanceReport(len(expired))
    if config.remove_orphans:
        orphans = _remove_orphans(lambda: load_table(catalog, config), dry_run=dry_run)
        report.orphan_files, report.orphan_bytes = len(orphans), sum(orphans.values())
    return report


def expire_if_due(table: Table, config: TableConfig) -> int:
    """Expire old snapshots if that is worth a commit; return how many. Raises if another commit is faster."""
    expired = find_expired(table, config)
    latest_ms = (time.time() - (config.snapshot_expiry_s or 0) - EXPIRED_AGE_S) * 1000
    if len(expired) < EXPIRED_MIN and not any(snapshot.timestamp_ms < latest_ms for snapshot in expired):
        return 0
    _expire(table, expired)
    return len(expired)


def remove_orphans_if_due(
    config: TableConfig, is_stopped: IsStopped = never_stopped
) -> MaintenanceReport | None:
    """Delete orphan files if that was not done for a day; None if it is not due.

    It has a connection to the catalog of its own, so that a worker can commit meanwhile.
    """
    if not config.remove_orphans:
        return None
    catalog = open_catalog(config)
    properties = load_table(catalog, config).properties
    last_ms = properties.get(MAINTAINED_MS) or properties.get(CREATED_MS)
    if last_ms is None or time.time() - int(last_ms) / 1000 < ORPHAN_INTERVAL_S:
        return None
    orphans = _remove_orphans(lambda: load_table(catalog, config), is_stopped=is_stopped)
    return MaintenanceReport(0, len(orphans), sum(orphans.values()))


def _remove_orphans(
    load: Callable[[], Table], *, dry_run: bool = False, is_stopped: IsStopped = never_stopped
) -> dict[str, int]:
    """Delete orphan files, and record that, even if the table cannot be cleaned up."""
    try:
        return remove_orphans(load, dry_run=dry_run, is_stopped=is_stopped)
    finally:
        if not (dry_run or is_stopped()):
            _mark_maintained(load)


def _mark_maintained(load: Callable[[], Table]) -> None:
    from pyiceberg.exceptions import CommitFailedException

    for attempt in range(_MARKS_MAX):
        transaction = SingleAttempt(load())
        transaction.set_properties({MAINTAINED_MS: str(time.time_ns() // 1_000_000)})
        try:
            transaction.commit_transaction()
            return
        except CommitFailedException:
            if attempt == _MARKS_MAX - 1:
                raise


def find_expired(table: Table, config: TableConfig) -> list[Snapshot]:
    """Return the snapshots that are too old, or too many; the oldest first."""
    expiry_s = config.snapshot_expiry_s
    if expiry_s is None:
        return []
    oldest_ms = (time.time() - expiry_s) * 1000
    snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    excess = len(snapshots) - config.snapshots_max
    needed = {snapshot.snapshot_id for snapshot in _find_needed(table)}
    needed |= {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [
        snapshot
        for number, snapshot in enumerate(snapshots)
        if (number < excess or snapshot.timestamp_ms < oldest_ms) and snapshot.snapshot_id not in needed
    ]


def _expire(table: Table, expired: list[Snapshot]) -> None:
    """Remove snapshots from a table; their files become orphans.

    pyiceberg's `expire_snapshots` copies all metadata for each snapshot that it is given; the update does not.
    """
    current = table.current_snapshot()
    transaction = SingleAttempt(table)
    # A rollback to one of these snapshots must not come between.
    guard = {"ref": "main", "snapshot-id": current.snapshot_id if current else None}
    transaction.require(AssertRefSnapshotId.model_validate(guard))
    ids = [snapshot.snapshot_id for snapshot in expired]
    transaction.update(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}))
    transaction.commit_transaction()


def _find_needed(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and its ancestors down to the newest one with a position."""
    from pyiceberg.table.snapshots import ancestors_of

    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        yield snapshot
        if snapshot.summary and parse_position(snapshot.summary.additional_properties):
            return
