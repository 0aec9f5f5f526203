"""What the client connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headrace.config.options import ServerOptions
from headrace.net.client_backpressure import ClientBackpressure
from headrace.net.connection_registry import ConnectionRegistry
from headrace.net.logs import Logger
from headrace.net.password_verifier import PasswordVerifier
from headrace.net.timer_wheel import TimerWheel
from headrace.net.turn_queue import TurnQueue
from headrace.net.write_scheduler import WriteScheduler


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """What all client connections use. A reload replaces `options`."""

    loop: asyncio.AbstractEventLoop
    options: ServerOptions
    log: Logger
    registry: ConnectionRegistry
    backpressure: ClientBackpressure
    write_scheduler: WriteScheduler
    timer_wheel: TimerWheel
    password_verifier: PasswordVerifier
    #: Continues with input that was received but not parsed in an earlier turn.
    input_queue: TurnQueue
    #: Removes what closed connections leave.
    closed_queue: TurnQueue
    #: Received bytes of any connection: they are parsed before any other connection can read.
    recv_buffer: bytearray
    #: Returns whether this server may still send anything: a standby may have taken over.
    may_send: Callable[[], bool] | None = None

    def now_ns(self) -> int:
        """Return the time for measuring intervals."""
        return int(self.loop.time() * 1e9)
