"""The input of a leafnode connection: how much one turn parses, what a stranger may send, and pauses."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import cast

import pytest

from headrace.config.leafnode_options import LeafnodeCompressionOptions, LeafnodeOptions
from headrace.net import turn_queue
from headrace.net.leafnode import leafnode_input
from headrace.net.leafnode.leafnode_compression import LeafnodeCompression
from headrace.net.leafnode.leafnode_input import LeafnodeInput
from headrace.net.turn_queue import TurnQueue
from headrace.protocol.leafnode import UNAUTHORIZED
from headrace.protocol.s2_stream import HEADER, S2Reader, S2Writer
from headrace.server import Server

PIECE_COST_S = 0.0005


class FakeTransport:
    """A socket; `is_reading` as the connection wants it."""

    is_reading = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Input(LeafnodeInput):
    """Counts what is parsed."""

    def __init__(self, *, compressed: bool = True) -> None:
        compression = LeafnodeCompression(LeafnodeCompressionOptions())
        if compressed:
            compression.start()
        self.queue = TurnQueue(asyncio.get_running_loop())
        super().__init__(compression, lambda: False, self.queue)
        self.transport = FakeTransport()
        self._transport = cast("asyncio.Transport", self.transport)
        self.parsed = 0
        self.failed: str | None = None
        self.was_closed = self.waiting = False
        self.trusted = True

    def parse(self, data: bytes) -> None:
        self.parsed += len(data)

    def fail(self, text: str | None) -> None:
        self.failed, self._closing = text, True

    def close(self) -> None:
        self.was_closed = self._closing = True

    @property
    def is_trusted(self) -> bool:
        return self.trusted

    @property
    def is_waiting(self) -> bool:
        return self.waiting

    def receive(self, *records: bytes) -> None:
        """Receive TLS records in one turn."""
        self.start_slice()
        for record in records:
            self.on_decrypted(record)


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes half a millisecond."""
    ticks = count()
    for module in (leafnode_input, turn_queue):
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) * PIECE_COST_S)


def compress(size: int) -> bytes:
    return S2Writer().encode(b"x" * size, compress=True)


async def finish(input_: Input) -> int:
    """Let the loop run until nothing is left; return the largest part that one turn parsed."""
    most, before = input_.parsed, input_.parsed
    while len(input_.queue):
        await asyncio.sleep(0)
        most, before = max(most, input_.parsed - before), input_.parsed
    return most


async def test_one_turn_parses_a_slice() -> None:
    input_ = Input()
    input_.receive(compress(1024 * 1024))
    assert 0 < input_.parsed < 200 * 1024
    assert not input_.transport.is_reading
    assert await finish(input_) < 400 * 1024
    assert input_.parsed == 1024 * 1024
    assert input_.transport.is_reading


async def test_the_records_of_one_read_share_a_slice() -> None:
    input_ = Input()
    blob = compress(8 * 1024 * 1024)
    step = len(blob) // 16 + 1
    input_.receive(*(blob[at : at + step] for at in range(0, len(blob), step)))
    assert input_.parsed < 200 * 1024
    assert len(input_.queue) == 1
    assert await finish(input_) < 400 * 1024
    assert input_.parsed == 8 * 1024 * 1024


async def test_a_slice_does_not_end_pauses_of_others() -> None:
    input_ = Input()
    input_.receive(compress(1024 * 1024))
    input_.pause_reading()
    await finish(input_)
    assert input_.parsed < 1024 * 1024
    assert not input_.transport.is_reading
    input_.resume_reading()
    await finish(input_)
    assert input_.parsed == 1024 * 1024
    assert input_.transport.is_reading


async def test_nothing_is_parsed_while_a_password_is_checked() -> None:
    input_ = Input()
    input_.receive(compress(1024 * 1024))
    input_.waiting, parsed = True, input_.parsed
    await finish(input_)
    input_.resume_reading()
    await finish(input_)
    assert input_.parsed == parsed
    assert not input_.transport.is_reading
    input_.waiting = False
    input_.continue_input()
    await finish(input_)
    assert input_.parsed == 1024 * 1024


@pytest.mark.parametrize("compressed", [True, False])
async def test_input_before_the_end_is_parsed(compressed: bool) -> None:
    input_ = Input(compressed=compressed)
    input_.receive(compress(1024 * 1024) if compressed else b"x" * 1024 * 1024)
    input_.end_input()
    assert not input_.was_closed
    await finish(input_)
    assert input_.parsed == 1024 * 1024
    assert input_.was_closed


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_stranger_may_send_little(compressed: bool) -> None:
    input_ = Input(compressed=compressed)
    input_.trusted = False
    data = b"x" * 128 * 1024
    input_.receive(compress(len(data)) if compressed else data)
    await finish(input_)
    assert input_.failed == UNAUTHORIZED
    assert input_.parsed <= leafnode_input.UNTRUSTED_MAX


async def test_a_large_chunk_of_a_stranger_is_not_kept() -> None:
    input_ = Input()
    input_.trusted = False
    input_.receive(HEADER + bytes([1]) + (4 << 20).to_bytes(3, "little") + b"x")
    assert input_.failed is not None


async def test_a_stranger_on_a_socket_is_disconnected() -> None:
    leafnodes = LeafnodeOptions(host="127.0.0.1", port=-1)
    async with Server(leafnodes=leafnodes) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.leafnode_port)
        async with asyncio.timeout(90):
            await reader.readline()
            writer.write(b'INFO {"compression":"s2_fast"}\r\n')
            said = await reader.readexactly(len(HEADER))
            assert said == HEADER
            writer.write(S2Writer().encode(b"PING\r\n" * 20_000, compress=True))
            rest = await reader.read()
        received = S2Reader()
        received.feed(rest)
        text = b"".join(iter(received.next, None))
        assert text.endswith(b"-ERR 'Authorization Violation'\r\n")
        assert text.count(b"PONG") <= leafnode_input.UNTRUSTED_MAX // 6
        writer.close()
        await writer.wait_closed()
