"""The input of one leafnode connection: decrypted, and parsed in slices, and paused while others have to catch up.

Owns the bytes that were received and not parsed yet, and when the socket is read. Invariants: bytes are parsed in the
order in which they arrived; a few bytes may become megabytes, but one turn of the loop parses for about `SLICE_S`; a
peer that has not authenticated gets `UNTRUSTED_MAX` bytes parsed, no more. Must not know the protocol: `parse` of the
connection does.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import struct
from collections.abc import Callable
from time import perf_counter

from headrace.errors import ProtocolError
from headrace.net.client_input import PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECE_S
from headrace.net.leafnode.leafnode_compression import LeafnodeCompression
from headrace.net.tls_channel import TlsChannel
from headrace.net.turn_queue import SLICE_S, TurnQueue
from headrace.protocol.leafnode import UNAUTHORIZED

DISK_RETRY_S = 0.01
#: The most that is parsed, and decompressed at once, before the peer has authenticated.
UNTRUSTED_MAX = 64 * 1024


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
    """The base of a connection. Connections share `input_queue`, in which the rest of their input waits."""

    _transport: asyncio.Transport

    def __init__(
        self,
        compression: LeafnodeCompression,
        is_disk_backlogged: Callable[[], bool],
        input_queue: TurnQueue,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._compression = compression
        self._channel: TlsChannel | None = None
        self._is_disk_backlogged = is_disk_backlogged
        self._input_queue = input_queue
        self._unparsed = bytearray()
        self._untrusted_bytes = 0  # parsed before the peer authenticated
        self._slice_end_s = 0.0
        self._is_continuing = False  # the rest of the input is scheduled
        self._is_paused = False  # by others, until they call `resume_reading`
        self._is_ended = False  # the peer sends nothing more
        self._closing = False

    # What the connection defines

    def parse(self, data: bytes) -> None:
        """Parse a part of the protocol."""
        raise NotImplementedError

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless it is None."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection after pending output has been sent."""
        raise NotImplementedError

    def after_slice(self, parsed_bytes: int) -> None:
        """Pause reading if others have to be served first."""

    @property
    def is_trusted(self) -> bool:
        """Whether the peer has authenticated."""
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether nothing may be parsed until a password was checked."""
        return False

    def write(self, data: bytes | bytearray) -> None:
        """Write to the socket."""
        raise NotImplementedError

    def on_tls_established(self) -> None:
        """Continue the handshake of the protocol after that of TLS."""

    def on_tls_error(self, error: ssl.SSLError) -> None:
        """End the connection."""
        raise NotImplementedError

    # Received bytes

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.start_slice()
        if self._channel is None:
            self.on_decrypted(data)
        else:
            self.receive_tls(data)

    def eof_received(self) -> bool:
        self.end_input()
        return not self._closing  # the transport stays open until everything is parsed

    def receive_tls(self, data: bytes) -> None:
        channel = self._channel
        assert channel is not None
        already_established = channel.established
        try:
            plaintexts = channel.receive(memoryview(data))
        except ssl.SSLError as error:
            self.write(channel.drain_outgoing())
            self.on_tls_error(error)
            return
        self.write(channel.drain_outgoing())
        if channel.established and not already_established:
            self.on_tls_established()
        for chunk in plaintexts:
            if not self._closing:
                self.on_decrypted(chunk)
        if channel.peer_closed and not self._closing:
            self.end_input()

    def start_slice(self) -> None:
        """Parse for a moment from now on; not at all if others wait for their turn already."""
        self._slice_end_s = perf_counter() + (0.0 if self._input_queue else SLICE_S)

    def on_decrypted(self, data: bytes) -> None:
        if self._compression.is_active:
            self._compression.feed(data)
        else:
            self._unparsed += data
        if not self._is_continuing:
            self._parse_received()
            self._update_reading()

    def end_input(self) -> None:
        """Close the connection when everything is parsed: the peer sends nothing more."""
        if self._closing:
            return
        self._is_ended = True
        if self.is_waiting:
            self.close()
        elif not self._is_continuing:
            self._parse_received()

    def continue_input(self) -> None:
        """Parse what was received already, then read more."""
        if self._is_continuing or self._closing:
            return
        if self._unparsed or self._compression.received_bytes or self._is_ended:
            self._continue_later()
        else:
            self._update_reading()

    # Slices

    def _parse_received(self) -> None:
        """Parse for one slice and schedule the rest."""
        if self._closing or self._is_paused or self.is_waiting:
            return
        if self._is_disk_backlogged():
            self._is_continuing = True
            self._loop.call_later(DISK_RETRY_S, self._continue)
        elif not self._parse_slice() and not self._closing:
            self._continue_later()
        elif self._is_ended and not (self._is_paused or self.is_waiting):
            self.close()

    def _continue_later(self) -> None:
        self._is_continuing = True
        self._input_queue.add(self._continue)

    def _continue(self) -> None:
        self._is_continuing = False
        if not self._closing:
            self._slice_end_s = perf_counter() + SLICE_S
            self._parse_received()
            self._update_reading()

    def _parse_slice(self) -> bool:
        """Parse until the slice ends; return whether nothing is left that could be parsed now.

        Pieces grow while operations are cheap, so that bulk data costs few calls.
        """
        size, parsed_bytes, now_s = PIECE_BYTES_MIN, 0, perf_counter()
        is_done = False
        while now_s < self._slice_end_s:
            try:
                piece = self._take_piece(size)
            except ProtocolError as error:
                self.fail(error.text)
                return True
            if piece is None:
                is_done = True
                break
            if piece:
                self.parse(piece)
                parsed_bytes += len(piece)
            if self._closing or self.is_waiting:
                return True
            before_s, now_s = now_s, perf_counter()
            growth = min(PIECE_S / max(now_s - before_s, 1e-6), 4.0)
            size = min(max(int(size * growth), PIECE_BYTES_MIN), PIECE_BYTES_MAX)
        self.after_slice(parsed_bytes)
        return is_done or self._is_paused

    def _take_piece(self, size: int) -> bytes | None:
        """Return the next bytes to parse, b"" after a chunk without data; None if more must be received."""
        if not self._unparsed:
            if not self._compression.is_active:
                return None
            data = self._compression.next() if self.is_trusted else self._compression.next(UNTRUSTED_MAX)
            if data is None:
                return None
            self._unparsed += data
        if not self.is_trusted:
            size = PIECE_BYTES_MIN
            self._untrusted_bytes += min(len(self._unparsed), size)
            if self._untrusted_bytes > UNTRUSTED_MAX:
                raise ProtocolError(UNAUTHORIZED)
        if len(self._unparsed) <= size:
            piece, self._unparsed = bytes(self._unparsed), bytearray()
        else:
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
        return piece

    # Backpressure

    def pause_reading(self) -> None:
        """Read and parse nothing until `resume_reading`."""
        self._is_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Continue with the input: first with what was received already."""
        self._is_paused = False
        self.continue_input()

    def _update_reading(self) -> None:
        """Read from the socket unless something has to happen first."""
        if self._transport.is_closing():
            return
        if self._is_continuing or self._is_paused or self._is_ended or self.is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
