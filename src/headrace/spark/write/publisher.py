"""Publishes the messages of one task such that a repeated task publishes nothing twice.

Owns the two modes. Atomic: every batch ends with a progress message of the task's (query, partition), which is stored
only if its predecessor is the one that this task knows; so a batch and its record are stored together, and a second
attempt continues after the record (see `commit_log`). By ids: each message carries an id derived from its place, and
the server's duplicate window drops repetitions as long as it lasts. Invariant: a row is published by at most one of all
attempts. Must not know Spark.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerRejected
from headrace.reader.stream_admin import with_retry
from headrace.spark.write.commit_log import (
    PROGRESS_HEADER,
    WRONG_SEQUENCE,
    PartitionProgress,
    WriteTarget,
    load_committed_epoch,
    load_progress,
)
from headrace.spark.write.encode_rows import MessageColumns, RawMessage, any_has_header, find_header
from headrace.spark.write.write_batches import (
    WriteBatch,
    WriteError,
    check_size,
    gather_messages,
    make_write_batches,
)

if TYPE_CHECKING:
    from headrace.spark.write.claim_upload import ClaimUploader, UploadedClaim

__all__ = ["AtomicWriter", "IdempotentWriter", "WriteError", "WriteTarget"]

_BATCH_INCOMPLETE = 10176
_TOO_MANY_INFLIGHT = 10210
_RETRY_S = 0.05
_MSG_ID_HEADER = b"Nats-Msg-Id"


def upload_large_rows(
    batch: WriteBatch, uploader: ClaimUploader | None
) -> tuple[WriteBatch, list[UploadedClaim]]:
    """Replace large payloads of a chunk with claims. The record of the chunk stays the same."""
    if uploader is None:
        return batch, []
    column_groups, uploaded = uploader.upload(batch.column_groups, batch.rows - len(batch))
    return replace(batch, column_groups=column_groups), uploaded


@contextmanager
def undo_uploads_on_reject(uploader: ClaimUploader | None) -> Iterator[None]:
    """Remove the claims of rejected rows; if the outcome is unknown, leave them to their timers."""
    try:
        yield
    except WriteError as error:
        # If rows changed, an earlier attempt may have stored some of them with the same claims.
        if uploader is not None and not isinstance(error, RowsChanged):
            uploader.undo()
        raise


@contextmanager
def keep_uploads_on_unknown(uploader: ClaimUploader | None) -> Iterator[None]:
    """Keep the claims of messages whose replies were lost: the messages may be stored."""
    try:
        yield
    except ConnectionFailed:
        if uploader is not None:
            uploader.abandon()
        raise


class RowsChanged(WriteError):
    """A repeated task has other rows than the attempt that wrote some of them."""


class AtomicWriter:
    """Publishes exactly once, independent of a time window."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._retry_args = (target.address, target.reconnect_s)
        self._outcome_unknown = False
        self._claim_uploader = target.make_claim_uploader()
        self._progress = self._load_progress()

    def publish(self, messages: Iterable[RawMessage]) -> int:
        """Like `publish_columns`, for single messages."""
        return self.publish_columns(gather_messages(messages))

    def publish_columns(self, column_groups: Iterable[MessageColumns]) -> int:
        """Publish what earlier attempts have not; return the number of messages published now."""
        target, published, rows = self._target, 0, 0
        last_committed = with_retry(
            *self._retry_args, lambda connection: load_committed_epoch(connection, target)
        )
        if last_committed.epoch >= target.epoch or self._progress.epoch > target.epoch:
            return 0
        with undo_uploads_on_reject(self._claim_uploader):
            for batch in make_write_batches(column_groups, target.batch_messages - 1):
                rows = batch.rows
                if not self._is_recorded(batch):
                    published += self._store_batch(batch)
        if self._progress.epoch == target.epoch and self._progress.rows > rows:
            raise self._make_changed_error(f"it now has {rows} rows")
        return published

    def _load_progress(self) -> PartitionProgress:
        return with_retry(*self._retry_args, lambda connection: load_progress(connection, self._target))

    def _is_recorded(self, batch: WriteBatch) -> bool:
        """Return whether an earlier attempt stored this chunk; raise if it stored something else."""
        progress, target = self._progress, self._target
        if progress.epoch > target.epoch:
            return True
        if progress.epoch != target.epoch or batch.rows > progress.rows:
            if progress.epoch == target.epoch and batch.rows - len(batch) < progress.rows:
                raise self._make_changed_error("its rows are split differently")
            return False
        if batch.rows == progress.rows and batch.crc != progress.crc:
            raise self._make_changed_error("its rows or their order differ")
        return True

    def _make_changed_error(self, difference: str) -> RowsChanged:
        target = self._target
        return RowsChanged(
            f"partition {target.partition} of epoch {target.epoch} has changed since {self._progress.rows} of its rows "
            f"were written: {difference}. Exactly-once writes need a query that returns the same rows when it is repeated: "
            "sort or repartition by a key before the sink, and keep the number of partitions"
        )

    def _store_batch(self, batch: WriteBatch) -> int:
        """Store a chunk with its record; return the number of messages, 0 if another attempt was faster."""
        while True:
            rejection = self._try_send(batch)
            if rejection is None:
                return len(batch)
            time.sleep(_RETRY_S)
            previous, self._progress = self._progress, self._load_progress()
            if self._is_recorded(batch):
                if self._claim_uploader is not None:
                    self._claim_uploader.abandon()
                return 0
            if self._progress == previous and rejection.code in WRONG_SEQUENCE:
                raise WriteError(self._explain_rejection(rejection))

    def _try_send(self, batch: WriteBatch) -> _PublishRejected | None:
        """Send a chunk.

        Returns None if it is stored, otherwise a rejection that may be resolved by reading the record again.
        """
        try:
            with_retry(*self._retry_args, lambda connection: self._send(connection, batch))
        except _PublishRejected as rejection:
            if rejection.code not in (_TOO_MANY_INFLIGHT, *WRONG_SEQUENCE):
                raise WriteError(self._explain_rejection(rejection)) from rejection
            return rejection
        return None

    def _explain_rejection(self, rejection: _PublishRejected) -> str:
        text = f"stream {self._target.stream!r} rejected a batch: {rejection}"
        if rejection.code == _BATCH_INCOMPLETE:
            text += "; check that the stream has every subject that is written"
        return text

    def _send(self, connection: BlockingConnection, batch: WriteBatch) -> None:
        if self._outcome_unknown:
            # The connection broke during a batch: check whether it was stored.
            self._progress, self._outcome_unknown = load_progress(connection, self._target), False
            if self._is_recorded(batch):
                return
        sent, uploaded = upload_large_rows(batch, self._claim_uploader)
        check_size(sent, _get_max_payload(connection))
        reply = connection.new_inbox()
        self._outcome_unknown = True
        with keep_uploads_on_unknown(self._claim_uploader):
            connection.send(self._encode_batch(sent, reply))
            ack = json.loads(connection.receive_reply(reply, self._target.progress_subject).payload)
        self._outcome_unknown = False
        if "error" in ack:
            raise _PublishRejected(ack["error"])
        self._progress = PartitionProgress(
            ack["seq"], self._target.epoch, batch.rows, batch.crc, self._target.owner
        )
        if self._claim_uploader is not None:
            # The messages of a batch have consecutive sequences, and the record is the last of them.
            first = ack["seq"] - len(batch)
            self._claim_uploader.confirm((each, self._target.stream, first + each.row) for each in uploaded)

    def _encode_batch(self, batch: WriteBatch, reply: bytes) -> bytearray:
        target = self._target
        name = base64.b32encode(os.urandom(10)).rstrip(b"=")
        header_prefix = b"Nats-Batch-Id: %s\r\nNats-Batch-Sequence: " % name
        out = batch.encode(b"", header_prefix, 1)
        payload = PartitionProgress(0, target.epoch, batch.rows, batch.crc, target.owner).encode()
        header = (
            b"NATS/1.0\r\n%sNats-Expected-Last-Subject-Sequence: %d\r\n%s%d\r\n"
            b"Nats-Batch-Commit: 1\r\n\r\n"
            % (PROGRESS_HEADER, self._progress.seq, header_prefix, len(batch) + 1)
        )
        size = len(header)
        line = (target.progress_subject.encode(), reply, size, size + len(payload), header, payload)
        out += b"HPUB %s %s %d %d\r\n%s%s\r\n" % line
        return out


def _get_max_payload(connection: BlockingConnection) -> int:
    return int(connection.server_info.get("max_payload", 1 << 20))


class _PublishRejected(Exception):
    """The server rejected a publish."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description')} [{error.get('err_code')}]")
        self.code = int(error.get("err_code", 0))


def _has_same_payload(stored: bytes, sent: bytes) -> bool:
    """Return whether two messages have the same payload.

    A claim's id is derived from it, the rest of a reference is not.
    """
    if stored == sent:
        return True
    try:
        return bool(json.loads(stored)["claim_id"] == json.loads(sent)["claim_id"])
    except (ValueError, TypeError, KeyError):
        return False


class IdempotentWriter:
    """Publishes once within the stream's duplicate window; for streams without atomic batches."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._id_prefix = f"{target.task_id}:"
        self._claim_uploader = target.make_claim_uploader()

    def publish(self, messages: Iterable[RawMessage]) -> int:
        """Like `publish_columns`, for single messages."""
        return self.publish_columns(gather_messages(messages))

    def publish_columns(self, column_groups: Iterable[MessageColumns]) -> int:
        """Publish everything; the server drops what it has already. Return the number of new messages."""
        target, new = self._target, 0
        with undo_uploads_on_reject(self._claim_uploader):
            for batch in make_write_batches(column_groups, target.batch_messages):
                new += with_retry(target.address, target.reconnect_s, partial(self._send, batch))
        return new

    def _send(self, batch: WriteBatch, connection: BlockingConnection) -> int:
        batch, uploaded = upload_large_rows(batch, self._claim_uploader)
        check_size(batch, _get_max_payload(connection))
        reply = connection.new_inbox()
        first = batch.rows - len(batch)
        header_prefix = b"Nats-Msg-Id: %s" % self._id_prefix.encode()
        if any(any_has_header(each, _MSG_ID_HEADER) for each in batch.column_groups):
            batch, header_prefix = self._add_msg_ids(batch, first), b""
        # Errors may overtake acks, so messages with claims have inboxes of their own.
        own_inboxes = {each.row: connection.new_inbox() for each in uploaded}
        with keep_uploads_on_unknown(self._claim_uploader):
            connection.send(batch.encode(reply, header_prefix, first, own_inboxes))
            acks = self._receive_acks(connection, {reply, *own_inboxes.values()}, len(batch))
        if self._claim_uploader is not None:
            results = dict(acks)
            stored_claims = [(each, results[own_inboxes[each.row]]) for each in uploaded]
            self._claim_uploader.confirm(
                (each, at["stream"], at["seq"]) for each, at in stored_claims if "seq" in at
            )
        for _, ack in acks:
            self._check_ack(ack)
        duplicate_seq = max((ack["seq"] for _, ack in acks if ack.get("duplicate")), default=0)
        if duplicate_seq:
            self._check_same_row(connection, batch, duplicate_seq)
        return sum(not ack.get("duplicate", False) for _, ack in acks)

    def _check_same_row(self, connection: BlockingConnection, batch: WriteBatch, seq: int) -> None:
        """Check that the message stored with a row's id is that row: a different row would be dropped and lost.

        One row per chunk is checked: rows that move to other partitions or change their order move together.
        """
        target = self._target
        try:
            found = connection.request(
                f"{target.api_prefix}.STREAM.MSG.GET.{target.stream}", {"seq": seq}
            ).payload
        except ServerRejected:
            return  # a user who may only publish cannot compare
        message = json.loads(found).get("message", {})
        header_lines, stored = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        name, _, row_text = (find_header(header_lines, _MSG_ID_HEADER) or b"").rpartition(b":")
        is_ours = name == target.task_id.encode() and row_text.isdigit()
        row = int(row_text) - (batch.rows - len(batch)) if is_ours else -1
        if 0 <= row < len(batch) and not _has_same_payload(stored, batch.get_payload(row)):
            raise RowsChanged(
                f"row {int(row_text)} of partition {target.partition} of epoch {target.epoch} has changed since it was "
                f"written as message {seq}. Exactly-once writes need a query that returns the same rows in the same "
                "partitions when it is repeated, or a column `msg_id` with ids that do not depend on that"
            )

    def _add_msg_ids(self, batch: WriteBatch, first: int) -> WriteBatch:
        """Return the same messages, each with an id: its own, or one derived from its place."""
        name, with_ids = self._id_prefix.encode(), []
        for each in batch.column_groups:
            header_lines = [b""] * len(each) if each.header_lines is None else each.header_lines.to_pylist()
            results = [
                line
                if find_header(line, _MSG_ID_HEADER) is not None
                else b"%sNats-Msg-Id: %s%d\r\n" % (line, name, row)
                for row, line in enumerate(header_lines, first)
            ]
            with_ids.append(replace(each, header_lines=pa.array(results, pa.binary())))
            first += len(each)
        return replace(batch, column_groups=with_ids)

    def _receive_acks(
        self, connection: BlockingConnection, inboxes: set[bytes], count: int
    ) -> list[tuple[bytes, dict[str, Any]]]:
        """Return all replies with the inbox that each was sent to."""
        found = []
        for message in connection.iter_messages(
            connection.address.timeout_s, f"messages for stream {self._target.stream!r}"
        ):
            if message.subject in inboxes:
                no_responders = message.header[:12] == b"NATS/1.0 503"
                found.append((message.subject, {} if no_responders else json.loads(message.payload)))
                if len(found) == count:
                    return found
        raise ConnectionFailed("acknowledgements are missing")

    def _check_ack(self, ack: dict[str, Any]) -> None:
        stream = self._target.stream
        if not ack:
            raise WriteError(f"stream {stream!r} does not have a subject that was written")
        if "error" in ack:
            raise WriteError(f"stream {stream!r} rejected a message: {_PublishRejected(ack['error'])}")
        if ack.get("stream") != stream:
            raise WriteError(
                f"stream {stream!r} does not have a subject that was written: {ack.get('stream')!r} stored the message "
                "instead. Add the subject to the stream, or filter such rows out"
            )
