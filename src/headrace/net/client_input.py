"""The input of a client: passes received bytes to its parser, a slice at a time, and decides when to read more.

Owns the bytes that were received and not parsed yet. One buffer can hold thousands of operations: after a slice the rest
waits until others were served, and nothing more is read meanwhile. Invariant: bytes are parsed in the order in which
they arrived. Timeouts, output and the end of a connection are in `connection`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, cast

from headrace._native import Parser
from headrace.auth.authenticator import SlowPassword
from headrace.broker import Session
from headrace.broker.routing.session import UNAUTHORIZED
from headrace.errors import ProtocolError
from headrace.net.client_tls import ClientTls
from headrace.net.connection_context import ConnectionContext
from headrace.net.password_verifier import Greeting

if TYPE_CHECKING:
    from headrace.net.client_connection import ClientConnection

#: A slice is parsed in pieces; each should take this long.
PIECE_S = 0.0005
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 1024, 128 * 1024
#: How long a client's input is parsed at once if nobody else waits: shorter slices cost throughput.
INPUT_SLICE_S = 0.005
#: The same if others wait.
SHARED_SLICE_S = 0.0002
#: The same as `INPUT_SLICE_S` for operations that cost far more than a turn of the event loop, such as API requests.
EXPENSIVE_SLICE_S = 0.001

#: Fan-out and messages of a client so far, and the bytes that wait for the disks if the server is congested.
InputTotals = tuple[int, int, int]


class ClientInput(asyncio.BufferedProtocol):
    """What a connection receives."""

    __slots__ = (
        "_context",
        "_greeting",
        "_parser",
        "_tls",
        "_transport",
        "_unparsed",
        "closing",
        "session",
    )

    session: Session
    client_ip: str
    _transport: asyncio.Transport

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._parser: Parser | None = None
        self._tls: ClientTls | None = None
        #: Only if passwords take long to check, until CONNECT is accepted.
        self._greeting: Greeting | None = None
        self._unparsed: bytearray | None = None
        self.closing = False

    def fail(self, text: str | None) -> None:
        """End the connection."""
        raise NotImplementedError

    # Received bytes

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._context.recv_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process bytes that asyncio has read into the shared buffer; pause reading if there is too much work."""
        if self.closing:
            return
        context, before = self._context, self._get_totals()
        if self._tls is not None:
            self._tls.receive(nbytes)
        else:
            self.on_plaintext(context.recv_buffer, nbytes)
        self._after_input(before, is_bulk=nbytes == len(context.recv_buffer))

    def _get_totals(self) -> InputTotals:
        """Return what the input is compared with after it was parsed."""
        session, backpressure = self.session, self._context.backpressure
        pending = backpressure.disk.pending_bytes if backpressure.congested else 0
        return session.fanout_bytes, session.in_msgs, pending

    def _after_input(self, before: InputTotals, *, is_bulk: bool) -> None:
        """Pause reading if others have to be served first."""
        context, session = self._context, self.session
        write_scheduler, backpressure = context.write_scheduler, context.backpressure
        fanout_before, published_before, pending_before = before
        if is_bulk:
            write_scheduler.flush()
        if (
            backpressure.congested
            and session.in_msgs != published_before
            and backpressure.must_pause(pending_before)
        ):
            backpressure.pause_connection(cast("ClientConnection", self))
        elif write_scheduler.is_congested_by(session, session.fanout_bytes - fanout_before):
            write_scheduler.pause_reader(self)
        elif is_bulk or self._unparsed is not None:
            # Bulk data: libuv would keep reading from this socket. Serve other connections first.
            self.pause_reading()
            context.loop.call_soon(self.resume_reading)
        if backpressure.disk.is_high():
            backpressure.pause_publishers()

    def on_plaintext(self, data: bytes | bytearray, size: int) -> None:
        """Handle decrypted or plain bytes."""
        self._parse(data, size)

    # Parsing

    def _parse(self, data: bytes | bytearray, size: int) -> None:
        assert self._parser is not None
        greeting = self._greeting
        if greeting is not None:
            greeting.receive(memoryview(data)[:size])
            if greeting.is_waiting:
                return
            if self.session.authenticated and not greeting.may_be_connect:
                self._greeting = None  # a client that needs no password sends none
        elif self._unparsed is not None:
            self._unparsed += memoryview(data)[:size]
            return
        elif self._context.input_queue.is_turn_over():
            self._unparsed = bytearray(memoryview(data)[:size])
            return
        try:
            if greeting is not None or size <= PIECE_BYTES_MIN:
                self._parser.feed(data, size)
            elif (
                parsed := feed_slice(self._parser, data, size, self._get_slice_s())
            ) < size and not self.closing:
                self._unparsed = bytearray(memoryview(data)[parsed:size])
        except Exception as error:
            self._on_parse_error(error)

    def _on_parse_error(self, error: Exception) -> None:
        """Handle an exception of the parser: an error caused by one client must not affect the others."""
        if isinstance(error, SlowPassword):
            if self._greeting is None:  # a second CONNECT
                self.fail(UNAUTHORIZED)
                return
            self.pause_reading()
            self._greeting.wait_for(error, self.client_ip)
        elif isinstance(error, ProtocolError):
            self.fail(error.text)
        else:
            self._context.log.error(f"cid {self.session.cid}: {type(error).__name__}: {error}")
            self.fail(None)

    def _get_slice_s(self) -> float:
        """Return how long to parse now: a moment if others wait for their turn already."""
        return SHARED_SLICE_S if self._context.input_queue else INPUT_SLICE_S

    def _parse_rest(self) -> None:
        """Parse the next slice of what was received before."""
        if self._unparsed is None or self.closing:
            return
        before = self._get_totals()
        self._parse_slice()
        if not self.closing:
            self._after_input(before, is_bulk=True)

    def finish_input(self) -> None:
        """Parse everything that was received: the client sends nothing more."""
        while self._unparsed is not None and not self.closing:
            self._parse_slice()

    def _parse_slice(self) -> None:
        assert self._parser is not None
        assert self._unparsed is not None
        rest, self._unparsed = self._unparsed, None
        try:
            parsed = feed_slice(self._parser, rest, len(rest), self._get_slice_s())
        except Exception as error:
            self._on_parse_error(error)
            return
        if parsed < len(rest) and not self.closing:
            del rest[
                :parsed
            ]  # moves the start of a bytearray: the rest is copied only each time it has halved
            self._unparsed = rest

    def _on_password_verified(self, received: bytes) -> None:
        """Parse CONNECT again, and what followed it."""
        if self.closing or self._greeting is None:
            return
        self._parser = self._context.registry.make_parser(self.session)
        self.resume_reading()
        self._parse(received, len(received))

    # Reading

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue with the input: first with what was received already."""
        if self._transport.is_closing():
            return
        if self._unparsed is not None:
            self._context.input_queue.add(self._parse_rest)
        else:
            self._transport.resume_reading()


def feed_slice(parser: Parser, data: bytes | bytearray, size: int, slice_s: float) -> int:
    """Parse for about `slice_s`, at least one piece; return how many bytes were parsed.

    Pieces grow while operations are cheap, so that bulk data costs few calls.
    """
    at, piece = 0, PIECE_BYTES_MIN
    now_s = start_s = perf_counter()
    end_s = now_s + slice_s
    with memoryview(data) as view:
        while True:
            end = min(at + piece, size)
            with view[at:end] as part:
                parser.feed(part, end - at)
            at, before_s, now_s = end, now_s, perf_counter()
            if piece == PIECE_BYTES_MIN and now_s - before_s > PIECE_S:
                end_s = min(end_s, start_s + EXPENSIVE_SLICE_S)
            if at >= size or now_s >= end_s:
                return at
            growth = min(PIECE_S / max(now_s - before_s, 1e-6), 4.0)
            piece = min(max(int(piece * growth), PIECE_BYTES_MIN), PIECE_BYTES_MAX)
