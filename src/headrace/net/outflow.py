"""What leaves in a turn of the loop: small outputs at once, large ones by the slice.

Nobody waits for a flood to others: after a slice of it the loop goes round, and who asked something meanwhile
is answered. Invariant: whoever brings much to others while large outputs wait is not read from until what
waited then is gone; and what waits is bounded, in all and for each client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.broker import Session

LARGE_BYTES = 16 * 1024
SLICE_S = 0.002
#: What one chunk may bring to others while large outputs wait.
MODEST_BYTES = 4 * 1024
#: What may wait in all; payloads that several clients share are not counted.
HELD_BYTES = 32 * 1024 * 1024


class Held(Protocol):
    """A connection that can be held."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Outflow:
    """The outputs of sessions on their way out; `dirty` lists the sessions that have some.

    `most` says what may wait for one client. Told of a session whose output cannot be sent: `failed`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dirty: list[Any],
        most: Callable[[], int],
        failed: Callable[[Any, Exception], None],
    ) -> None:
        self._loop = loop
        self._dirty = dirty
        self._most = most
        self._failed = failed
        self._large: deque[Any] = deque()
        self._queued = self._sent = 0  # how many there ever were in the queue, and left it
        self._held: dict[Held, int] = {}  # with what had been queued by then
        self._paused_s = 0.0

    @property
    def waiting(self) -> bool:
        """Whether large outputs wait for their turn."""
        return bool(self._large)

    def flush(self) -> None:
        """Send the output of every session that has some; of large ones a slice, the rest by and by."""
        batch = self._dirty[:]
        self._dirty.clear()
        begun = bool(self._large)
        for session in batch:
            if len(session.out) + session.parted < LARGE_BYTES:
                self._send(session)
            else:
                self._large.append(session)
                self._queued += 1
        if self._large and not begun:
            self._paused_s = self._loop.time()
            self._send_slice()

    def _send(self, session: Any) -> None:
        try:
            session.owner.flush()
        except Exception as error:  # whatever one client triggers must not end the others
            self._failed(session, error)

    def _send_next(self) -> None:
        self._sent += 1
        self._send(self._large.popleft())

    def _send_slice(self) -> None:
        """As long as half of what else was done since the last one: who is waited for must not fall behind."""
        large, time = self._large, self._loop.time
        now = time()
        end = now + max(SLICE_S, (now - self._paused_s) / 2)
        while large:
            self._send_next()
            if time() >= end:
                break
        self._relieve()
        self._let_go()
        self._paused_s = time()
        if large:
            self._loop.call_soon(self._send_slice)

    def _relieve(self) -> None:
        """Send what must not wait: outputs near the limit of a client, and the oldest while all are too large."""
        most, total = self._most(), 0
        for session in tuple(self._large):
            size = len(session.out)
            if size + session.parted > most:
                self._send(session)
            else:
                total += size
        while self._large and total > HELD_BYTES:  # one that was sent out of turn may stand there twice
            total -= len(self._large[0].out)
            self._send_next()

    def crowded_by(self, session: Session, brought: int) -> bool:
        """Whether large outputs wait, and a client has brought much to others now or has such output itself."""
        if not self.waiting:
            return False
        return brought > MODEST_BYTES or len(session.out) + session.parted >= LARGE_BYTES

    def hold(self, connection: Held) -> None:
        """Read no more from a connection until what waits now is gone."""
        connection.pause_reading()
        self._held[connection] = self._queued
        self._relieve()

    def _let_go(self) -> None:
        while self._held:
            connection = next(iter(self._held))
            if self._held[connection] > self._sent:
                return
            del self._held[connection]
            connection.resume_reading()

    def forget(self, connection: Held) -> None:
        """A connection is gone."""
        self._held.pop(connection, None)
