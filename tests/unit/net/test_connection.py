"""Connections on real sockets: isolation from each other, TLS in every order, limits and backpressure."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace.net import write_scheduler
from headrace.net.connection import Connection
from support.sockets import TIMEOUT_S, Start, Wire, listeners, until


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with listeners() as begin:
        yield begin


async def test_info_has_the_fields_in_the_order_of_nats_server(start: Start) -> None:
    listener = await start(jetstream=True, user="a", password="b", domain="d")
    wire = await Wire.dial(
        listener, b'CONNECT {"verbose":false,"user":"a","pass":"b","protocol":1}\r\nPING\r\n'
    )
    order = "server_id server_name version proto go host port headers auth_required max_payload jetstream client_id"
    assert list(wire.info) == [*order.split(), "client_ip", "domain", "api_lvl"]
    assert wire.info["port"] == listener.port
    assert await wire.line() == b"PONG\r\n"
    second = json.loads((await wire.line()).removeprefix(b"INFO "))
    assert list(second) == [
        *order.split(),
        "client_ip",
        "domain",
        "connect_info",
        "remote_account",
        "api_lvl",
    ]
    await wire.close()


@pytest.mark.parametrize("slice_s", [write_scheduler.SLICE_S, 0.0])
async def test_large_messages_to_many_arrive_whole_and_in_order(
    start: Start, slice_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_scheduler, "SLICE_S", slice_s)
    listener = await start()
    readers = [await Wire.dial(listener) for _ in range(5)]
    for reader in readers:
        assert await reader.ask(b"SUB a 1\r\n") == b""
    sizes = (10, 300_000, 20_000, 0, 900_000, 1)
    writer = await Wire.dial(listener)
    writer.send(b"".join(b"PUB a %d\r\n%b\r\n" % (size, b"x" * size) for size in sizes))
    for reader in readers:
        for size in sizes:
            assert await reader.line() == b"MSG a 1 %d\r\n" % size
            assert await reader.line() == b"x" * size + b"\r\n"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"NONSENSE\r\n", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"\x16\x03\x01", b"-ERR 'Unknown Protocol Operation'\r\n"),
        (b"PUB a 9999999\r\n", b"-ERR 'Maximum Payload Violation'\r\n"),
        (b"SUB " + b"a" * 5000, b"-ERR 'maximum control line exceeded'\r\n"),
        (b"PUB a x\r\n", b""),
        (b"CONNECT {\r\n", b""),
        (b"-ERR 'no'\r\n", b""),
    ],
)
async def test_a_malformed_peer_ends_alone(start: Start, said: bytes, answer: bytes) -> None:
    listener = await start()
    good, bad = await Wire.dial(listener), await Wire.dial(listener)
    assert await good.ask(b"SUB a 1\r\n") == b""
    assert await bad.ask(b"SUB b 1\r\n") == b""
    bad.send(said)
    assert await bad.rest() == answer
    assert await good.ask(b"PUB a 2\r\nhi\r\n") == b"MSG a 1 2\r\nhi\r\n"
    await until(lambda: len(listener.connections) == 1)
    assert listener.accounts.subscriptions == 1
    await good.close()
    await bad.close()


async def test_an_error_inside_the_server_ends_only_that_connection(start: Start) -> None:
    class Broken:
        def on_message(self, *message: object) -> None:
            raise RuntimeError("a fault of ours")

    listener = await start()
    listener.accounts.main.router.subscribe_internal(b"broken", Broken())
    good, bad = await Wire.dial(listener), await Wire.dial(listener)
    bad.send(b"PUB broken 0\r\n\r\n")
    assert await bad.rest() == b""
    assert await good.ask(b"") == b""
    await good.close()
    await bad.close()


async def test_what_was_asked_before_the_end_of_input_is_answered(start: Start) -> None:
    wire = await Wire.dial(await start(), b'CONNECT {"verbose":false}\r\nPING\r\n')
    wire.writer.write_eof()
    assert await wire.rest() == b"PONG\r\n"
    await wire.close()


async def test_too_many_connections(start: Start) -> None:
    listener = await start(max_connections=2)
    wires = [await Wire.dial(listener) for _ in range(2)]
    await wires[0].ask(b"")
    third = await Wire.dial(listener, b"")
    assert await third.rest() == b"-ERR 'maximum connections exceeded'\r\n"
    for wire in (*wires, third):
        await wire.close()


async def test_messages_larger_than_the_shared_buffer(start: Start) -> None:
    listener = await start(max_payload=4 << 20)
    one, two = await Wire.dial(listener), await Wire.dial(listener)
    await one.ask(b"SUB big 1\r\n")
    payload = bytes(range(256)) * 8192
    two.send(b"PUB big %d\r\n" % len(payload) + payload + b"\r\nPUB big 2\r\nhi\r\n")
    async with asyncio.timeout(TIMEOUT_S):
        seen = await one.reader.readuntil(b"MSG big 1 2\r\nhi\r\n")
    assert payload in seen
    await one.close()
    await two.close()


def find_connections() -> list[object]:
    return [found for found in gc.get_objects() if isinstance(found, Connection)]


@pytest.mark.parametrize("end", ["client closes", "server aborts", "protocol error"])
async def test_closed_connections_are_freed_without_the_garbage_collector(start: Start, end: str) -> None:
    """Old objects are frozen, so the collector would find their cycles only in a full collection, which takes long."""
    listener = await start()
    wires = [await Wire.dial(listener) for _ in range(3)]
    for wire in wires:
        await wire.ask(b"SUB a 1\r\nSUB b.> 2\r\n")
    gc.collect()
    before = len(find_connections())
    gc.disable()
    try:
        for wire in wires:
            if end == "protocol error":
                wire.send(b"NONSENSE\r\n")
            elif end == "server aborts":
                listener.connections[wire.info["client_id"]].abort()
            else:
                await wire.close()
        await until(lambda: not listener.connections)
        await until(lambda: len(find_connections()) <= before - len(wires))
    finally:
        gc.enable()
    for wire in wires:
        await wire.close()


class BusyDisk:
    """A disk that is behind; `count` returns how many bytes wait for it."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    @property
    def pending_bytes(self) -> int:
        return self._count()

    def is_high(self) -> bool:
        return False

    def on_low(self, call: Callable[[], None]) -> None:
        pass


class TestPressure:
    async def flood(self, publisher: Wire, count: int, size: int) -> None:
        chunk = b"PUB flood %d\r\n%s\r\n" % (size, b"x" * size)
        for _ in range(count):
            publisher.writer.write(chunk)
            await publisher.writer.drain()

    async def test_a_slow_consumer_is_cut_without_a_word(self, start: Start) -> None:
        listener = await start(max_pending=1 << 20)
        slow, publisher = await Wire.dial(listener), await Wire.dial(listener)
        await slow.ask(b"SUB flood 1\r\n")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(TIMEOUT_S):
            while listener.backpressure.slow_consumers == 0:
                await self.flood(publisher, 20, 100_000)
        await until(lambda: len(listener.connections) == 1)
        assert await publisher.ask(b"") == b""
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert b"-ERR" not in await slow.rest()
        await slow.close()
        await publisher.close()

    async def test_a_blocked_write_has_a_deadline(self, start: Start) -> None:
        listener = await start(write_deadline_s=0.1)
        slow, publisher = await Wire.dial(listener), await Wire.dial(listener)
        await slow.ask(b"SUB flood 1\r\n")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await self.flood(publisher, 200, 100_000)
        await until(lambda: listener.backpressure.slow_consumers == 1)
        assert await publisher.ask(b"") == b""
        await slow.close()
        await publisher.close()

    async def test_publishers_wait_while_the_disk_is_behind(self, start: Start) -> None:
        """Only those whose messages are written to it: not a client that pings or publishes elsewhere."""
        listener = await start()
        wire, idle = await Wire.dial(listener), await Wire.dial(listener)
        await wire.ask(b"")
        await idle.ask(b"")
        session = next(
            c.session for c in listener.connections.values() if c.session.cid == wire.info["client_id"]
        )
        disk: Any = BusyDisk(lambda: session.in_msgs)
        listener.backpressure.disk = disk
        listener.backpressure.pause_publishers()
        assert await wire.ask(b"") == b""
        assert await wire.ask(b"PUB a 0\r\n\r\n") == b"", "what it sent first is still read, then it waits"
        wire.send(b"PUB a 0\r\n\r\n" * 10)
        for _ in range(3):
            assert await idle.ask(b"PUB a 0\r\n\r\n") == b""
        assert session.in_msgs == 1
        listener.backpressure.resume_publishers()
        await until(lambda: session.in_msgs == 11)
        await wire.close()
        await idle.close()

    async def test_who_adds_to_large_outputs_waits_for_them(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listener = await start()
        publisher, modest, reader = [await Wire.dial(listener) for _ in range(3)]
        await reader.ask(b"SUB flood 1\r\n")
        monkeypatch.setattr(write_scheduler.WriteScheduler, "has_queued_output", True)
        await publisher.ask(b"PUB flood 5000\r\n%s\r\n" % (b"x" * 5000))
        publisher.send(b"PUB flood 0\r\n\r\n")
        for _ in range(3):
            assert await modest.ask(b"PUB flood 2\r\nok\r\n") == b"", "who brings little is read from"
        heard = await reader.ask(b"")
        assert heard.count(b"MSG flood 1 2\r\n") == 3
        assert b"MSG flood 1 0\r\n" not in heard
        monkeypatch.undo()
        await modest.ask(
            b"PUB flood 20000\r\n%s\r\n" % (b"x" * 20_000)
        )  # large: after its time slice the others continue
        lines = [await reader.line() for _ in range(3)]
        assert lines[0] == b"MSG flood 1 20000\r\n"
        assert lines[2] == b"MSG flood 1 0\r\n"


class TestLameDuck:
    async def test_clients_are_told_and_sent_away(self, start: Start) -> None:
        listener = await start(lame_duck_grace_s=0.05, lame_duck_duration_s=0.1)
        new = await Wire.dial(listener, b'CONNECT {"verbose":false,"protocol":1}\r\n')
        old = await Wire.dial(listener)
        new.send(b"PING\r\n")
        assert await new.line() == b"PONG\r\n"
        assert b'"connect_info":true' in await new.line()
        await old.ask(b"")
        duck = asyncio.ensure_future(listener.run_lame_duck())
        told = json.loads((await new.line()).removeprefix(b"INFO "))
        assert told["ldm"] is True
        assert await new.rest() == b""
        assert await old.rest() == b""
        await duck
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", listener.port)
        await new.close()
        await old.close()
