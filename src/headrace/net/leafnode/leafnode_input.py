"""The input of one leafnode connection: decompression in slices, and pauses while others have to catch up.

Owns when the socket is read. Invariant: one turn of the loop decompresses about 1 MiB at most, whatever was received.
Must not know the protocol: `parse` of the connection does.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable

from headrace.errors import ProtocolError
from headrace.net.leafnode.leafnode_compression import LeafnodeCompression

DISK_RETRY_S = 0.01
#: The most that is decompressed in one turn of the loop, and what a chunk counts beside its data.
DECOMPRESSED_PER_TURN = 1024 * 1024
CHUNK_COST = 1024


#: Size of the part of `struct tcp_info` that is read, and the place of `tcpi_rtt`, in microseconds.
_TCP_INFO_BYTES, _RTT = 72, struct.Struct("<68xI")


def read_tcp_rtt_s(transport: asyncio.BaseTransport) -> float:
    """Return the round-trip time that the operating system measures; infinite if it does not say.

    Unlike the time until a reply, it does not grow when one of the two servers is busy.
    """
    socket_ = transport.get_extra_info("socket")
    if socket_ is None or not hasattr(socket, "TCP_INFO"):
        return math.inf
    try:
        found = socket_.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return math.inf
    return float(_RTT.unpack(found)[0]) / 1e6 if len(found) == _TCP_INFO_BYTES else math.inf


class LeafnodeInput(asyncio.Protocol):
    """The base of a connection."""

    _transport: asyncio.Transport

    def __init__(self, compression: LeafnodeCompression, is_disk_backlogged: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._compression = compression
        self._is_disk_backlogged = is_disk_backlogged
        self._closing = False

    def parse(self, data: bytes) -> None:
        """Parse a part of the protocol."""
        raise NotImplementedError

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless it is None."""
        raise NotImplementedError

    def on_decrypted(self, data: bytes) -> None:
        if self._compression.is_active:
            self._compression.feed(data)
            self._parse_compressed()
        else:
            self.parse(data)

    def _parse_compressed(self) -> None:
        """Parse what was received, in slices: a few bytes may become megabytes."""
        if self._is_disk_backlogged() and not self._closing:
            self.pause_reading()
            self._loop.call_later(DISK_RETRY_S, self._continue_compressed)
            return
        left = DECOMPRESSED_PER_TURN
        try:
            while not self._closing and (data := self._compression.next()) is not None:
                left -= len(data) + CHUNK_COST
                if data:
                    self.parse(data)
                if left <= 0:
                    self.pause_reading()
                    self._loop.call_soon(self._continue_compressed)
                    return
        except ProtocolError as error:
            self.fail(error.text)

    def _continue_compressed(self) -> None:
        if not self._closing:
            self.resume_reading()
            self._parse_compressed()

    # Backpressure

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_for_disk(self) -> None:
        """Pause reading until the disk has caught up."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_later(DISK_RETRY_S, self._resume_if_drained)

    def _resume_if_drained(self) -> None:
        if self._transport.is_closing():
            return
        if self._is_disk_backlogged():
            self._loop.call_later(DISK_RETRY_S, self._resume_if_drained)
        else:
            self._transport.resume_reading()
