"""Writes the commands of a publisher to its connection, without nats-py's work for each message.

Owns the use of nats-py's buffer of commands. Invariant: what was written and not sent when the connection breaks is removed
from the buffer, because the publisher sends it again, in order.
"""

from __future__ import annotations

import contextlib

from nats.aio.client import Client as NATS


class CommandWriter:
    """Writes one chunk of commands at a time."""

    def __init__(self, connection: NATS) -> None:
        self._nc = connection
        self._written = b""  # may still be in the buffer of the connection
        self.is_writing = False

    async def write(self, chunk: bytes) -> None:
        """Write commands; wait while the connection has no room for them."""
        self._written = chunk
        self.is_writing = True
        try:
            with contextlib.suppress(OSError):  # the connection broke: sent again after the reconnect
                # nats-py's publish() would take five times as long for the same messages.
                await self._nc._send_command(chunk)  # noqa: SLF001
                await self._nc._flush_pending(force_flush=True)  # noqa: SLF001
        finally:
            self.is_writing = False

    def discard(self) -> None:
        """Remove from the buffer what was not sent."""
        pending = self._nc._pending  # noqa: SLF001
        if any(command is self._written for command in pending):
            self._nc._pending = [each for each in pending if each is not self._written]  # noqa: SLF001
            self._nc._pending_data_size = sum(map(len, self._nc._pending))  # noqa: SLF001
        self._written = b""
