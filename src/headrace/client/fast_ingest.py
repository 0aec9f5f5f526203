"""Sends the messages of a publisher as fast-ingest batches: the server acknowledges many messages with one reply.

The reply subject says what a message is: `<inbox>.<batch id>.<flow>.fail.<position>.<operation>.$FI`. Batches have the
gap mode `fail`: after a message that is lost or rejected the server stores nothing of the batch, so the rest is sent
again, in order, as the next batch. Invariants: no batch begins before the one before it has ended; what is not known to
be stored is sent again. After a reconnect the open batch is ended, and the server says how many of its messages it has.
A stream that is moving to another server has no subjects but a reserved one: there its last batch is ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from headrace.client.errors import NoAnswer, NoStream
from headrace.client.publish_record import Record
from headrace.client.publish_reply import PublishReply, is_temporary, parse_reply
from headrace.client.publish_retry import Refusals
from headrace.client.publish_window import PublishWindow

#: Maximum number of messages per acknowledgement.
FLOW_MAX = 500
SUFFIX = ".$FI"
_START, _APPEND, _COMMIT_END = 0, 1, 3
_DISABLED, _UNKNOWN, _TOO_MANY = 10205, 10208, 10211
_UNKNOWN_MAX = 3
#: How long to wait for a stream that is moving. This user may lack the permission to publish to its subject.
_MOVING_WAIT_S = 2.0


def closed_subject(stream: str) -> str:
    """Return the only subject of a stream that a move has closed (`headrace migrate move`)."""
    return f"$HEADRACE.closed.{stream}"


@dataclass
class _Batch:
    """An open batch; `first` is the number of the message at position 1, `acked` that of the last stored one.

    `asked_s` is when its end was sent to the subject of a stream that is moving.
    """

    id: str
    first: int
    subject: str
    flow: int
    acked: int
    is_ending: bool = False
    asked_s: float | None = None
    failures: dict[int, Exception] = field(default_factory=dict)


class FastIngestSender:
    """Sends one batch after the other."""

    passed = 0  # a batch is acknowledged in order

    def __init__(self, window: PublishWindow, refusals: Refusals, inbox: str, flow: int, stream: str) -> None:
        self._window = window
        self._closed_subject = closed_subject(stream)
        self._refusals = refusals
        self._inbox = inbox
        self._name = inbox.rstrip(".").rpartition(".")[
            2
        ]  # unique: batches of all publishers have one namespace
        self._flow = flow
        self._batch: _Batch | None = None
        self._batch_count = 0
        self._must_end = False
        self._lost_number = 0
        self._unknown_count = 0
        self.is_refused = False

    @property
    def is_open(self) -> bool:
        return self._batch is not None

    @property
    def is_paused(self) -> bool:
        return self._batch is not None and (self._batch.is_ending or self._must_end)

    def encode(self, number: int, record: Record) -> bytes:
        batch, operation = self._batch, _APPEND
        if batch is None:
            batch, operation = self._start(number, record), _START
        return record.encode(self._make_reply_subject(batch, number, operation))

    def _start(self, number: int, record: Record) -> _Batch:
        self._batch_count += 1
        name = f"{self._name}-{self._batch_count}"
        self._batch = _Batch(name, number, record.subject, self._flow, number - 1)
        return self._batch

    def _make_reply_subject(self, batch: _Batch, number: int, operation: int) -> str:
        position = number - batch.first + 1
        return f"{self._inbox}{batch.id}.{self._flow}.fail.{position}.{operation}{SUFFIX}"

    def encode_ack_request(self, *, is_wanted: bool) -> bytes:
        """End the batch if that is wanted and no acknowledgement is due, or if it must end."""
        batch = self._batch
        if batch is None:
            return b""
        if batch.asked_s is not None and _now_s() > batch.asked_s + _MOVING_WAIT_S:
            self._on_unknown_batch(batch)
            return b""
        is_due = self._window.sent - batch.acked >= batch.flow
        if not self._must_end and (not is_wanted or batch.is_ending or is_due):
            return b""
        batch.is_ending, self._must_end = True, False
        end = Record(batch.subject if batch.asked_s is None else self._closed_subject, b"", None)
        return end.encode(self._make_reply_subject(batch, self._window.sent + 1, _COMMIT_END))

    def on_reconnect(self) -> None:
        self._lost_number = 0
        if self._batch is None:
            self._window.rewind()
        else:
            self._must_end = True

    def on_timeout(self) -> None:
        self._batch, self._must_end = None, False

    def on_reply(self, token: str, message: Msg) -> None:
        batch = self._batch
        parts = token.split(".")
        if batch is None or parts[0] != batch.id:  # of a batch that has ended
            return
        number, is_end = batch.first + int(parts[3]) - 1, parts[4] == str(_COMMIT_END)
        record = self._window.get(number)
        reply = parse_reply(message, record.subject if record and not is_end else batch.subject)
        if reply.body.get("type"):
            self._on_event(batch, reply.body, reply.error)
        elif reply.error is None:
            self._finish(batch, int(reply.body.get("count", 0)))
        elif is_end and isinstance(reply.error, NoStream) and batch.asked_s is None:
            batch.asked_s, self._must_end = _now_s(), True
        elif is_end or reply.err_code == _UNKNOWN:
            self._on_unknown_batch(batch)
        else:
            self._on_refused(batch, number, reply)

    def _on_event(self, batch: _Batch, event: dict[str, Any], error: Exception | None) -> None:
        """Handle a reply within a batch: an acknowledgement, a gap or an error."""
        if event["type"] == "ack":
            batch.flow = int(event["msgs"])
            batch.acked = batch.first + int(event["seq"]) - 1
            if batch.acked >= batch.first:
                self._unknown_count = 0
            self._window.store_until(batch.acked)
            return
        batch.is_ending, self._must_end = True, False  # the server says next how many messages it has stored
        if error is not None:
            batch.failures[batch.first + int(event["seq"]) - 1] = error

    def _on_refused(self, batch: _Batch, number: int, reply: PublishReply) -> None:
        """Handle a message that was rejected like a single one."""
        assert reply.error is not None
        batch.failures[number] = reply.error
        if number == batch.first:
            self.is_refused = reply.err_code in (_DISABLED, _TOO_MANY)
            if self.is_refused:
                batch.failures.clear()
            self._finish(batch, 0)
        elif not batch.is_ending:
            self._must_end = True

    def _on_unknown_batch(self, batch: _Batch) -> None:
        """The server does not have the batch any more, after a restart for example."""
        self._unknown_count += 1
        head = self._window.first
        self.is_refused = self._unknown_count >= _UNKNOWN_MAX or (
            bool(batch.failures) and head not in batch.failures
        )
        self._close(batch)

    def _finish(self, batch: _Batch, count: int) -> None:
        """The batch has ended, and this many of its messages are stored."""
        end, sent = batch.first + count - 1, self._window.sent
        if count:
            self._unknown_count = 0
        self._window.store_until(end)
        if end < sent and end + 1 not in batch.failures and not self.is_refused:
            self._on_lost(end + 1)
        self._close(batch)

    def _on_lost(self, number: int) -> None:
        """A message did not arrive. Send it again, once: the server may not accept it from this user."""
        if number == self._lost_number:
            record = self._window.get(number)
            subject = record.subject if record else ""
            text = f"the server did not receive a message on {subject!r}; check the permissions of this user"
            self._window.fail(number, NoAnswer(text))
        self._lost_number = number

    def _close(self, batch: _Batch) -> None:
        head = self._window.first
        error = batch.failures.get(head)
        if error is not None and is_temporary(error):
            self._refusals.pause_batch(head, error)
        elif error is not None:
            self._window.fail(head, error)
        self._batch, self._must_end = None, False
        self._window.rewind()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def supports_fast_ingest(stream_config: Any) -> bool:
    """Whether a stream accepts fast-ingest batches."""
    return bool(getattr(stream_config, "allow_batched", False))


def choose_flow(max_pending: int) -> int:
    """Return how many messages the server may acknowledge with one reply, so that more can be sent meanwhile."""
    return max(1, min(FLOW_MAX, max_pending // 2))
