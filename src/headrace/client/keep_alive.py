"""Extends the ack deadline of messages that a client has received and not acknowledged.

The server delivers a message again when its `ack_wait` is over. While this client works on it, a slow handler, or a full
buffer in front of it, is no reason for that. Owns nothing but the times: where the messages are, others know.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import nats.errors
from nats.aio.msg import Msg

Source = Callable[[], Iterable[Msg]]


class KeepAlive:
    """The messages of one consumption. Deadlines are extended three times per `ack_wait_s`."""

    def __init__(self, ack_wait_s: float) -> None:
        self._period_s = ack_wait_s / 3
        self._sources: list[Source] = []

    def add_source(self, source: Source) -> None:
        """Extend the deadlines of the messages that this function returns."""
        self._sources.append(source)

    async def run(self, source: Source) -> None:
        """Extend deadlines forever: of the messages of this source, and of those that are added."""
        self.add_source(source)
        while True:
            await asyncio.sleep(self._period_s)
            for message in [message for source in self._sources for message in source()]:
                if not message.is_acked:
                    with contextlib.suppress(nats.errors.Error):
                        await message.in_progress()
