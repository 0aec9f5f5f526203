"""The output of one leafnode connection that waits to be sent: how much that may be, and for how long nothing may be sent.

A queue that takes a slow network minutes to send holds up replies and heartbeats, so that the other server sets up its
copies again and again. Invariant: consumers wait while the queue holds about as much as the network sends in a second, in
the transport and the same amount in the operating system. A connection ends if nothing at all is sent within the write
deadline, as in nats-server; a slow one stays.
"""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Callable
from contextlib import suppress

from headrace.broker.routing.backpressure import BackpressuredClient

try:
    import fcntl
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

START_BYTES = 16 * 1024
MIN_BYTES, MAX_BYTES = 4 * 1024, 1024 * 1024
#: How much the output that may wait corresponds to.
TARGET_S = 1.0
#: The limit changes by at most this factor at a time. The transport continues at a quarter of its limit, so a limit that
#: shrinks never pauses it again at once.
_FACTOR_MAX = 4


def read_unsent_bytes(transport: asyncio.BaseTransport) -> int:
    """Return how many bytes of a socket the other side has not confirmed; 0 if the system does not say."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is None or termios is None:
        return 0
    found = array("i", [0])
    try:
        fcntl.ioctl(socket_.fileno(), termios.TIOCOUTQ, found)
    except OSError:
        return 0
    return found[0]


class OutputQueue:
    """Writes to the transport; `session.output_limit` is how much may wait.

    `may_send` returns whether this server may still send anything: a standby may have taken over.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        session: BackpressuredClient,
        write_deadline_s: float,
        on_stalled: Callable[[str], None],
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        self._transport, self._session = transport, session
        self._write_deadline_s, self._on_stalled = write_deadline_s, on_stalled
        self._may_send = may_send
        self._loop = asyncio.get_running_loop()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._written_bytes = 0
        self._paused_s = 0.0
        self._sent_at_pause = 0
        self._set_limit(START_BYTES)

    def write(self, data: bytes | bytearray) -> None:
        """Send data, or queue it; a server that may have been replaced sends nothing more."""
        if self._may_send is not None and not self._may_send():
            self._transport.abort()
            return
        self._written_bytes += len(data)
        self._transport.write(data)
        limit = self._session.output_limit
        if len(data) >= limit and not self._transport.get_write_buffer_size():
            self._set_limit(2 * limit)

    def on_full(self) -> None:
        """Start the write deadline: the transport takes no more."""
        self._paused_s, self._sent_at_pause = self._loop.time(), self._count_sent()
        self._start_deadline()

    def on_drained(self) -> None:
        """Stop the write deadline, and let as much wait as was sent in a second."""
        self.cancel_deadline()
        elapsed_s = max(self._loop.time() - self._paused_s, 0.001)
        sent_in_target = int((self._count_sent() - self._sent_at_pause) / elapsed_s * TARGET_S)
        limit = self._session.output_limit
        self._set_limit(min(max(sent_in_target, limit // _FACTOR_MAX), limit * _FACTOR_MAX))

    def cancel_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None

    def _count_sent(self) -> int:
        """Return how many bytes the other side has: those that the operating system still holds are not counted."""
        waiting = self._transport.get_write_buffer_size() + read_unsent_bytes(self._transport)
        return self._written_bytes - waiting

    def _start_deadline(self) -> None:
        self._deadline_timer = self._loop.call_later(
            self._write_deadline_s, self._on_deadline, self._count_sent()
        )

    def _on_deadline(self, sent_before: int) -> None:
        if self._count_sent() == sent_before:
            self._on_stalled("write deadline exceeded")
        else:
            self._start_deadline()

    def _set_limit(self, limit: int) -> None:
        limit = min(max(limit, MIN_BYTES), MAX_BYTES)
        if limit == self._session.output_limit:
            return
        self._session.output_limit = limit
        self._transport.set_write_buffer_limits(high=limit)
        socket_ = self._transport.get_extra_info("socket")
        if socket_ is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):
                # A fast network gets the system's own limit (0), which costs less.
                unsent_max = limit if limit < MAX_BYTES else 0
                socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_max)
