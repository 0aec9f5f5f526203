"""How long a publisher waits for replies: fails the messages in flight that got none in time.

Owns the clock of the replies. Invariant: a program that was busy itself, or not connected, lets no message fail: replies
may have arrived that were not read yet.
"""

from __future__ import annotations

import asyncio

from headrace.client.errors import NoAnswer
from headrace.client.publish_sender import Sender
from headrace.client.publish_window import PublishWindow


class ReplyTimeout:
    """Knows when the server replied last."""

    def __init__(self, window: PublishWindow, timeout_s: float) -> None:
        self._window = window
        self._timeout_s = timeout_s
        self._heard_s = 0.0
        self._checked_s = 0.0
        self._waiting_since_s = 0.0  # nothing is overdue because of the time before

    @property
    def interval_s(self) -> float:
        """The time between two checks."""
        return self._timeout_s / 4

    def on_reply(self) -> None:
        self._heard_s = asyncio.get_running_loop().time()

    def restart(self) -> None:
        """Give the messages in flight the whole time again."""
        self._heard_s = self._waiting_since_s = self._checked_s = asyncio.get_running_loop().time()

    def check(self, sender: Sender, *, is_writing: bool) -> bool:
        """Fail overdue messages; return whether there was something to end.

        While a write does not end, because the server reads nothing, messages that were not sent are overdue, too.
        """
        now_s, timeout_s = asyncio.get_running_loop().time(), self._timeout_s
        was_busy = now_s - self._checked_s > timeout_s / 2
        self._checked_s = now_s
        if was_busy:
            self.restart()
            return False
        if now_s - max(self._heard_s, self._waiting_since_s) < timeout_s:
            return self._waiting_since_s <= now_s - timeout_s and self._window.fail_sent_before(
                now_s - timeout_s, sender.passed, self._make_error()
            )
        if not (self._window.in_flight or sender.is_paused or is_writing):
            return False
        self._heard_s = now_s
        self._window.fail_all(self._make_error(), only_sent=not is_writing)
        sender.on_timeout()
        return True

    def _make_error(self) -> NoAnswer:
        return NoAnswer(
            f"no reply within {self._timeout_s:g} s; the message may be stored. "
            "Check that the server is healthy and this user has the permissions"
        )
