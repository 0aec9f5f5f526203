"""Rows of an epoch that are in the target although the epoch must be staged again.

Owns subtracting them from the newly staged rows: they are compared by content, because nothing else is the same when
Spark repeats an epoch. This is needed if staged rows were lost after some were published, and for an epoch that an
earlier version interrupted. Must not know Spark. See ADR 59.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from headrace.reader.blocking_connection import BlockingConnection
from headrace.spark.write.legacy_progress import count_legacy_rows
from headrace.spark.write.progress_log import LOST, EpochRecord, StagedAttempt, make_id
from headrace.spark.write.row_blocks import RowBlock, decode_block, encode_block
from headrace.spark.write.row_digests import digest_message, drop_counted_rows
from headrace.spark.write.staging_area import StagingArea
from headrace.spark.write.stored_rows import iter_target, parse_place
from headrace.spark.write.target_subjects import make_stored_subject
from headrace.spark.write.write_target import WriteTarget

_log = logging.getLogger("headrace.spark")


def count_published_rows(
    connection: BlockingConnection, target: WriteTarget, record: EpochRecord
) -> Counter[bytes]:
    """Return the rows of the target's epoch that are stored before it is committed: digest -> number."""
    if record.epoch < 0:
        return count_legacy_rows(connection, target)
    rows: Counter[bytes] = Counter()
    if record.epoch == target.epoch and record.state == LOST:
        expected = record.lost_seq + 1
        is_complete = True
        for message in iter_target(connection, target, record.lost_seq):
            is_complete &= message.seq == expected
            expected = message.seq + 1
            if any(parse_place(message.header, each) is not None for each in record.lost_ids):
                rows[digest_message(message.subject, message.header, message.payload)] += 1
        if not is_complete:
            _log.warning(
                "stream %s has removed messages since epoch %d of %s was interrupted; rows among them are written again",
                *(target.stream, target.epoch, target.query),
            )
    return rows


def stage_remaining_rows(
    staging: StagingArea,
    target: WriteTarget,
    attempts: Sequence[StagedAttempt],
    published: Counter[bytes],
) -> list[StagedAttempt]:
    """Stage the rows of some attempts again, without those that are published."""
    writer = staging.open_attempt(0, make_id())
    get_stored_subject = make_stored_subject(target)
    count = 0
    for attempt in attempts:
        for data in staging.read_blocks(attempt, 0):
            block = decode_block(data)
            rows = drop_counted_rows(block.columns, published, get_stored_subject)
            if rows:
                claims = {new: block.claims[row] for new, row in enumerate(rows) if row in block.claims}
                writer.add(encode_block(RowBlock(block.columns.take(rows), claims)))
                count += len(rows)
    remaining = writer.finish(count)
    return [remaining] if remaining is not None else []
