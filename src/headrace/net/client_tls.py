"""TLS of one client's connection: the phase before the connection is open, and the decryption of what is read after it.

Owns the choice between TLS and plain text if both are allowed, when INFO is sent relative to the handshake, and the
handshake timeout. Connections without TLS have none of this.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.net.connection_context import ConnectionContext
from headrace.net.timer_wheel import Timed
from headrace.net.tls_channel import TlsChannel

TLS_HANDSHAKE_RECORD = 0x16


class TlsConnection(Timed, Protocol):
    """A connection, as its TLS sees it."""

    closing: bool
    info_sent: bool

    def send_info(self) -> None:
        """Send INFO; in plain text before the handshake."""

    def on_tls_established(self) -> None:
        """Called after the handshake."""

    def continue_without_tls(self) -> None:
        """Called if the client does not want TLS."""

    def on_plaintext(self, data: bytes | bytearray, size: int) -> None:
        """Handle decrypted or plain bytes."""

    def finish_input(self) -> None:
        """Parse everything that was received."""

    def write(self, data: bytes | bytearray) -> None:
        """Write to the socket."""

    def fail(self, text: str | None) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class ClientTls:
    """TLS of one connection; `channel.established` after the handshake."""

    __slots__ = ("_connection", "_context", "_detecting", "channel")

    def __init__(
        self, connection: TlsConnection, context: ConnectionContext, ssl_context: ssl.SSLContext
    ) -> None:
        self._connection = connection
        self._context = context
        self._detecting = False
        self.channel = TlsChannel(ssl_context)

    def start(self) -> None:
        """Send INFO unless the client has to start the handshake first, and start the timeout."""
        options, timer_wheel = self._context.options, self._context.timer_wheel
        self._detecting = options.allow_non_tls
        if not options.tls_handshake_first:
            self._connection.send_info()
        elif options.tls_first_wait_s:
            timer_wheel.schedule(self._connection, options.tls_first_wait_s)
            return
        timer_wheel.schedule(self._connection, options.tls_timeout_s)

    def receive(self, nbytes: int) -> None:
        """Handle bytes in the receive buffer: the handshake, or encrypted data."""
        channel, connection, recv_buffer = self.channel, self._connection, self._context.recv_buffer
        if self._detecting:
            self._detecting = False
            if recv_buffer[0] != TLS_HANDSHAKE_RECORD:
                connection.continue_without_tls()
                connection.on_plaintext(recv_buffer, nbytes)
                return
        already_established = channel.established
        self._extend_timeout()
        try:
            plaintexts = channel.receive(memoryview(recv_buffer)[:nbytes])
        except ssl.SSLError:
            connection.write(channel.drain_outgoing())
            connection.fail(None)
            return
        connection.write(channel.drain_outgoing())
        if channel.established and not already_established:
            connection.on_tls_established()
        for chunk in plaintexts:
            if not connection.closing:
                connection.on_plaintext(chunk, len(chunk))
        if channel.peer_closed:
            connection.finish_input()
            connection.close()

    def _extend_timeout(self) -> None:
        """Restart the timeout for a client that starts TLS before it got INFO."""
        context, connection = self._context, self._connection
        if not connection.info_sent and context.options.tls_first_wait_s:
            context.timer_wheel.schedule(connection, context.options.tls_timeout_s)

    def on_handshake_timeout(self) -> None:
        """Send INFO to a client that was expected to start the handshake first, otherwise disconnect."""
        context, connection = self._context, self._connection
        if connection.info_sent or not context.options.tls_first_wait_s:
            connection.abort()
            return
        connection.send_info()
        context.timer_wheel.schedule(connection, context.options.tls_timeout_s)

    def get_peer_certificate(self) -> Mapping[str, Any] | None:
        """Return the client's certificate, if it presented one and it was verified."""
        return self.channel.get_peer_certificate() if self.channel.established else None

    def close(self) -> None:
        """Send the closing alert."""
        if self.channel.established:
            self._connection.write(self.channel.close())
