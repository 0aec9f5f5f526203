"""Writes one stream to its table: reads what is new, writes data files, commits them with their position.

Owns the order of these steps. Invariants: each commit continues exactly where the position of the snapshot that it was
planned on ends, so that every message that is live when it is read is in the table once, whatever is killed and when; a
second worker on the same table costs time, never rows. Blocks; runs on a thread of its own. See ADR 94.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from headrace.errors import StreamGap
from headrace.tables.catalog import evolve_table, load_table, open_catalog
from headrace.tables.commits import CommitOutcome, Committer, TableCommit
from headrace.tables.config import TableConfig
from headrace.tables.data_files import DataFileWriter
from headrace.tables.gap_finder import count_sequences
from headrace.tables.maintenance import expire_if_due
from headrace.tables.orphan_files import ORPHAN_AGE_S
from headrace.tables.position import LastMessage, TablePosition, find_position
from headrace.tables.stream_range import NextRange, StreamRangeReader


@dataclass
class LandingStats:
    """What a worker has done since it started."""

    rows: int = 0
    bytes: int = 0
    commits: int = 0
    retries: int = 0
    gap_messages: int = 0
    commit_s: float = 0.0
    #: Last sequence in the table and in the stream, when they were last seen.
    seq: int = 0
    stream_seq: int = 0
    #: Up to which sequence the stream was read, when nothing is after the table's position.
    read_seq: int = 0
    #: When the table last had everything that the stream had.
    caught_up_s: float = field(default_factory=time.time)

    @property
    def lag_messages(self) -> int:
        return max(self.stream_seq - max(self.seq, self.read_seq), 0)

    @property
    def age_s(self) -> float:
        """Time since the table last had everything; up to the commit interval if nothing fails."""
        return max(time.time() - self.caught_up_s, 0.0)


class TableWorker:
    """Writes one stream to its table."""

    def __init__(
        self,
        name: str,
        config: TableConfig,
        connection: Mapping[str, str],
        *,
        accept_new_stream: bool = False,
        stop: threading.Event | None = None,
        stats: LandingStats | None = None,
    ) -> None:
        self.name = name
        self.config = config
        #: Those of an earlier worker of the table continue.
        self.stats = stats or LandingStats()
        self._stop = stop or threading.Event()
        #: Until the table continues with a stream.
        self.accepts_new_stream = accept_new_stream
        #: A position, and up to which sequence the stream was read after it and had no messages.
        self._read_to: tuple[TablePosition | None, int] = (None, 0)
        self._reader = StreamRangeReader(config, connection, name)
        self._catalog: Catalog | None = None
        self._committer = Committer(self._load_table, self._stop.wait, config)

    def land(self) -> LandingStats:
        """Write everything that the stream has now."""
        while not self._stop.is_set():
            table = self._load_table()
            position = find_position(table)
            try:
                if self._land_next(table, position):
                    break
            except StreamGap:
                if not self._is_overtaken(position):
                    raise
        if not self._stop.is_set():
            self.stats.caught_up_s = time.time()
        return self.stats

    def _land_next(self, table: Table, position: TablePosition | None) -> bool:
        """Write what the stream has after a position; return whether all of it is written."""
        reached = self._read_to[1] if self._read_to[0] == position else 0
        planned = self._reader.plan(position, self.accepts_new_stream, reached)
        if planned.continues(position):
            self.accepts_new_stream = False
            # A worker that was killed may not have acknowledged what it committed.
            self._reader.on_committed(position)
        self.stats.seq = position.seq if position else 0
        self.stats.stream_seq, self.stats.read_seq = planned.info.next_seq - 1, reached
        return planned.is_empty or self._land_range(table, position, planned)

    def _is_overtaken(self, position: TablePosition | None) -> bool:
        """Return whether the table has another position now.

        A second worker may have written what the stream no longer has; a work queue then removes it at once.
        """
        return find_position(self._load_table()) != position

    def check(self) -> None:
        """Raise the error for which the table stops, if there is still one; write nothing."""
        position = find_position(self._load_table())
        try:
            self._reader.plan(position, self.accepts_new_stream)
        except StreamGap:
            if not self._is_overtaken(position):
                raise

    def expire_snapshots(self) -> int:
        """Expire old snapshots if that is worth a commit; return how many."""
        return expire_if_due(self._load_table(), self.config)

    def close(self) -> None:
        self._reader.close()

    def _land_range(self, table: Table, position: TablePosition | None, planned: NextRange) -> bool:
        """Write a range in one or more commits; return whether all of it is written."""
        batches = self._reader.read(planned)
        gaps = [planned.gap] if planned.gap[0] else []
        try:
            while not self._stop.is_set():
                commit_id, started_s = uuid.uuid4().hex, time.time()
                writer = DataFileWriter(table, self.config, commit_id)
                last, is_end = self._fill(writer, batches)
                end_seq = last.seq if last else 0
                if is_end:
                    end_seq = max(end_seq, self._reader.find_end(planned) - 1)
                gaps += self._reader.take_gaps()
                if not (last or gaps or (is_end and planned.is_passed)):
                    self._on_nothing(position, end_seq)
                    return True
                after = self._make_position(planned, position, end_seq, commit_id, last)
                commit = TableCommit(writer.finish(), position, after, gaps, started_s=started_s)
                if self._commit(table, commit) is CommitOutcome.OUTDATED:
                    return False
                self._on_committed(writer, commit)
                position, gaps, table = after, [], self._load_table()
                if find_position(table) != position:
                    return False
                if is_end:
                    return True
            return True
        finally:
            # Releases the pin of the range.
            batches.close()  # type: ignore[attr-defined]

    def _make_position(
        self,
        planned: NextRange,
        before: TablePosition | None,
        seq: int,
        commit_id: str,
        last: LastMessage | None,
    ) -> TablePosition:
        if last is None and before is not None and planned.continues(before):
            last = before.last_message
        return TablePosition(seq, planned.info.name, planned.info.identity, commit_id, last)

    def _fill(
        self, writer: DataFileWriter, batches: Iterator[pa.RecordBatch]
    ) -> tuple[LastMessage | None, bool]:
        """Add rows up to the size or time of a commit; return the last one, and whether there are no more."""
        last = None
        deadline_s = time.monotonic() + self.config.commit_interval_s
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                writer.add(batch)
                last = batch
                is_due = time.monotonic() >= deadline_s or self._stop.is_set()
                if writer.bytes >= self.config.commit_bytes_max or is_due:
                    return _find_last_message(last), False
        except BaseException:
            writer.abandon()
            raise
        return _find_last_message(last) if last is not None else None, True

    def _on_nothing(self, position: TablePosition | None, end_seq: int) -> None:
        """Remember that there was nothing to write: the position is written with the next rows."""
        self._read_to = (position, end_seq)
        self.stats.read_seq = end_seq

    def _commit(self, table: Table, commit: TableCommit) -> CommitOutcome:
        started_s, retries = time.monotonic(), self._committer.retries
        if commit.is_older_than(ORPHAN_AGE_S / 2):
            # Another worker may take these files for orphans soon.
            return CommitOutcome.OUTDATED
        try:
            return self._committer.commit(table, commit)
        finally:
            self.stats.commit_s = time.monotonic() - started_s
            self.stats.retries += self._committer.retries - retries

    def _on_committed(self, writer: DataFileWriter, commit: TableCommit) -> None:
        self.accepts_new_stream = False
        stats = self.stats
        stats.rows += writer.rows
        stats.bytes += sum(each.file_size_in_bytes for each in commit.files)
        stats.commits += 1
        # What was replaced in a bucket is no loss.
        stats.gap_messages += 0 if self.config.bucket else count_sequences(commit.gaps)
        stats.seq = commit.after.seq
        self._reader.on_committed(commit.after)

    def _load_table(self) -> Table:
        if self._catalog is None:
            catalog = open_catalog(self.config)
            evolve_table(catalog, self.config)
            self._catalog = catalog
        return load_table(self._catalog, self.config)


def _find_last_message(batch: pa.RecordBatch) -> LastMessage:
    time_us = batch.column("time")[-1].cast(pa.timestamp("us", tz="UTC")).value
    return LastMessage(batch.column("seq")[-1].as_py(), time_us)
