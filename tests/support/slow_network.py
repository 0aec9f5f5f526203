"""A TCP proxy that behaves like a slow network between a site and the nodes of a cluster.

Each direction carries a number of bytes a second, shared by all connections, and delivers them half a round trip later.
The network can break: cut every connection at a byte, refuse new ones, or deliver nothing for a while. The proxy never
looks at the bytes, so they may be compressed or encrypted. It runs in a thread of its own, which all networks of a
`SlowNetworks` share; methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

CHUNK = 512
#: Segments and buffers of a network, not of loopback, where a socket takes megabytes before its sender waits.
_SEGMENT = 1400
_BUFFER = 4096
_CONNECT_S = 5.0

T = TypeVar("T")


class SlowNetworks:
    """Runs networks in one thread; a context manager that closes them all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._networks: list[SlowNetwork] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, targets: list[int], *, bits_per_s: float, round_trip_s: float) -> SlowNetwork:
        """Return a new network, with one port for each port in `targets`."""
        network = SlowNetwork(self._loop, targets, bits_per_s / 8, round_trip_s / 2)
        self._networks.append(network)
        return network

    def __enter__(self) -> SlowNetworks:
        return self

    def __exit__(self, *_: object) -> None:
        for network in self._networks:
            network.close()
        asyncio.run_coroutine_threadsafe(_end_other_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Direction:
    """What one direction of a network carries: chunks one after another, each for as long as its bytes take."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes = 0
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    async def carry(self, size: int) -> None:
        """Wait until this many bytes have been sent."""
        self._free_s = max(self._free_s, time.monotonic()) + size / self._bytes_per_s
        self.bytes += size
        await asyncio.sleep(self._free_s - time.monotonic())


class SlowNetwork:
    """The network of one site. It dials `ports`, each of which leads to one target."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, targets: list[int], bytes_per_s: float, delay_s: float
    ) -> None:
        self.up, self.down = Direction(bytes_per_s), Direction(bytes_per_s)
        self.delay_s = delay_s
        self.connections = 0  # made since the start
        self._loop = loop
        self._is_refusing = False
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None] | None] = set()  # asyncio itself may drop a task that waits
        self._silent_until_s = 0.0
        listeners = [_listen() for _ in targets]
        self.ports: list[int] = [listener.getsockname()[1] for listener in listeners]
        self._servers = [
            self._run(self._serve(listener, target))
            for listener, target in zip(listeners, targets, strict=True)
        ]

    def cut(self, after_bytes: int) -> None:
        """Cut every connection after this many further bytes, or at once with 0."""
        self._call(lambda: [each.cut(after_bytes) for each in list(self._open)])

    def set_refusing(self, is_refusing: bool) -> None:
        """Refuse new connections, or accept them again."""
        self._is_refusing = is_refusing

    def silence(self, seconds: float) -> None:
        """Deliver nothing for this long; afterwards what was sent meanwhile arrives."""
        self._silent_until_s = time.monotonic() + seconds

    async def await_delivery(self, due_s: float) -> None:
        """Wait until a chunk that is due at this time arrives."""
        while (wait_s := max(due_s, self._silent_until_s) - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)

    def close(self) -> None:
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)
        self._is_refusing = True
        self.cut(0)

    def _call(self, function: Callable[[], Any]) -> None:
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set_result(None)))
        done.result()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self, listener: socket.socket, target: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._tasks.add(asyncio.current_task())
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(reader, writer, target)
            writer.transport.abort()
            self._tasks.discard(asyncio.current_task())

        return await asyncio.start_server(accept, sock=listener, limit=CHUNK)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        if self._is_refusing:
            return
        dial = asyncio.open_connection(sock=_dialled(target), limit=CHUNK)
        far_reader, far_writer = await asyncio.wait_for(dial, _CONNECT_S)
        self.connections += 1
        connection = _Connection(self, writer, far_writer)
        self._open.add(connection)
        try:
            await asyncio.gather(
                connection.pump(reader, far_writer, self.up), connection.pump(far_reader, writer, self.down)
            )
        finally:
            self._open.discard(connection)
            connection.abort()


class _Connection:
    """One connection through a network; the end of either side ends it."""

    def __init__(self, network: SlowNetwork, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._network = network
        self._writers = (near, far)
        self._bytes_left: int | None = None

    def cut(self, after_bytes: int) -> None:
        self._bytes_left = after_bytes
        if not after_bytes:
            self.abort()

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Carry one direction until the connection ends."""
        # About as many chunks as the network carries in half a round trip, so that it is neither empty nor endless.
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        delivery = asyncio.ensure_future(self._deliver(waiting, writer))
        try:
            while data := await _or_end(reader.read(CHUNK)):
                await direction.carry(len(data))
                await waiting.put((time.monotonic() + self._network.delay_s, data))
            await waiting.put((time.monotonic() + self._network.delay_s, b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(
        self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        """Write each chunk when it arrives; the empty one ends the connection."""
        while True:
            due_s, data = await waiting.get()
            await self._network.await_delivery(due_s)
            if self._bytes_left is not None:
                data = data[: self._bytes_left]
                self._bytes_left -= len(data)
            if not data or writer.is_closing():
                self.abort()
                return
            writer.write(data)
            await _or_end(writer.drain())


async def _end_other_tasks() -> None:
    """Cancel the tasks of connections that are ending, and wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _or_end(work: Awaitable[T]) -> T | bytes:
    """Return the result, b"" if the connection is gone."""
    try:
        return await work
    except OSError:
        return b""


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def _dialled(port: int) -> socket.socket:
    """Return a connected socket; loopback answers at once."""
    dialled = socket.socket()
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    try:
        dialled.connect(("127.0.0.1", port))
    except OSError:
        dialled.close()
        raise
    return dialled
