"""Sends the messages of a publisher one by one: each is acknowledged by a reply of its own.

`fast_ingest` has the other sender, which gets one acknowledgement for many messages. Both work on a `PublishWindow`,
and decide what a reply means for its messages.
"""

from __future__ import annotations

from typing import Protocol

from nats.aio.msg import Msg

from headrace.client.publish_record import Record
from headrace.client.publish_reply import Refusals, parse_reply
from headrace.client.publish_window import PublishWindow


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

    def encode(self, number: int, record: Record) -> bytes:
        return record.encode(f"{self._inbox}{number}")

    def encode_ack_request(self, *, is_wanted: bool) -> bytes:
        return b""

    def on_reply(self, token: str, message: Msg) -> None:
        number = int(token) if token.isdecimal() else 0
        record = self._window.get(number)
        if record is None:  # settled before: it was sent again
            return
        reply = parse_reply(message, record.subject)
        if reply.error is None:
            self._window.store(number)
        elif reply.is_temporary:
            self._refusals.refuse(number, reply.error)
        else:
            self._window.fail(number, reply.error)

    def on_reconnect(self) -> None:
        self._window.rewind()

    def on_timeout(self) -> None:
        pass
