"""How much output of a leafnode connection waits: about as much as the network sends in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.net.leafnode.output_queue import (
    MAX_BYTES,
    MIN_BYTES,
    START_BYTES,
    OutputQueue,
    read_unsent_bytes,
)


class Transport:
    """Keeps what is written until `send` is called."""

    def __init__(self) -> None:
        self.pending = self.high = 0
        self.is_fast = self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def write(self, data: bytes) -> None:
        self.pending += 0 if self.is_fast else len(data)

    def send(self, size: int) -> None:
        self.pending -= size

    def get_write_buffer_size(self) -> int:
        return self.pending

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> None:
        return None


class Session:
    output_limit = 0


class Clock:
    """The time of the running loop, which only moves by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


class Timers:
    """The timers of the running loop, which are run by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waiting: list[tuple[float, asyncio.Handle]] = []
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(self._loop, "call_later", self._call_later)

    def _call_later(
        self, delay_s: float, callback: Callable[..., object], *arguments: object
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, arguments, self._loop)
        self._waiting.append((delay_s, handle))
        return handle

    def run(self) -> list[float]:
        """Run the timers that were not cancelled; return their delays."""
        ran, self._waiting = [each for each in self._waiting if not each[1].cancelled()], []
        for _, handle in ran:
            handle._run()
        return [delay_s for delay_s, _ in ran]


def make(deadline_s: float = 10.0) -> tuple[OutputQueue, Any, Any, list[str]]:
    transport: Any = Transport()
    session: Any = Session()
    stalled: list[str] = []
    return OutputQueue(transport, session, deadline_s, stalled.append), transport, session, stalled


def fill_and_drain(queue: OutputQueue, transport: Transport, clock: Clock, size: int, seconds: float) -> None:
    queue.write(bytes(size))
    queue.on_full()
    transport.send(size)
    clock.now_s += seconds
    queue.on_drained()


async def test_a_slow_network_gets_a_short_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    queue, transport, session, _ = make()
    for _ in range(4):
        fill_and_drain(queue, transport, clock, 10**6, 0.01)
    assert session.output_limit == MAX_BYTES
    for _ in range(5):
        fill_and_drain(queue, transport, clock, 50_000, 20.0)
    assert session.output_limit == transport.high == MIN_BYTES


async def test_the_queue_follows_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    queue, transport, session, _ = make()
    assert session.output_limit == transport.high == START_BYTES
    fill_and_drain(queue, transport, clock, 200_000, 1.0)
    assert session.output_limit == 4 * START_BYTES
    fill_and_drain(queue, transport, clock, 200_000, 1.0)
    assert session.output_limit == 200_000
    fill_and_drain(queue, transport, clock, 10_000, 1.0)
    assert session.output_limit == 50_000, "a quarter, so that the transport is not paused again at once"
    fill_and_drain(queue, transport, clock, 10**6, 0.01)
    assert session.output_limit == 200_000


async def test_a_network_that_takes_everything_gets_a_long_queue() -> None:
    queue, transport, session, _ = make()
    transport.is_fast = True
    for _ in range(10):
        queue.write(bytes(session.output_limit))
    assert session.output_limit == MAX_BYTES
    queue.write(b"a little")
    assert session.output_limit == MAX_BYTES


async def test_a_connection_stays_while_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(monkeypatch)
    queue, transport, _, stalled = make(deadline_s=7.0)
    queue.write(bytes(100_000))
    queue.on_full()
    for _ in range(10):
        transport.send(10)
        assert timers.run() == [7.0]
        assert stalled == []
    assert timers.run() == [7.0]
    assert stalled == ["write deadline exceeded"]
    assert timers.run() == []


async def test_the_deadline_ends_with_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(monkeypatch)
    queue, _, _, stalled = make(deadline_s=7.0)
    queue.write(bytes(100_000))
    queue.on_full()
    queue.cancel_deadline()
    assert timers.run() == []
    assert stalled == []


async def test_what_the_system_holds_is_not_sent() -> None:
    """A peer that reads nothing has confirmed nothing beyond its own buffer."""
    reading = asyncio.Event()

    async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stay, "127.0.0.1", 0, limit=1024)
    async with server, asyncio.timeout(90):
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        assert read_unsent_bytes(writer.transport) == 0
        writer.write(bytes(20_000_000))
        await asyncio.sleep(0)
        assert read_unsent_bytes(writer.transport) > 0
        reading.set()
        await writer.drain()
        while read_unsent_bytes(writer.transport):
            await asyncio.sleep(0.01)
        writer.close()
        await writer.wait_closed()


async def test_a_server_whose_lease_has_ended_sends_nothing_to_other_servers() -> None:
    """It was suspended, and wakes with deliveries that wait for leafnodes."""
    transport: Any = Transport()
    session: Any = Session()
    may_send = True
    queue = OutputQueue(transport, session, 10.0, print, lambda: may_send)
    queue.write(b"before")
    may_send = False
    queue.write(b"after")
    assert (transport.pending, transport.is_aborted) == (6, True)
