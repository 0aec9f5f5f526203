"""Sends the messages of a publisher one by one: each is acknowledged by a reply of its own.

`fast_ingest` has the other sender, which gets one acknowledgement for many messages. Both work on a `PublishWindow`,
and decide what a reply means for its messages.
"""

from __future__ import annotations

from typing import Protocol

from nats.aio.msg import Msg

from headrace.client.errors import NoAnswer
from headrace.client.outgoing_message import MSG_ID
from headrace.client.publish_record import Record
from headrace.client.publish_reply import PublishReply, parse_reply
from headrace.client.publish_retry import Refusals
from headrace.client.publish_window import PublishWindow

#: Wrong last message id, sequence, and sequence of a subject.
_UNMET_EXPECTATION = {10070, 10071, 10164}


class Sender(Protocol):
    """How messages are sent, and acknowledged."""

    @property
    def is_paused(self) -> bool:
        """Whether no message may be sent until a reply arrives."""

    @property
    def is_open(self) -> bool:
        """Whether the server has a batch open that has to be ended."""

    @property
    def is_refused(self) -> bool:
        """Whether messages must be sent one by one instead."""

    @property
    def passed(self) -> int:
        """The number up to which messages should have a reply, because later ones have one."""

    def encode(self, number: int, record: Record) -> bytes:
        """Return the command that sends a message."""

    def encode_ack_request(self, *, is_wanted: bool) -> bytes:
        """Return a command that requests acknowledgement of all messages sent; empty if none is needed."""

    def on_reply(self, token: str, message: Msg) -> None:
        """Handle a reply; `token` is the end of its subject."""

    def on_reconnect(self) -> None:
        """Find out, or send again, what the server did not acknowledge."""

    def on_timeout(self) -> None:
        """Handle that the messages in flight have failed because there was no reply."""


class SingleSender:
    """Requests a reply to every message."""

    is_paused = False
    is_open = False
    is_refused = False

    def __init__(self, window: PublishWindow, refusals: Refusals, inbox: str) -> None:
        self._window = window
        self._refusals = refusals
        self._inbox = inbox
        self.passed = 0

    def encode(self, number: int, record: Record) -> bytes:
        record.copies += 1
        return record.encode(f"{self._inbox}{number}")

    def encode_ack_request(self, *, is_wanted: bool) -> bytes:
        return b""

    def on_reply(self, token: str, message: Msg) -> None:
        number = int(token) if token.isdecimal() else 0
        record = self._window.get(number)
        if record is None:  # settled before: it was sent again
            return
        self.passed = max(self.passed, number - 1)
        reply = parse_reply(message, record.subject)
        if reply.error is not None and reply.is_temporary:
            record.copies -= 1
            self._refusals.refuse(number, reply.error)
            return
        if reply.error is None:
            self._window.store(number)
        else:
            self._window.fail(number, _explain(reply, record))
        self._refusals.on_settled(number, record)

    def on_reconnect(self) -> None:
        self.passed = 0
        self._window.rewind()

    def on_timeout(self) -> None:
        pass


def _explain(reply: PublishReply, record: Record) -> Exception:
    """Return the error of a message that was refused; after a reconnect the reason may be its own first copy."""
    assert reply.error is not None
    if record.copies < 2 or MSG_ID in (record.headers or {}) or reply.err_code not in _UNMET_EXPECTATION:
        return reply.error
    error = NoAnswer(
        f"the message was sent again after a reconnect, and then refused: {reply.error}. The first copy may be stored; "
        "use msg_id with expectations"
    )
    error.__cause__ = reply.error
    return error
