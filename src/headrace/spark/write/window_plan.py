"""Divides the staged rows that count into windows, from a position on.

Owns the order of rows: by partition, block and row. Invariant: the number of a row does not depend on how windows are
divided, so a later version may divide them differently. Must not know how windows are published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.spark.write.progress_log import EpochRecord, Position
from headrace.spark.write.row_blocks import RowBlock, decode_block
from headrace.spark.write.staging_area import StagingArea
from headrace.spark.write.stored_rows import StoredRows
from headrace.spark.write.window_sender import Window
from headrace.spark.write.write_batches import make_write_batches


@dataclass(frozen=True)
class PlannedBlock:
    """A staged block: its number in the commit, its partition, and the first row to publish."""

    number: int
    partition: int
    rows: RowBlock
    start: int

    def iter_windows(self, stored: StoredRows, size: int) -> Iterator[Window]:
        """Yield windows of the rows that are not stored."""
        for start, stop in stored.iter_missing(self.number, self.start, len(self.rows)):
            for batch in make_write_batches([self.rows.columns.slice(start, stop)], size):
                row = start + batch.first
                needs_seqs = any(row <= each < row + len(batch) for each in self.rows.claims)
                yield Window(batch.columns, self.number, row, needs_seqs, self.number in stored.single_blocks)


def iter_blocks(staging: StagingArea, record: EpochRecord, position: Position) -> Iterator[PlannedBlock]:
    """Yield the blocks of a commit from a position on."""
    number = 0
    for attempt in record.attempts:
        skipped = min(max(position.block - number, 0), attempt.block_count)
        for index, data in enumerate(staging.read_blocks(attempt, skipped), number + skipped):
            start = position.row if index == position.block else 0
            yield PlannedBlock(index, attempt.partition, decode_block(data), start)
        number += attempt.block_count
