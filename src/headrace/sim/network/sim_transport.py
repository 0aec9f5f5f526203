"""A simulated server that real clients connect to, over connections that are slow, stall and break.

Owns the bytes in transit between `headrace.client` and a `SimBroker`, and when the broker continues: a few operations
of its disk at a time, so that others act between them. The client is the real one; only its transport is simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import ParseResult

from nats.aio.transport import Transport

from headrace._native import Parser
from headrace.broker import Session, SessionLimits
from headrace.client import Client
from headrace.errors import ProtocolError
from headrace.sim.clock import SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

_INFO = (
    b'INFO {"server_id":"SIM","server_name":"SIM","version":"2.12.0","proto":1,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":%d}\r\n'
)
#: A stall is longer than the timeout of requests.
_STALL_S_MAX = 12.0


class _AnonymousIdentity:
    user, account, permissions = "", "$G", None


class _HostedBroker(SimBroker):
    """A server that reports whether it is idle."""

    @property
    def is_busy(self) -> bool:
        return bool(self._pending_calls) or bool(self.disk.get_ready_queues())


class SimServerConnection:
    """The server's end of a connection."""

    client_ip = "sim"

    def __init__(self, host: SimHost, cid: int, on_data: Callable[[bytes], None]) -> None:
        self._host = host
        self._on_data = on_data
        self.session = Session(host.broker.router, self, cid, SessionLimits(), False)
        self._parser = Parser(self.session)
        self.open = True

    def feed(self, data: bytes) -> None:
        """Deliver bytes from the client."""
        if not self.open:
            return
        try:
            self._parser.feed(data)
        except ProtocolError:
            self.close()
        self._host.flush()

    def flush_output(self) -> None:
        """Put the session's output in transit."""
        if data := self.session.drain():
            self._on_data(bytes(data))

    def close(self) -> None:
        if self.open:
            self.open = False
            self.session.close()
            if self.session in self.session.router.dirty:
                self.session.router.dirty.remove(self.session)

    # Interface for the session

    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> _AnonymousIdentity:
        return _AnonymousIdentity()

    def on_connected(self) -> None:
        """Do nothing."""

    def info(self) -> bytes:
        return b""

    def flush(self) -> None:
        """Do nothing: the output is collected at the end of the turn."""


class SimHost:
    """A machine with one server, which may be down. It is the environment of a `SimLoop`."""

    def __init__(
        self, options: StoreOptions, clock: SimClock, rng: Random, *, stall_share: float = 0
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.stall_share = stall_share
        self._options = options
        self._cids = 0
        self._step_ns = 0
        self._transports: dict[int, SimTransport] = {}
        self.is_up = False
        self.start_server(SimDisk(rng.randrange(1 << 30)))

    # Environment of a loop

    def next_deadline(self) -> int | None:
        if not self.is_up:
            return None
        deadline_ns = self.broker.timers.next_deadline()
        if self.broker.is_busy:
            return self._step_ns if deadline_ns is None else min(deadline_ns, self._step_ns)
        return deadline_ns

    def run_due(self) -> None:
        self.broker.timers.run_due()
        if self.clock.now_ns() >= self._step_ns:
            for _ in range(self.rng.randrange(1, 16)):
                if not self.broker.step():
                    break
            self._step_ns = self.clock.now_ns() + self.rng.randrange(1_000, 200_000)
        self.flush()

    def flush(self) -> None:
        """Put the output of all sessions in transit."""
        dirty = self.broker.router.dirty
        while dirty:
            session = dirty.pop(0)
            session.transport.flush_output()

    # Start and stop

    def start_server(self, disk: SimDisk) -> None:
        """Start the server on a disk."""
        self.broker = _HostedBroker(disk, self._options, self.clock, name="SIM")
        self.broker.start()
        self.is_up = True

    def stop_server(self) -> SimDisk:
        """Stop the server with all its connections; return the disk as it is at this moment."""
        self.is_up = False
        for transport in list(self._transports.values()):
            transport.disconnect()
        return self.broker.disk

    def accept(self, transport: SimTransport, on_data: Callable[[bytes], None]) -> SimServerConnection:
        if not self.is_up:
            raise ConnectionRefusedError("the server is down")
        self._cids += 1
        self._transports[id(transport)] = transport
        on_data(_INFO % self._cids)
        return SimServerConnection(self, self._cids, on_data)

    def remove_transport(self, transport: SimTransport) -> None:
        self._transports.pop(id(transport), None)


class SimTransport(Transport):
    """The client's end of a connection: what nats-py reads from and writes to."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._connection: SimServerConnection | None = None
        self._to_server = bytearray()
        self._to_client = bytearray()
        self._received = bytearray()
        self._read_waiter: asyncio.Future[None] | None = None
        self._closed = True
        #: Its process is gone: nothing is sent any more, whatever the program still tries.
        self.process_dead = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._close()  # nats-py reconnects without closing if a connection stalls at its start
        await asyncio.sleep(self._host.rng.uniform(0.001, 0.5))
        if self.process_dead:
            self._read_waiter = asyncio.get_running_loop().create_future()
            await self._read_waiter
        for buffer in (self._to_server, self._to_client, self._received):
            buffer.clear()
        self._connection = self._host.accept(self, self._on_server_data)
        self._closed = False

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: Any, buffer_size: int, connect_timeout: int
    ) -> None:
        raise ConnectionRefusedError("TLS is not simulated")

    def write(self, payload: bytes) -> None:
        if self._closed or self.process_dead or not payload:
            return
        if not self._to_server:
            self._schedule(self._deliver_to_server, self._connection)
        self._to_server += payload

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def drain(self) -> None:
        """Do nothing: there is always space."""

    async def read(self, buffer_size: int) -> bytes:
        await self._wait_for_data()
        data = bytes(self._received[:buffer_size])
        del self._received[:buffer_size]
        return data

    async def readline(self) -> bytes:
        while (end := self._received.find(b"\n") + 1) == 0:
            if self._closed:
                raise ConnectionResetError("the connection was lost")
            size = len(self._received)
            await self._wait_for_data(size)
        line = bytes(self._received[:end])
        del self._received[:end]
        return line

    async def wait_closed(self) -> None:
        """Do nothing: it is closed at once."""

    def close(self) -> None:
        self._close()

    def at_eof(self) -> bool:
        return self._closed and not self._received

    def __bool__(self) -> bool:
        return True

    def disconnect(self) -> None:
        """Break the connection: part of the bytes in transit arrives, the rest never does."""
        if self._connection is not None and self._to_server:
            with suppress(ProtocolError):
                self._connection.feed(
                    bytes(self._to_server[: self._host.rng.randrange(len(self._to_server) + 1)])
                )
        self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._closed = True
        self._host.remove_transport(self)
        if connection is not None:
            connection.close()
        self._notify_reader()

    def _schedule(
        self, callback: Callable[[SimServerConnection | None], None], connection: SimServerConnection | None
    ) -> None:
        rng = self._host.rng
        stalls = rng.random() < self._host.stall_share
        delay_s = rng.uniform(1, _STALL_S_MAX) if stalls else rng.uniform(0.000_05, 0.002)
        asyncio.get_running_loop().call_later(delay_s, callback, connection)

    def _deliver_to_server(self, connection: SimServerConnection | None) -> None:
        """Deliver all or part of what the client wrote to the server."""
        if connection is None or connection is not self._connection:
            return
        data = self._take_some(self._to_server)
        if self._to_server:
            self._schedule(self._deliver_to_server, connection)
        connection.feed(data)
        if not connection.open:
            self._close()

    def _on_server_data(self, data: bytes) -> None:
        if not self._to_client:
            asyncio.get_running_loop().call_later(
                self._host.rng.uniform(0.000_05, 0.002), self._deliver_to_client
            )
        self._to_client += data

    def _deliver_to_client(self) -> None:
        """Deliver what the server sent to the client."""
        if self._closed:
            return
        self._received += self._take_some(self._to_client)
        if self._to_client:
            asyncio.get_running_loop().call_later(
                self._host.rng.uniform(0.000_05, 0.002), self._deliver_to_client
            )
        self._notify_reader()

    def _take_some(self, buffer: bytearray) -> bytes:
        rng = self._host.rng
        size = len(buffer) if rng.random() < 0.9 else rng.randrange(len(buffer) + 1)
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    async def _wait_for_data(self, more_than: int = 0) -> None:
        while len(self._received) <= more_than and not self._closed:
            self._read_waiter = asyncio.get_running_loop().create_future()
            await self._read_waiter

    def _notify_reader(self) -> None:
        if self._read_waiter is not None and not self._read_waiter.done():
            self._read_waiter.set_result(None)


class _InboxNames:
    """Sequential names for inboxes."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._count = 0

    def next(self) -> bytearray:
        self._count += 1
        return bytearray(b"%06d%016d" % (self._owner, self._count))


class SimConnection(Client):
    """`headrace.client`'s connection, to a simulated server."""

    def __init__(self, host: SimHost, number: int) -> None:
        super().__init__()
        self.transport = SimTransport(host)
        self._transport = self.transport
        self._nuid = _InboxNames(number)  # type: ignore[assignment]

    async def open(self) -> None:
        """Connect, and reconnect whenever the connection breaks.

        Uses the loop's time, which nats-py's own waits do not.
        """
        await self.connect(
            "nats://sim:4222",
            dont_randomize=True,
            reconnect_time_wait=0,
            max_reconnect_attempts=-1,
            ping_interval=10**9,
            connect_timeout=30,
            error_cb=_ignore_error,
        )


async def _ignore_error(error: Exception) -> None:
    """Ignore the error: important ones surface in the program's own calls."""
