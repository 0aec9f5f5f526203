"""Writes the rows of one task attempt to the staging area.

Owns what an attempt does before the driver decides: it skips an epoch that is already decided, uploads large payloads,
sorts out rows that no server would accept, and stages the rest. Invariant: it changes nothing in the target. Must not
know Spark. See ADR 59.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
import pyarrow.compute as pc

from headrace.reader.stream_admin import with_retry
from headrace.spark.write.claim_upload import ClaimUploader
from headrace.spark.write.dead_letters import DeadLetters, RefusedRow
from headrace.spark.write.encode_rows import MessageColumns, RawMessage, get_offsets_and_bytes
from headrace.spark.write.legacy_progress import load_legacy_epoch
from headrace.spark.write.progress_log import ProgressLog, StagedAttempt, make_id
from headrace.spark.write.row_blocks import RowBlock, encode_block
from headrace.spark.write.staging import open_staging
from headrace.spark.write.write_batches import (
    HEADERS_ADDED,
    WriteBatch,
    gather_messages,
    get_message_sizes,
    make_write_batches,
)
from headrace.spark.write.write_target import WriteTarget

#: A block of staged rows has at most this number of rows, and about as many bytes of payloads.
_BLOCK_ROWS = 10_000
_BLOCK_BYTES = 384 << 10
#: A publish has to fit into a control line of 4096 bytes, with its reply subject and sizes.
_SUBJECT_BYTES_MAX = 3900
_SPACE, _DOT = b" ."
_INVALID_SUBJECT = r"^$|^\.|\.$|\.\.|[\s\x00]"


def is_epoch_decided(target: WriteTarget) -> bool:
    """Return whether the epoch was committed before, so that its rows no longer matter."""
    record = with_retry(
        target.address,
        target.reconnect_s,
        lambda connection: ProgressLog(target, connection).load_epoch(),
    )
    if record.epoch < 0 and target.legacy_prefix:
        return load_legacy_epoch(target) >= target.epoch
    return record.decides(target.epoch)


def drop_too_large(target: WriteTarget, batch: WriteBatch, letters: DeadLetters) -> MessageColumns:
    """Return the messages that fit; the others become dead letters, or an error."""
    limit = with_retry(
        target.address,
        target.reconnect_s,
        lambda connection: int(connection.server_info.get("max_payload", 1 << 20)),
    )
    limit = min(limit, target.message_bytes_max or limit)
    sizes = get_message_sizes(batch.columns) + HEADERS_ADDED
    is_large = sizes > limit
    for row in np.flatnonzero(is_large).tolist():
        reason = (
            f"with its headers it has up to {sizes[row]} bytes, and the server accepts {limit}; raise max_payload (or "
            "the stream's max_msg_size), or send the payload as a claim (option `claimConfig`)"
        )
        place = f"row {batch.first + row} of partition {target.partition}"
        letters.refuse(RefusedRow(place, batch.columns.get_message(row), reason))
    if not is_large.any():
        return batch.columns
    return batch.columns.take(np.flatnonzero(~is_large).tolist())


def drop_invalid_subjects(target: WriteTarget, batch: WriteBatch, letters: DeadLetters) -> WriteBatch:
    """Return the messages whose subjects a server accepts; the others become dead letters, or an error."""
    subjects = batch.columns.subjects
    if _are_all_valid(batch.columns):
        return batch
    is_invalid = pc.or_(
        pc.match_substring_regex(subjects, _INVALID_SUBJECT),
        pc.greater(pc.binary_length(subjects), _SUBJECT_BYTES_MAX),
    ).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(is_invalid).tolist():
        reason = "this is not a subject to publish to: it is empty or too long, or has an empty token or whitespace"
        place = f"row {batch.first + row} of partition {target.partition}"
        letters.refuse(RefusedRow(place, batch.columns.get_message(row), reason))
    if not is_invalid.any():
        return batch
    return WriteBatch(batch.columns.take(np.flatnonzero(~is_invalid).tolist()), batch.first)


def _are_all_valid(columns: MessageColumns) -> bool:
    """Return whether all subjects are valid; False if they have to be checked one by one."""
    ends, data = get_offsets_and_bytes(columns.subjects)
    used = data[ends[0] : ends[-1]]
    sizes = np.diff(ends)
    if not len(used) or sizes.min() == 0 or sizes.max() > _SUBJECT_BYTES_MAX or used.min() <= _SPACE:
        return False
    is_dot = used == _DOT
    starts = ends[:-1] - ends[0]
    # Two dots in a row may also be the end of a subject and the begin of the next, and then both are invalid.
    is_bad = is_dot[starts].any() or is_dot[starts + sizes - 1].any() or (is_dot[1:] & is_dot[:-1]).any()
    return not is_bad


class StagedWriter:
    """One attempt of a task."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._uploader: ClaimUploader | None = target.make_claim_uploader()
        self._letters = DeadLetters(target)
        #: Whether nothing was staged because the epoch was decided before.
        self.has_skipped = False
        #: Number of rows, also if they were skipped.
        self.rows = 0

    def publish(self, messages: Iterable[RawMessage]) -> StagedAttempt | None:
        """Like `publish_columns`, for single messages."""
        return self.publish_columns(gather_messages(messages))

    def publish_columns(self, column_groups: Iterable[MessageColumns]) -> StagedAttempt | None:
        """Stage all rows; return None if there are none, or if the epoch is decided already."""
        target = self._target
        if is_epoch_decided(target):
            self.has_skipped = True
            # A streaming epoch may be large; only batch writes are repeated by hand, with other rows by mistake.
            self.rows = 0 if target.is_streaming else sum(len(each) for each in column_groups)
            return None
        attempt = open_staging(target).open_attempt(target.partition, make_id())
        for batch in make_write_batches(column_groups, _BLOCK_ROWS, _BLOCK_BYTES):
            block = self._make_block(batch)
            if len(block):
                attempt.add(encode_block(block))
            self.rows += len(batch)
        # Claims of an attempt that does not count expire: another attempt may refer to the same ones.
        return attempt.finish(self.rows)

    def _make_block(self, batch: WriteBatch) -> RowBlock:
        batch = drop_invalid_subjects(self._target, batch, self._letters)
        if self._uploader is None:
            return RowBlock(drop_too_large(self._target, batch, self._letters))
        (columns,), uploaded = self._uploader.upload([batch.columns], batch.first)
        return RowBlock(columns, {each.row: asdict(each.entry) for each in uploaded})
