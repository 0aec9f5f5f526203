"""What leaves in a turn of the loop: small outputs at once, large ones by the slice.

Nobody waits for a flood to others: after a slice of it the loop goes round, and who asked something meanwhile
is answered. Invariant: whoever brings more to others while large outputs wait is not read from until they are
gone, so that what waits is bounded by what one chunk of each sender brings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.net.connection import Connection

LARGE_BYTES = 16 * 1024
SLICE_S = 0.002
#: What one chunk may bring to others while large outputs wait.
MODEST_BYTES = 4 * 1024


class Outflow:
    """The outputs of sessions on their way out; `dirty` lists the sessions that have some."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dirty: list[Any]) -> None:
        self._loop = loop
        self._dirty = dirty
        self._large: deque[Any] = deque()
        self._held: dict[Connection, None] = {}

    @property
    def waiting(self) -> bool:
        """Whether large outputs wait for their turn."""
        return bool(self._large)

    def flush(self) -> None:
        """Send the output of every session that has some; of large ones a slice, the rest by and by."""
        batch = self._dirty[:]
        self._dirty.clear()
        large = self._large
        begun = bool(large)
        for session in batch:
            if len(session.out) + session.parted < LARGE_BYTES:
                session.owner.flush()
            else:
                large.append(session)
        if large and not begun:
            self._send_slice()

    def _send_slice(self) -> None:
        large, time = self._large, self._loop.time
        end = time() + SLICE_S
        try:
            while large:
                large.popleft().owner.flush()
                if time() >= end:
                    break
        finally:
            if large:
                self._loop.call_soon(self._send_slice)
            else:
                self.let_go()

    def hold(self, connection: Connection) -> None:
        """Read no more from a connection until what waits is gone."""
        connection.pause_reading()
        self._held[connection] = None

    def let_go(self) -> None:
        """Read again from whoever was held."""
        held, self._held = self._held, {}
        for connection in held:
            connection.resume_reading()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._held.pop(connection, None)
