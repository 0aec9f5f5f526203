"""A simulated server that real clients connect to, over connections that are slow, stall and break.

Owns the bytes on the way between `headrace.client` and a `SimBroker`, and when the broker goes on: a few operations of
its disk at a time, so that others act between them. The client is the real one; only its transport is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import ParseResult

from nats.aio.transport import Transport

from headrace.broker import Limits, Session
from headrace.client import Client
from headrace.errors import ProtocolError
from headrace.kernel import Parser
from headrace.sim.broker import SimBroker
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.store import StoreOptions

_INFO = (
    b'INFO {"server_id":"SIM","server_name":"SIM","version":"2.12.0","proto":1,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":%d}\r\n'
)
#: A stall is longer than requests wait for their answers.
_STALL_S_MAX = 12.0


class _Anybody:
    user, account, permissions = "", "$G", None


class _Server(SimBroker):
    """A server that tells whether it rests."""

    @property
    def busy(self) -> bool:
        return bool(self._soon) or bool(self.disk.busy())


class Link:
    """The server's end of a connection."""

    client_ip = "sim"

    def __init__(self, host: SimHost, cid: int, heard: Callable[[bytes], None]) -> None:
        self._host = host
        self._heard = heard
        self.session = Session(host.broker.hub, self, cid, Limits(), False)
        self._parser = Parser(self.session)
        self.open = True

    def feed(self, data: bytes) -> None:
        """Bytes of the client arrive."""
        if not self.open:
            return
        try:
            self._parser.feed(data)
        except ProtocolError:
            self.close()
        self._host.flush()

    def say(self) -> None:
        """What the session has to say goes on its way."""
        if data := self.session.take():
            self._heard(bytes(data))

    def close(self) -> None:
        if self.open:
            self.open = False
            self.session.close()
            if self.session in self.session.hub.dirty:
                self.session.hub.dirty.remove(self.session)

    # What the session asks of its owner

    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> _Anybody:
        return _Anybody()

    def connected(self) -> None:
        """Nothing to do."""

    def info(self) -> bytes:
        return b""

    def flush(self) -> None:
        """What is to be sent is taken at the end of the turn."""


class SimHost:
    """A machine with one server, which may be down. It is what surrounds a `SimLoop`."""

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
        self.up = False
        self.boot(SimDisk(rng.randrange(1 << 30)))

    # The world around a loop

    def next_deadline(self) -> int | None:
        if not self.up:
            return None
        deadline_ns = self.broker.timers.next_deadline()
        if self.broker.busy:
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
        """What sessions have to say goes on its way."""
        dirty = self.broker.hub.dirty
        while dirty:
            session = dirty.pop(0)
            session.owner.say()

    # Its life

    def boot(self, disk: SimDisk) -> None:
        """The server starts on what the disk holds."""
        self.broker = _Server(disk, self._options, self.clock, name="SIM")
        self.broker.start()
        self.up = True

    def fall(self) -> SimDisk:
        """The server is gone and all connections with it; the disk as it is at this moment."""
        self.up = False
        for transport in list(self._transports.values()):
            transport.break_off()
        return self.broker.disk

    def accept(self, transport: SimTransport, heard: Callable[[bytes], None]) -> Link:
        if not self.up:
            raise ConnectionRefusedError("the server is down")
        self._cids += 1
        self._transports[id(transport)] = transport
        heard(_INFO % self._cids)
        return Link(self, self._cids, heard)

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(id(transport), None)


class SimTransport(Transport):
    """The client's end of a connection: what nats-py reads from and writes to."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._link: Link | None = None
        self._out = bytearray()
        self._in = bytearray()
        self._arrived = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._ended = True
        #: Its process is gone: nothing goes out any more, whatever the program's last words are.
        self.dead = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._end()  # nats-py begins anew without closing when a connection stalls at its beginning
        await asyncio.sleep(self._host.rng.uniform(0.001, 0.5))
        if self.dead:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        for way in (self._out, self._in, self._arrived):
            way.clear()
        self._link = self._host.accept(self, self._heard)
        self._ended = False

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: Any, buffer_size: int, connect_timeout: int
    ) -> None:
        raise ConnectionRefusedError("there is no TLS here")

    def write(self, payload: bytes) -> None:
        if self._ended or self.dead or not payload:
            return
        if not self._out:
            self._later(self._deliver, self._link)
        self._out += payload

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def drain(self) -> None:
        """There is always room."""

    async def read(self, buffer_size: int) -> bytes:
        await self._something()
        data = bytes(self._arrived[:buffer_size])
        del self._arrived[:buffer_size]
        return data

    async def readline(self) -> bytes:
        while (end := self._arrived.find(b"\n") + 1) == 0:
            if self._ended:
                raise ConnectionResetError("the connection broke")
            size = len(self._arrived)
            await self._something(size)
        line = bytes(self._arrived[:end])
        del self._arrived[:end]
        return line

    async def wait_closed(self) -> None:
        """It is."""

    def close(self) -> None:
        self._end()

    def at_eof(self) -> bool:
        return self._ended and not self._arrived

    def __bool__(self) -> bool:
        return True

    def break_off(self) -> None:
        """The connection breaks: a part of what is on the way arrives, the rest never does."""
        if self._link is not None and self._out:
            with suppress(ProtocolError):
                self._link.feed(bytes(self._out[: self._host.rng.randrange(len(self._out) + 1)]))
        self._end()

    def _end(self) -> None:
        link, self._link = self._link, None
        self._ended = True
        self._host.forget(self)
        if link is not None:
            link.close()
        self._wake()

    def _later(self, call: Callable[[Link | None], None], link: Link | None) -> None:
        rng = self._host.rng
        stalls = rng.random() < self._host.stall_share
        delay_s = rng.uniform(1, _STALL_S_MAX) if stalls else rng.uniform(0.000_05, 0.002)
        asyncio.get_running_loop().call_later(delay_s, call, link)

    def _deliver(self, link: Link | None) -> None:
        """What the client wrote arrives at the server, all or a part of it."""
        if link is None or link is not self._link:
            return
        data = self._some(self._out)
        if self._out:
            self._later(self._deliver, link)
        link.feed(data)
        if not link.open:
            self._end()

    def _heard(self, data: bytes) -> None:
        if not self._in:
            asyncio.get_running_loop().call_later(self._host.rng.uniform(0.000_05, 0.002), self._arrive)
        self._in += data

    def _arrive(self) -> None:
        """What the server sent arrives at the client."""
        if self._ended:
            return
        self._arrived += self._some(self._in)
        if self._in:
            asyncio.get_running_loop().call_later(self._host.rng.uniform(0.000_05, 0.002), self._arrive)
        self._wake()

    def _some(self, way: bytearray) -> bytes:
        rng = self._host.rng
        size = len(way) if rng.random() < 0.9 else rng.randrange(len(way) + 1)
        data = bytes(way[:size])
        del way[:size]
        return data

    async def _something(self, beyond: int = 0) -> None:
        while len(self._arrived) <= beyond and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Names:
    """Names for inboxes, one after the other."""

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
        self._nuid = _Names(number)  # type: ignore[assignment]

    async def open(self) -> None:
        """Connect, and again whenever the connection breaks. Time is the loop's: nats-py's own waits look elsewhere."""
        await self.connect(
            "nats://sim:4222",
            dont_randomize=True,
            reconnect_time_wait=0,
            max_reconnect_attempts=-1,
            ping_interval=10**9,
            connect_timeout=30,
            error_cb=_quiet,
        )


async def _quiet(error: Exception) -> None:
    """What matters shows in what the program tries."""
