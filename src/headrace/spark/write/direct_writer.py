"""Publishes the rows of one task directly to the target.

Owns the modes `ids` (each row has a unique message id, and the server's duplicate window drops repetitions, in whatever
order and division they come) and `atLeastOnce` (a repeated task publishes its rows again). Invariant: when
`publish_columns` returns, every row is stored, or refused and a dead letter. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed
from headrace.reader.stream_admin import with_retry
from headrace.spark.write.acks import AckReader, describe_error, explain_refusal
from headrace.spark.write.batch_encoding import encode_atomic_batch
from headrace.spark.write.claim_upload import UploadedClaim
from headrace.spark.write.dead_letters import DeadLetters, RefusedRow
from headrace.spark.write.encode_rows import (
    MessageColumns,
    RawMessage,
    find_row_without_header,
    has_server_header,
)
from headrace.spark.write.progress_log import make_id
from headrace.spark.write.publish_pipeline import PublishPipeline
from headrace.spark.write.staged_writer import (
    drop_invalid_subjects,
    drop_too_large,
    is_epoch_decided,
)
from headrace.spark.write.stored_rows import MSG_ID
from headrace.spark.write.target_subjects import has_foreign_subject
from headrace.spark.write.window_sender import check_foreign_subject
from headrace.spark.write.write_batches import (
    WriteBatch,
    WriteError,
    encode_messages,
    gather_messages,
    make_write_batches,
)
from headrace.spark.write.write_target import WriteTarget

#: Batches that are sent ahead of their acknowledgements.
_BATCHES_AHEAD = 2
#: Instead of the inbox of a batch that still has to be sent, row by row: another stream might store some of its rows.
_DEFERRED = b"-"


class DirectWriter:
    """One attempt of a task."""

    def __init__(self, target: WriteTarget, *, needs_ids: bool) -> None:
        self._target = target
        self._needs_ids = needs_ids
        # A batch with an id that the stream knows is refused as a whole, so rows with ids are sent one by one.
        self._is_atomic = target.is_atomic and not needs_ids
        # Sent again to find a refused row, rows without ids would be refused because of themselves.
        self._needs_care = target.refuses_full_subjects and not (self._is_atomic or needs_ids)
        self._letters = DeadLetters(target)
        self._uploader = target.make_claim_uploader()
        self._acks: AckReader | None = None
        self._connection: BlockingConnection | None = None
        self._pipeline = PublishPipeline(target.address, target.reconnect_s, self, _BATCHES_AHEAD)
        self._deferred: WriteBatch | None = None
        #: Number of messages that were new.
        self.published = 0

    def publish(self, messages: Iterable[RawMessage]) -> int:
        """Like `publish_columns`, for single messages."""
        return self.publish_columns(gather_messages(messages))

    def publish_columns(self, column_groups: Iterable[MessageColumns]) -> int:
        """Publish all rows; return how many the server did not have."""
        target = self._target
        if self._needs_ids and is_epoch_decided(target):
            return 0
        for batch in make_write_batches(column_groups, target.batch_messages):
            batch = drop_invalid_subjects(target, batch, self._letters)
            if self._needs_ids:
                self._check_ids(batch)
            if self._uploader is not None:
                self._publish_with_claims(batch)
                continue
            columns = drop_too_large(target, batch, self._letters)
            if len(columns):
                self._publish_in_order(WriteBatch(columns, batch.first))
        self._pipeline.drain()
        return self.published

    def _publish_in_order(self, batch: WriteBatch) -> None:
        """Publish a batch; one that is sent row by row waits for earlier ones and is not overtaken by later ones."""
        if self._needs_care or has_foreign_subject(batch.columns, self._target):
            self._pipeline.drain()
            self._deferred = batch
            self._pipeline.publish(batch)
            self._pipeline.drain()
        else:
            self._pipeline.publish(batch)
            if self._is_atomic and (self._target.refuses_full_subjects or has_server_header(batch.columns)):
                # A batch that is refused is sent again, row by row.
                self._pipeline.drain()

    def _check_ids(self, batch: WriteBatch) -> None:
        row = find_row_without_header(batch.columns, MSG_ID)
        if row is not None:
            raise WriteError(
                f"row {batch.first + row} of partition {self._target.partition} has no `msg_id`; exactlyOnce=ids needs "
                "a unique one in each row. Fill the column, or use exactlyOnce=staged"
            )

    def send(self, connection: BlockingConnection, item: WriteBatch) -> bytes:
        if connection is not self._connection:
            self._connection, self._acks = connection, AckReader(connection, self._target.stream)
        if item is self._deferred:
            return _DEFERRED
        inbox = connection.new_inbox()
        if self._is_atomic:
            connection.send(encode_atomic_batch(item.columns, inbox, make_id().encode()))
        else:
            connection.send(encode_messages(item.columns, inbox, b"", 0))
        return inbox

    def receive(self, connection: BlockingConnection, item: WriteBatch, inbox: bytes) -> None:
        assert self._acks is not None, "something was sent"
        if inbox == _DEFERRED:
            return self._send_one_by_one(item, [])
        if self._is_atomic:
            reply = self._acks.receive_one(inbox)
            is_stored, new = "error" not in reply and reply.get("stream") == self._target.stream, len(item)
        else:
            acks = self._acks.receive(inbox, len(item))
            is_stored, new = not acks.others, acks.stored
        if is_stored:
            self.published += new
        else:
            self._send_one_by_one(item, [])

    def _publish_with_claims(self, batch: WriteBatch) -> None:
        """Upload large payloads, and publish the batch; the sequence of each message is needed."""
        self._pipeline.drain()
        with_retry(self._target.address, self._target.reconnect_s, lambda _: self._upload_and_send(batch))

    def _upload_and_send(self, batch: WriteBatch) -> None:
        assert self._uploader is not None, "the target has claims"
        (columns,), uploaded = self._uploader.upload([batch.columns], batch.first)
        self._send_one_by_one(WriteBatch(columns, batch.first), uploaded)

    def _send_one_by_one(self, batch: WriteBatch, uploaded: list[UploadedClaim]) -> None:
        """Send each row with an inbox of its own, to know what became of it; over a connection of its own, because
        replies to other batches are on their way.
        """
        target = self._target
        connection = BlockingConnection(target.address)
        try:
            acks = AckReader(connection, target.stream)
            inboxes = [connection.new_inbox() for _ in range(len(batch))]
            out = bytearray()
            # A stream that would take a foreign row must refuse it, too.
            prefix = (
                b"" if uploaded else b"Nats-Expected-Stream: %s\r\nHeadrace-Row: " % target.stream.encode()
            )
            for row, inbox in enumerate(inboxes):
                out += encode_messages(batch.columns.slice(row, row + 1), inbox, prefix, batch.first + row)
            connection.send(out)
            replies = [acks.receive_one(inbox) for inbox in inboxes]
            refused = self._find_refused(connection, batch, replies)
        except ConnectionFailed:
            if self._uploader is not None:
                self._uploader.abandon()  # some messages may be stored
            raise
        finally:
            connection.close()
        self._settle(batch, replies, uploaded, refused)

    def _find_refused(
        self, connection: BlockingConnection, batch: WriteBatch, replies: list[dict[str, Any]]
    ) -> dict[int, str]:
        """Return the refused rows with the reasons."""
        refused = {}
        for row, reply in enumerate(replies):
            reason = explain_refusal(reply, self._target.stream)
            if reason:
                refused[row] = reason
                if not reply:
                    check_foreign_subject(connection, self._target, batch.columns.subjects[row].as_py())
        return refused

    def _settle(
        self,
        batch: WriteBatch,
        replies: list[dict[str, Any]],
        uploaded: list[UploadedClaim],
        refused: dict[int, str],
    ) -> None:
        target = self._target
        if self._uploader is not None:
            self._uploader.confirm(
                (each, target.stream, replies[each.row]["seq"])
                for each in uploaded
                if each.row not in refused and "error" not in replies[each.row]
            )
            if target.dead_letter:
                self._uploader.abandon()  # dead letters refer to them
            else:
                self._uploader.undo()
        for row, reason in refused.items():
            place = f"row {batch.first + row} of partition {target.partition}"
            self._letters.refuse(RefusedRow(place, batch.columns.get_message(row), reason))
        for row, reply in enumerate(replies):
            if "error" in reply and row not in refused:
                raise WriteError(
                    f"stream {target.stream!r} rejected a message: {describe_error(reply['error'])}"
                )
        self.published += sum("error" not in each and not each.get("duplicate") for each in replies if each)
