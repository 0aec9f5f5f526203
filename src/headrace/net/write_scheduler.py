"""Schedules writes: small outputs at the end of the turn of the loop, large ones in time slices.

Large fan-outs are sent in slices, so other clients are still served between slices. Invariant: a client that causes much
fan-out while large outputs are queued is not read from until the outputs queued at that time are sent; and queued output
is bounded, in total and for each client. See ADR 14.
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
#: The fan-out that one chunk may cause while large outputs are queued.
SMALL_FANOUT_BYTES = 4 * 1024
#: The maximum number of queued bytes in total; payloads that several clients share are not counted.
QUEUED_BYTES_MAX = 32 * 1024 * 1024


class PausableReader(Protocol):
    """A connection whose reading can be paused."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class WriteScheduler:
    """Schedules the output of sessions; `dirty` lists the sessions that have some.

    `get_client_limit` returns how much may be queued for one client; `on_error` is called with a session whose output
    cannot be sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dirty: list[Any],
        get_client_limit: Callable[[], int],
        on_error: Callable[[Any, Exception], None],
    ) -> None:
        self._loop = loop
        self._dirty = dirty
        self._get_client_limit = get_client_limit
        self._on_error = on_error
        self._large_outputs: deque[Any] = deque()
        self._queued_count = self._sent_count = 0  # totals of outputs that entered and left the queue
        self._paused_readers: dict[PausableReader, int] = {}  # with `_queued_count` at that time
        self._slice_ended_s = 0.0

    @property
    def has_queued_output(self) -> bool:
        """Whether large outputs are queued."""
        return bool(self._large_outputs)

    def flush(self) -> None:
        """Send the output of every session that has some; of large outputs a slice, the rest in later turns."""
        sessions = self._dirty[:]
        self._dirty.clear()
        was_sending = bool(self._large_outputs)
        for session in sessions:
            if len(session.buffer) + session.chunk_bytes < LARGE_BYTES:
                self._flush_session(session)
            else:
                self._large_outputs.append(session)
                self._queued_count += 1
        if self._large_outputs and not was_sending:
            self._slice_ended_s = self._loop.time()
            self._send_slice()

    def _flush_session(self, session: Any) -> None:
        try:
            session.transport.flush()
        except Exception as error:  # an error caused by one client must not affect the others
            self._on_error(session, error)

    def _send_next(self) -> None:
        self._sent_count += 1
        self._flush_session(self._large_outputs.popleft())

    def _send_slice(self) -> None:
        """Send queued output for one time slice.

        A slice lasts 2 ms, or half of the time spent on other work since the previous slice if that is longer, so that
        large outputs do not fall behind.
        """
        large, time = self._large_outputs, self._loop.time
        now = time()
        end = now + max(SLICE_S, (now - self._slice_ended_s) / 2)
        while large:
            self._send_next()
            if time() >= end:
                break
        self._flush_oversized()
        self._resume_readers()
        self._slice_ended_s = time()
        if large:
            self._loop.call_soon(self._send_slice)

    def _flush_oversized(self) -> None:
        """Send output that must not wait: outputs near a client's limit, and the oldest while the total is too large."""
        limit, total = self._get_client_limit(), 0
        for session in tuple(self._large_outputs):
            size = len(session.buffer)
            if size + session.chunk_bytes > limit:
                self._flush_session(session)
            else:
                total += size
        while (
            self._large_outputs and total > QUEUED_BYTES_MAX
        ):  # a session whose output was sent early may be in the queue twice
            total -= len(self._large_outputs[0].buffer)
            self._send_next()

    def is_congested_by(self, session: Session, fanout_bytes: int) -> bool:
        """Whether large outputs are queued, and a client caused much fan-out just now or has a large output itself."""
        if not self.has_queued_output:
            return False
        return fanout_bytes > SMALL_FANOUT_BYTES or len(session.buffer) + session.chunk_bytes >= LARGE_BYTES

    def pause_reader(self, reader: PausableReader) -> None:
        """Stop reading from a connection until the outputs queued now are sent."""
        reader.pause_reading()
        self._paused_readers[reader] = self._queued_count
        self._flush_oversized()

    def _resume_readers(self) -> None:
        while self._paused_readers:
            reader = next(iter(self._paused_readers))
            if self._paused_readers[reader] > self._sent_count:
                return
            del self._paused_readers[reader]
            reader.resume_reading()

    def remove_reader(self, reader: PausableReader) -> None:
        """Remove a connection that is closed."""
        self._paused_readers.pop(reader, None)
