"""Commits an epoch on the driver, and publishes the rows that count.

Owns the steps of a commit and their order (ADR 59). Invariants: the epoch record decides which attempts count; a row is
sent only if it is not in the target, or the target no longer shows it; after any failure `commit` may be called again,
in this process or another. Must not know Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import HeadraceError
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ConnectionFailed,
    connection_for,
    drop_connection,
)
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.stream_admin import mark_reachable, with_retry
from headrace.spark.write.legacy_progress import load_legacy_epoch
from headrace.spark.write.position_keeper import PositionKeeper
from headrace.spark.write.progress_log import (
    COMMITTED,
    DONE,
    LOST,
    EpochRecord,
    Position,
    ProgressLog,
    StagedAttempt,
    make_id,
)
from headrace.spark.write.published_rows import count_published_rows, stage_remaining_rows
from headrace.spark.write.staging import open_staging
from headrace.spark.write.staging_area import StagedRowsLost
from headrace.spark.write.stored_rows import StoredRows, find_stored_rows, make_options
from headrace.spark.write.window_plan import iter_blocks
from headrace.spark.write.window_results import ResultHandler
from headrace.spark.write.window_sender import WindowSender
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget

_log = logging.getLogger("headrace.spark")
_RETRY_S = 0.2


class EpochPublisher:
    """Commits one epoch of a query."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._staging = open_staging(target)
        # A connection of its own: records are stored while replies to rows are on their way.
        self._progress_address = replace(target.address, name="headrace-progress")
        self._driver = make_id()
        self._has_skipped = False
        self._rows = -1
        self._deadline = 0.0
        mark_reachable(target.address)

    def commit(
        self, attempts: Sequence[StagedAttempt], *, has_skipped: bool = False, rows: int | None = None
    ) -> None:
        """Decide that these attempts count, unless it is decided already, and publish the rows that count.

        `has_skipped` says that a task staged nothing because it found the epoch decided. `rows` is the number of rows,
        including refused ones.
        """
        self._has_skipped = has_skipped
        self._rows = sum(each.rows for each in attempts) if rows is None else rows
        self._extend_deadline()
        while True:
            try:
                if self._commit_on(connection_for(self._target.address), attempts):
                    return
            except ConnectionFailed:
                drop_connection(self._target.address)
                drop_connection(self._progress_address)
                if time.monotonic() >= self._deadline:
                    raise
                time.sleep(_RETRY_S)

    def check_rows(self, rows: int) -> None:
        """Raise WriteError if a write that was completed before had another number of rows."""
        target = self._target
        record = with_retry(
            target.address,
            target.reconnect_s,
            lambda connection: ProgressLog(target, connection).load_epoch(),
        )
        if record.rows not in (-1, rows):
            raise WriteError(
                f"writeId {target.query!r} was completed with {record.rows} rows, and this write has {rows}: nothing was "
                "written. Use another `writeId` for other rows"
            )

    def discard(self) -> None:
        """Remove what was staged: the write has failed, and nobody will repeat it."""
        self._staging.clean(self._target.epoch)

    def _extend_deadline(self) -> None:
        self._deadline = time.monotonic() + self._target.reconnect_s

    def _commit_on(self, connection: BlockingConnection, attempts: Sequence[StagedAttempt]) -> bool:
        """Do the next step; return whether nothing is left to do."""
        log = ProgressLog(self._target, connection_for(self._progress_address))
        record = log.load_epoch()
        if record.is_done(self._target.epoch):
            # A driver that was away may be late: the rows of an epoch that another one has not finished are needed.
            self._clean(record.epoch if record.state == DONE else record.epoch - 1)
            return True
        if record.state == COMMITTED:
            # Spark repeats an epoch until its commit returns, so an earlier epoch is never left like this by Spark.
            self._finish(connection, log, record)
        else:
            self._decide(connection, log, record, attempts)
        return False

    def _decide(
        self,
        connection: BlockingConnection,
        log: ProgressLog,
        previous: EpochRecord,
        attempts: Sequence[StagedAttempt],
    ) -> None:
        """Store the epoch record, if no other driver has stored one since `previous`."""
        target = self._target
        state, rows = COMMITTED, self._rows if target.is_staged else -1
        if previous.epoch < 0 and target.legacy_prefix and load_legacy_epoch(target) >= target.epoch:
            state, attempts, rows = DONE, (), -1
        elif self._has_skipped:
            raise WriteError(
                f"epoch {target.epoch} of {target.query} was committed when its tasks began, and is not any more: its "
                "staged rows or its record were lost meanwhile. Start the query again: it repeats the epoch"
            )
        elif published := count_published_rows(connection, target, previous):
            attempts = stage_remaining_rows(self._staging, target, attempts, published)
        was_lost = previous.epoch == target.epoch and previous.state == LOST
        last = LeaderReader(make_options(target), connection).last_seq()
        log.store_epoch(
            EpochRecord(
                target.epoch,
                state if attempts else DONE,
                make_id(),
                target.owner,
                last,
                attempts,
                rows,
                previous.lost_ids if was_lost else (),
                previous.lost_seq if was_lost else 0,
                previous.seq,
            )
        )

    def _finish(self, connection: BlockingConnection, log: ProgressLog, record: EpochRecord) -> None:
        """Publish what is missing of a committed epoch, and record that it is done."""
        target = replace(self._target, epoch=record.epoch)
        try:
            self._publish(connection, log, record, target)
        except StagedRowsLost as error:
            lost_ids = [*record.lost_ids, record.commit_id]
            lost_seq = record.lost_seq if record.lost_ids else record.target_seq
            log.store_epoch(replace(record, state=LOST, attempts=(), lost_ids=lost_ids, lost_seq=lost_seq))
            raise WriteError(
                f"epoch {record.epoch} of {target.query} was committed, but not all of its rows are published: {error}. "
                "Start the query again: it repeats the epoch and writes the rows that are missing"
            ) from error
        log.store_epoch(replace(record, state=DONE, attempts=(), lost_ids=(), lost_seq=0))

    def _clean(self, epoch: int) -> None:
        """Remove what was staged up to an epoch that is done, also by a driver that died before it could."""
        if not self._target.is_staged:
            return
        try:
            self._staging.clean(epoch)
        except (HeadraceError, OSError) as error:
            _log.warning(
                "the staged rows of epoch %d of %s expire later: %s", epoch, self._target.query, error
            )

    def _publish(
        self, connection: BlockingConnection, log: ProgressLog, record: EpochRecord, target: WriteTarget
    ) -> None:
        known = log.load_position()
        if known.commit_id != record.commit_id:
            known = Position(record.commit_id, target_seq=record.target_seq, seq=known.seq)
        # From now on another driver that publishes this epoch stops at its next position.
        keeper = PositionKeeper(log, target, replace(known, driver=self._driver), self._extend_deadline)
        stored = self._find_stored(connection, record, known, target)
        if known.driver or stored:
            keeper.continue_after(stored)
        sender = WindowSender(connection, target, record.commit_id)
        handler = ResultHandler(connection, target, record, keeper, sender)
        for block in iter_blocks(open_staging(target), record, known):
            handler.begin_block(block, stored)
            for window in block.iter_windows(stored, target.batch_messages):
                keeper.check_before_send()
                handler.add(sender.send(window))
        handler.drain()

    def _find_stored(
        self, connection: BlockingConnection, record: EpochRecord, known: Position, target: WriteTarget
    ) -> StoredRows:
        """Return the rows after the known position that are in the target already."""
        stored = find_stored_rows(connection, target, known)
        if not stored.is_complete and known.driver:
            _log.warning(
                "stream %s has removed messages since epoch %d of %s was interrupted; up to %s of its rows may be "
                "written again unless the duplicate window (%g s) covers the interruption",
                *(
                    target.stream,
                    record.epoch,
                    target.query,
                    target.batch_messages,
                    target.duplicate_window_s,
                ),
            )
        return stored
