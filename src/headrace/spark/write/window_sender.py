"""Publishes windows of staged rows to the target.

Owns the two ways: an atomic batch, whose first row has a message id so that the server refuses it the second time, and
single messages, each with an id. Rows that make the server refuse a batch are found by sending them one by one.
Invariant: a window whose reply says stored, or duplicate, is in the target; a window without a reply is in doubt, and
`stored_rows` decides. Must not know Spark. See ADR 59.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed
from headrace.reader.stream_admin import call_leader
from headrace.spark.write.acks import (
    DUPLICATE_IN_BATCH,
    AckReader,
    describe_error,
    explain_refusal,
)
from headrace.spark.write.batch_encoding import encode_atomic_batch
from headrace.spark.write.encode_rows import MessageColumns, any_has_header, has_server_header
from headrace.spark.write.progress_log import make_id
from headrace.spark.write.stored_rows import MSG_ID, ROW_HEADER, make_batch_mark, make_row_mark
from headrace.spark.write.target_subjects import has_foreign_subject
from headrace.spark.write.write_batches import WriteError, encode_messages
from headrace.spark.write.write_target import WriteTarget


@dataclass(frozen=True)
class Window:
    """Consecutive rows of a staged block that are published together."""

    columns: MessageColumns
    block: int
    row: int
    #: Whether the sequences of its messages must be known.
    needs_seqs: bool = False
    #: Whether its rows may be stored as single messages, so that they must be sent with the same ids.
    as_single: bool = False

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def may_be_refused(self) -> bool:
        """Whether the server may refuse it because of one of its rows."""
        return has_server_header(self.columns)

    @property
    def has_ids(self) -> bool:
        """Whether a row has a message id of its own."""
        return any_has_header(self.columns, MSG_ID)


@dataclass
class SentWindow:
    """A window that was sent, and the inbox for the replies."""

    window: Window
    inbox: bytes
    is_batch: bool
    #: Whether it still has to be sent, row by row.
    is_deferred: bool = False


@dataclass
class WindowResult:
    """What became of a window: the sequences that are known, and the refused rows with reasons."""

    last_seq: int = 0
    seqs: dict[int, int] = field(default_factory=dict)
    refused: list[tuple[int, str]] = field(default_factory=list)


class WindowSender:
    """Publishes the windows of one commit over a connection."""

    def __init__(self, connection: BlockingConnection, target: WriteTarget, commit_id: str) -> None:
        self._connection = connection
        self._target = target
        self._commit_id = commit_id
        self._acks = AckReader(connection, target.stream)

    def send(self, window: Window) -> SentWindow:
        """Send a window; do not wait."""
        inbox = self._connection.new_inbox()
        is_batch = self._target.is_atomic and not window.as_single
        if has_foreign_subject(window.columns, self._target) or (window.needs_seqs and not is_batch):
            return SentWindow(window, inbox, is_batch, is_deferred=True)
        if is_batch:
            self._connection.send(self._encode_batch(window, inbox))
        else:
            self._connection.send(
                encode_messages(window.columns, inbox, self._make_row_prefix(window), window.row)
            )
        return SentWindow(window, inbox, is_batch)

    def receive(self, sent: SentWindow) -> WindowResult:
        """Wait for the replies to a window, and resolve what the server refused."""
        if sent.is_deferred:
            return self._send_one_by_one(sent.window)
        if not sent.is_batch:
            return self._receive_single(sent)
        reply = self._acks.receive_one(sent.inbox)
        error = reply.get("error")
        if error is None and reply.get("stream") == self._target.stream:
            first = reply["seq"] - len(sent.window) + 1
            needs_seqs = sent.window.needs_seqs
            seqs = {row: first + row for row in range(len(sent.window))} if needs_seqs else {}
            return WindowResult(reply["seq"], seqs)
        if error is not None and error.get("err_code") == DUPLICATE_IN_BATCH and not sent.window.has_ids:
            return WindowResult()  # another driver, or an earlier attempt of this one, has published it
        return self._send_one_by_one(sent.window)

    def _receive_single(self, sent: SentWindow) -> WindowResult:
        acks = self._acks.receive(sent.inbox, len(sent.window))
        if acks.others:
            return self._send_one_by_one(sent.window)  # ids make it harmless to send the window again
        # A duplicate has the sequence of the first message with its id.
        return WindowResult(0 if acks.duplicates else acks.last_seq)

    def _encode_batch(self, window: Window, inbox: bytes) -> bytearray:
        batch_id = make_batch_mark(self._commit_id, window.block, window.row, len(window), make_id()[:8])
        # With the length: a window that is divided differently after a failure must not be taken for this one.
        mark = make_row_mark(self._commit_id, window.block)
        msg_id = b"Nats-Msg-Id: %s%d-%d\r\n" % (mark, window.row, len(window))
        return encode_atomic_batch(window.columns, inbox, batch_id, b"" if window.has_ids else msg_id)

    def _make_row_prefix(self, window: Window) -> bytes:
        name = ROW_HEADER if window.has_ids else MSG_ID
        return b"%s: %s" % (name, make_row_mark(self._commit_id, window.block))

    def _send_one_by_one(self, window: Window) -> WindowResult:
        """Send each row on its own, to find those that the server refuses."""
        connection, target = self._connection, self._target
        prefix = b"Nats-Expected-Stream: %s\r\n%s" % (target.stream.encode(), self._make_row_prefix(window))
        inboxes = {connection.new_inbox(): row for row in range(len(window))}
        out = bytearray()
        for inbox, row in inboxes.items():
            out += encode_messages(window.columns.slice(row, row + 1), inbox, prefix, window.row + row)
        connection.send(out)
        result = WindowResult()
        for inbox, row in inboxes.items():
            self._add_reply(result, window, row, self._acks.receive_one(inbox))
        return result

    def _add_reply(self, result: WindowResult, window: Window, row: int, reply: dict[str, Any]) -> None:
        target = self._target
        reason = explain_refusal(reply, target.stream)
        if reason:
            if not reply:
                check_foreign_subject(self._connection, target, window.columns.subjects[row].as_py())
            result.refused.append((row, reason))
        elif "error" in reply:
            raise WriteError(f"stream {target.stream!r} rejected a message: {describe_error(reply['error'])}")
        else:
            result.seqs[row] = int(reply["seq"])


def check_foreign_subject(connection: BlockingConnection, target: WriteTarget, subject: bytes) -> None:
    """Raise ConnectionFailed if the stream has a subject after all: it had no leader when the message came."""
    lookup = BlockingConnection(connection.address)
    try:
        request = {"subject": subject.decode(errors="replace")}
        found = call_leader(lookup, f"{target.api_prefix}.STREAM.NAMES", request)
    finally:
        lookup.close()
    if target.stream in (found.get("streams") or ()):
        raise ConnectionFailed(f"stream {target.stream!r} has no leader")
