"""Backpressure between clients: pauses publishers while receivers or the disk are behind, disconnects slow consumers.

Owns which connections are paused and the write deadlines of those whose socket is full. It does not know what a
connection sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.config.options import ServerOptions
from headrace.net.client_connection import ClientConnection
from headrace.net.logs import Logger

STALL_PAUSE_S = 0.005
CONGESTION_RATIO = 0.75


class DiskPressure(Protocol):
    """The disks of a server, as far as publishers have to wait for them."""

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for the disks."""

    def is_high(self) -> bool:
        """Whether too much waits for a disk; called after each chunk read from a connection."""

    def on_low(self, call: Callable[[], None]) -> None:
        """Set the call that is made whenever a disk has caught up."""


class ClientBackpressure:
    """The backpressure of all clients of a server. `congested`: a connection that sends has to be paused."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: ServerOptions, disk: DiskPressure, log: Logger
    ) -> None:
        self._loop = loop
        self._log = log
        self.congested = False
        self.slow_consumers = 0
        self._publishers_paused = False
        self._paused_connections: dict[ClientConnection, None] = {}
        self._write_deadlines: dict[ClientConnection, float] = {}
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.reconfigure(options, disk)

    def reconfigure(self, options: ServerOptions, disk: DiskPressure) -> None:
        """Apply new options; the set of disks may have changed, too."""
        self._max_pending = options.max_pending
        self._write_deadline_s = options.write_deadline_s
        self.disk = disk
        disk.on_low(self._resume_if_paused)

    def remove(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        self._write_deadlines.pop(connection, None)
        self._paused_connections.pop(connection, None)

    def stop(self) -> None:
        """Drop the write deadlines."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    # Slow consumers

    def get_congestion_bytes(self) -> int:
        """Return how much pending output of one client makes the server congested."""
        return int(self._max_pending * CONGESTION_RATIO)

    def on_write_backlog(self, connection: ClientConnection, pending: int) -> None:
        """Disconnect a client with too much pending output, or slow down publishers when it gets near the limit."""
        limit = self._max_pending
        if pending > limit:
            self.slow_consumers += 1
            self._log.warn(f"cid {connection.session.cid}: slow consumer: {pending} bytes pending")
            connection.abort()
        elif pending > limit * CONGESTION_RATIO:
            self.congested = True

    def on_send_error(self, session: Any, error: Exception) -> None:
        """Disconnect a client whose output cannot be sent."""
        self._log.error(f"cid {session.cid}: {type(error).__name__}: {error}")
        session.transport.abort()

    def start_write_deadline(self, connection: ClientConnection) -> None:
        """Start the write deadline of a client whose socket is full."""
        self._write_deadlines[connection] = self._loop.time() + self._write_deadline_s
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_later(self._write_deadline_s, self._abort_overdue)

    def clear_write_deadline(self, connection: ClientConnection) -> None:
        """Stop the write deadline of a client whose output has been sent."""
        self._write_deadlines.pop(connection, None)

    def _abort_overdue(self) -> None:
        """Disconnect clients whose socket has been full for longer than the write deadline."""
        self._deadline_timer = None
        now = self._loop.time()
        for connection in [c for c, deadline in self._write_deadlines.items() if deadline <= now]:
            self.slow_consumers += 1
            self._log.warn(f"cid {connection.session.cid}: slow consumer: write deadline exceeded")
            connection.abort()
        if self._write_deadlines:
            self._deadline_timer = self._loop.call_at(
                min(self._write_deadlines.values()), self._abort_overdue
            )

    # Publishers

    def pause_publishers(self) -> None:
        """Stop reading from connections that add to what waits for the disks, until `resume_publishers`."""
        self._publishers_paused = self.congested = True

    def resume_publishers(self) -> None:
        """Resume reading from all paused connections."""
        self._publishers_paused = self.congested = False
        paused, self._paused_connections = self._paused_connections, {}
        for connection in paused:
            connection.resume_reading()

    def _resume_if_paused(self) -> None:
        if self._publishers_paused:
            self.resume_publishers()

    def must_pause(self, pending_before: int) -> bool:
        """Whether a connection that has published in a congested server must wait.

        While the disks are behind, only those wait whose messages are written to them: `pending_before` is how many
        bytes waited before its input was parsed.
        """
        return not self._publishers_paused or self.disk.pending_bytes > pending_before

    def pause_connection(self, connection: ClientConnection) -> None:
        """Stop reading from a connection that sends while the server is congested."""
        connection.pause_reading()
        if not self._paused_connections and not self._publishers_paused:
            self._loop.call_later(STALL_PAUSE_S, self._resume_after_stall)
        self._paused_connections[connection] = None

    def _resume_after_stall(self) -> None:
        if not self._publishers_paused:
            self.resume_publishers()
