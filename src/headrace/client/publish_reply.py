"""Replies to published messages, and what to do about messages that no stream could store at that moment.

Owns the distinction between errors of a message and those of the moment: a restart, an election of a leader.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from nats.aio.msg import Msg

from headrace.client.errors import JetStreamError, NoStream, make_error
from headrace.client.publish_window import PublishWindow

#: How long to send a message again that no stream listens for, and the pause before each attempt.
RETRY_FOR_S, RETRY_PAUSE_S = 2.0, 0.25
_NO_RESPONDERS = "503"
#: JetStream temporarily unavailable, not enabled (yet) for the account, not enabled (yet).
_TEMPORARY_ERR_CODES = {10008, 10039, 10076}


@dataclass(frozen=True, slots=True)
class PublishReply:
    """One reply: its JSON object, and its error if it has one."""

    body: dict[str, Any]
    error: JetStreamError | NoStream | None

    @property
    def err_code(self) -> int:
        return (self.error.err_code or 0) if isinstance(self.error, JetStreamError) else 0

    @property
    def is_temporary(self) -> bool:
        """Whether the same message may be stored a moment later."""
        return is_temporary(self.error)


def is_temporary(error: Exception | None) -> bool:
    if isinstance(error, JetStreamError):
        return error.err_code in _TEMPORARY_ERR_CODES
    return isinstance(error, NoStream)


def parse_reply(message: Msg, subject: str) -> PublishReply:
    """Parse the reply to a message that was published on `subject`."""
    if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
        return PublishReply({}, NoStream(subject))
    body: dict[str, Any] = msgspec.json.decode(message.data)
    error = body.get("error")
    return PublishReply(body, make_error(error) if error else None)


class Refusals:
    """Messages that no stream could store: sent again after a pause, and failed in the end."""

    def __init__(self, window: PublishWindow) -> None:
        self._window = window
        self._retry_at_s: float | None = None
        self._numbers: set[int] = set()

    @property
    def pause_s(self) -> float | None:
        """How long to wait until refused messages are sent again; None if there is nothing to wait for."""
        if self._retry_at_s is None:
            return None
        return max(self._retry_at_s - asyncio.get_running_loop().time(), 0.0)

    def refuse(self, number: int, error: Exception) -> None:
        """Let a message be sent again; fail it if that was tried for long enough."""
        now_s = asyncio.get_running_loop().time()
        record = self._window.get(number)
        if record is None:
            return
        if record.refused_s is None:
            record.refused_s = now_s
        if now_s - record.refused_s < RETRY_FOR_S:
            self._retry_at_s = now_s + RETRY_PAUSE_S
            self._numbers.add(number)
            record.sent_s = None
        else:
            self._window.fail(number, error)

    def start_clock(self, head: int) -> None:
        """Let all messages in flight on the subject of the refused one have the same time: no stream listens for them."""
        now_s, refused = asyncio.get_running_loop().time(), self._window.get(head)
        for number in range(head, self._window.sent + 1):
            record = self._window.get(number)
            if refused and record and record.subject == refused.subject and record.refused_s is None:
                record.refused_s = now_s

    def resume(self) -> None:
        """End the pause."""
        self._retry_at_s = None
        self._window.send_again(self._numbers)
        self._numbers.clear()
