"""Extends the ack deadline of messages that a client has received and not acknowledged.

The server delivers a message again when its `ack_wait` is over. While this client is alive, a slow handler, or a full
buffer in front of it, is no reason for that. Owns the list of messages that are being processed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import nats.errors
from nats.aio.msg import Msg

#: From this number on, messages that were acknowledged meanwhile are removed as soon as their number has doubled.
_PURGE_MIN = 64


class KeepAlive:
    """The messages of one consumption. A deadline is extended after a third of `ack_wait_s`."""

    def __init__(self, ack_wait_s: float) -> None:
        self._period_s = ack_wait_s / 3
        self._in_process: list[Msg] = []
        self._purge_at = _PURGE_MIN

    def add(self, message: Msg) -> None:
        """Extend the deadline of a message until it is acknowledged."""
        self._in_process.append(message)
        if len(self._in_process) >= self._purge_at:
            self._purge()

    def _purge(self) -> None:
        self._in_process = [message for message in self._in_process if not message.is_acked]
        self._purge_at = max(2 * len(self._in_process), _PURGE_MIN)

    async def run(self, buffered: Iterable[Msg]) -> None:
        """Extend deadlines forever: of the messages that were added, and of those in the buffer."""
        while True:
            await asyncio.sleep(self._period_s)
            self._purge()
            with contextlib.suppress(nats.errors.Error):
                for message in (*self._in_process, *buffered):
                    await message.in_progress()
