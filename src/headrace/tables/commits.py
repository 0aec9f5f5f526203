"""Commits data files together with the position that they reach: once, whatever happens.

Owns the commit and what follows a failed one. Invariants: rows and position are one commit of the catalog, and it asserts
the snapshot that it was planned on; nothing retries it blindly, and no file is ever deleted. After an error, which may
hide a commit that happened, the table is loaded again: the commit is repeated only if the position has not changed, and
even a first attempt that arrives late can then no longer succeed beside the second. See ADR 94.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AssertTableUUID, TableRequirement, TableUpdate

from headrace.errors import TableError
from headrace.tables.config import TableConfig
from headrace.tables.gap_finder import Gap, format_gaps
from headrace.tables.position import GAP, TablePosition, find_position
from headrace.tables.redaction import describe_error

_log = logging.getLogger("headrace.tables")
ATTEMPTS_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 10.0
#: Waits for some seconds; returns True if the wait was ended early, to stop.
Wait = Callable[[float], bool]


class CommitOutcome(Enum):
    """What became of a commit."""

    COMMITTED = "committed"
    #: Another worker moved the position, or the table's schema changed: the rows have to be read again.
    OUTDATED = "outdated"


@dataclass(frozen=True)
class TableCommit:
    """Rows in data files, and the positions before and after them."""

    files: Sequence[DataFile]
    before: TablePosition | None
    after: TablePosition
    #: Sequences that were removed before they were read: first and last of each gap.
    gaps: Sequence[Gap] = ()
    more_properties: dict[str, str] = field(default_factory=dict)
    #: When the first file was begun.
    started_s: float = field(default_factory=time.time)

    def is_older_than(self, age_s: float) -> bool:
        return time.time() - self.started_s > age_s

    def to_summary(self) -> dict[str, str]:
        summary = {**self.after.to_properties(), **self.more_properties}
        if self.gaps:
            summary[GAP] = format_gaps(self.gaps)
        return summary


class SingleAttempt(Transaction):
    """A transaction that is sent to the catalog once.

    pyiceberg's own retries after a conflict, and deletes the manifests of a commit that the catalog refused; but a
    catalog that answers a repeated request may refuse what it has committed before.
    """

    def require(self, requirement: TableRequirement) -> None:
        """Let the catalog assert one more thing."""
        self._requirements = (*self._requirements, requirement)

    def update(self, update: TableUpdate) -> None:
        """Let the catalog apply one more change."""
        self._updates = (*self._updates, update)

    def commit_transaction(self) -> Table:
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table.catalog.commit_table(self._table, requirements, self._updates)
        return self._table


def send_commit(table: Table, commit: TableCommit) -> None:
    """Send the commit, planned on the current snapshot of `table`. Any error leaves open whether it happened."""
    transaction = SingleAttempt(table)
    with transaction.update_snapshot(snapshot_properties=commit.to_summary()).merge_append() as append:
        for data_file in commit.files:
            append.append_data_file(data_file)
    transaction.set_properties(commit.after.to_properties())
    transaction.commit_transaction()


class Committer:
    """Commits until it is known what became of it."""

    def __init__(self, reload: Callable[[], Table], wait: Wait, config: TableConfig) -> None:
        self._reload = reload
        self._wait = wait
        self._config = config
        self.retries = 0

    def commit(self, table: Table, commit: TableCommit) -> CommitOutcome:
        """Commit on the snapshot of `table`; raise TableError if that fails for long."""
        pause_s = PAUSE_S
        planned = table
        for _ in range(ATTEMPTS_MAX):
            try:
                send_commit(table, commit)
                return CommitOutcome.COMMITTED
            except Exception as error:
                last_error = error
                _log.warning("commit to %s: %s", commit.after.stream, describe_error(error, self._config))
            self.retries += 1
            table = self._reload_with_retry(last_error)
            position = find_position(table)
            if position == commit.after:
                return CommitOutcome.COMMITTED
            if position != commit.before or not _fits(planned, table):
                return CommitOutcome.OUTDATED
            if self._wait(pause_s):
                break
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
        raise TableError(
            f"table {'.'.join(table.name())} cannot be committed to: {last_error}"
        ) from last_error

    def _reload_with_retry(self, cause: Exception) -> Table:
        """Load the table; retry while the catalog does not answer."""
        pause_s = PAUSE_S
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._reload()
            except TableError:
                raise
            except Exception as error:
                cause = error
            if self._wait(pause_s):
                break
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
        raise TableError(
            f"the catalog does not answer, and the outcome of a commit is unknown: {cause}"
        ) from cause


def _fits(planned: Table, now: Table) -> bool:
    """Return whether files that were written for one state of the table can be committed to another."""
    return (
        planned.metadata.table_uuid == now.metadata.table_uuid
        and planned.metadata.current_schema_id == now.metadata.current_schema_id
        and planned.metadata.default_spec_id == now.metadata.default_spec_id
    )
