"""Timeouts of clients: pings, authentication, and the cost of idle connections."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.net.timer_wheel import SLOT_S, TimerWheel
from support.processes import serving
from support.sockets import CONNECT, Start, Wire, listeners, until

IDLE = 1000
IDLE_BYTES_MAX = 8 * 1024


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with listeners() as begin:
        yield begin


class TestPings:
    async def test_a_client_that_does_not_reply_is_stale(self, start: Start) -> None:
        listener = await start(ping_interval_s=0.05)
        wire = await Wire.dial(listener)
        assert await wire.rest() == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
        assert listener.registry.stale_connections == 1
        await wire.close()

    async def test_a_client_that_replies_to_pings_stays_connected(self, start: Start) -> None:
        """Replies more often than the limit; a pause of the machine costs one of its replies, not all."""
        listener = await start(ping_interval_s=0.05, ping_max=8)
        wire = await Wire.dial(listener)
        for _ in range(10):
            assert await wire.line() == b"PING\r\n"
            wire.send(b"PONG\r\n")
        await wire.close()

    async def test_a_client_that_never_sends_is_stale_too(self, start: Start) -> None:
        wire = await Wire.dial(await start(ping_interval_s=0.05), b"")
        assert await wire.rest() == b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
        await wire.close()

    async def test_an_active_client_gets_no_ping(self, start: Start) -> None:
        listener = await start(ping_interval_s=0.2)
        wire = await Wire.dial(listener)
        assert await wire.line() == b"PING\r\n"
        wire.send(b"PONG\r\n")
        session = next(iter(listener.connections.values())).session
        loop, rounds = asyncio.get_running_loop(), 0
        async with asyncio.timeout(60):
            while rounds < 10:
                begun = loop.time()
                wire.send(b"PUB a 0\r\n\r\n")
                await asyncio.sleep(0.05)
                rounds += 1
                if (
                    loop.time() - begun > 0.1
                ):  # the machine paused, so the client was idle and may have got a PING
                    wire.send(b"PONG\r\n")
                    rounds = 0
        assert session.pings_out == 0
        await wire.close()


@pytest.mark.parametrize("said", [b"", b"C", b"CONNECT {"])
async def test_the_silent_and_unproven_are_cut(start: Start, said: bytes) -> None:
    listener = await start(user="a", password="b", auth_timeout_s=0.1)
    wire = await Wire.dial(listener, said)
    assert await wire.rest() == b"-ERR 'Authentication Timeout'\r\n"
    await until(lambda: not listener.connections)
    await wire.close()


async def test_the_unproven_hold_little(start: Start) -> None:
    listener = await start(user="a", password="b")
    wire = await Wire.dial(listener, b"CONNECT {" + b" " * 1_000_000)
    assert (await wire.rest()) in (b"-ERR 'maximum control line exceeded'\r\n", b"reset")
    await wire.close()


class Timed:
    def __init__(self, number: int) -> None:
        self.timer_id = number
        self.slot = 0
        self.looked: list[float] = []

    def on_timeout(self) -> None:
        self.looked.append(asyncio.get_running_loop().time())


class TestWheel:
    async def test_never_early_and_only_the_last_appointment(self) -> None:
        loop = asyncio.get_running_loop()
        timed = {n: Timed(n) for n in range(3)}
        wheel = TimerWheel(loop, timed.get)
        begin = loop.time()
        wheel.schedule(timed[0], 5.0)
        wheel.schedule(timed[0], 0.05)
        wheel.schedule(timed[1], 0.1)
        wheel.schedule(timed[2], 0.02)
        gone = timed.pop(2)
        await until(lambda: bool(timed[1].looked))
        assert len(timed[0].looked) == len(timed[1].looked) == 1
        assert timed[0].looked[0] - begin >= 0.05
        assert timed[1].looked[0] - begin >= 0.1
        assert gone.looked == []
        wheel.stop()

    async def test_a_stopped_wheel_calls_nobody(self) -> None:
        timed = Timed(1)
        wheel = TimerWheel(asyncio.get_running_loop(), {1: timed}.get)
        wheel.schedule(timed, 0.0)
        wheel.stop()
        await asyncio.sleep(3 * SLOT_S)
        assert timed.looked == []


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_idle_connections_cost_little(tmp_path: Path) -> None:
    """The full measurement, with 5,000 connections and a publisher, is bench/idle.py."""
    with serving(tmp_path, "-a", "127.0.0.1") as server:
        clients: list[socket.socket] = []
        try:
            clients += greeted(server.port, 50)
            before = resident(server.process.pid)
            clients += greeted(server.port, IDLE)
            assert (resident(server.process.pid) - before) / IDLE < IDLE_BYTES_MAX
        finally:
            for client in clients:
                client.close()


def greeted(port: int, count: int) -> list[socket.socket]:
    """Connect clients that have sent CONNECT and got a reply."""
    clients = []
    for number in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        client.sendall(CONNECT + b"SUB _INBOX.%d.* 1\r\nPING\r\n" % number)
        seen = b""
        while b"PONG\r\n" not in seen:
            seen += client.recv(8192)
        clients.append(client)
    return clients
