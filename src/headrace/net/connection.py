"""One client's socket: passes received bytes to the parser, writes the session's output, and enforces timeouts.

Owns the life of a connection: INFO, TLS, the authentication timeout, pings, slow and stale clients. The protocol is the
session's business, authorization the listener's. An idle connection has no timer and no buffer of its own.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headrace._native import Parser
from headrace.auth.authenticator import AuthContext
from headrace.auth.nkeys import new_nonce
from headrace.broker import Session, SessionIdentity
from headrace.errors import ProtocolError
from headrace.net.listener_profile import ListenerProfile
from headrace.net.tls_channel import TlsChannel

if TYPE_CHECKING:
    from headrace.net.listener import Listener

FIRST_PING_S = 2.0
FIRST_PING_JITTER = 0.2
CLOSE_TIMEOUT_S = 2.0
TLS_HANDSHAKE_RECORD = 0x16


class Connection(asyncio.BufferedProtocol):
    """A client on a socket; the transport of its session."""

    __slots__ = (
        "_channel",
        "_closing",
        "_detecting_tls",
        "_expiry_timer",
        "_info_sent",
        "_last_activity",
        "_listener",
        "_nonce",
        "_parser",
        "_ping_sent",
        "_profile",
        "_transport",
        "client_ip",
        "client_port",
        "session",
        "slot",
        "start_s",
    )

    #: Whether chunks shared by several clients can be written as they are, without encoding.
    writes_chunks: ClassVar[bool] = True
    session: Session
    _transport: asyncio.Transport

    def __init__(self, listener: Listener, profile: ListenerProfile) -> None:
        self._listener = listener
        self._profile = profile
        self._info_sent = False
        self._nonce = ""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._parser: Parser | None = None
        self._channel: TlsChannel | None = None
        self._detecting_tls = False
        self._closing = False
        self._ping_sent = False
        self._last_activity = 0
        self.client_ip = ""
        self.client_port = 0
        self.slot = 0

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        # Anything that does not fit into the socket at once counts as a blocked write.
        transport.set_write_buffer_limits(high=0)
        peername = transport.get_extra_info("peername") or ("", 0)
        self.client_ip, self.client_port = peername[0], peername[1]
        self.start_s = listener.loop.time()
        if listener.authenticator.needs_nonce:
            self._nonce = new_nonce()
        self.session, self._parser = listener.create_session(self)
        if self._profile.tls is not None:
            self._start_tls(self._profile.tls)
        else:
            self._start_plain()

    def _start_tls(self, context: ssl.SSLContext) -> None:
        options = self._listener.options
        self._detecting_tls = options.allow_non_tls
        self._make_channel(context)
        if not options.tls_handshake_first:
            self._send_info()
        elif options.tls_first_wait_s:
            self._listener.timer_wheel.schedule(self, options.tls_first_wait_s)
            return
        self._listener.timer_wheel.schedule(self, options.tls_timeout_s)

    def _make_channel(self, context: ssl.SSLContext) -> None:
        self._channel = TlsChannel(context)

    def _start_plain(self) -> None:
        self._send_info()
        self._on_ready()

    def _send_info(self) -> None:
        """Send INFO, once, before anything else."""
        self._info_sent = True
        self._send(self.info_line())

    def info_line(self) -> bytes:
        """Return the first INFO."""
        return self._listener.make_info(self, self._profile, nonce=self._nonce)

    def _on_ready(self) -> None:
        """Start the timeout for CONNECT, or the ping interval if no CONNECT is needed."""
        listener = self._listener
        options = listener.options
        if listener.at_max_connections:
            self.fail("maximum connections exceeded")
            return
        timeout_s = options.ping_interval_s if self.session.authenticated else options.auth_timeout_s
        listener.timer_wheel.schedule(self, timeout_s)

    def get_buffer(self, sizehint: int) -> bytearray:
        # All connections share one buffer: it is parsed before any other connection can read.
        return self._listener.recv_buffer

    def buffer_updated(self, nbytes: int) -> None:
        listener = self._listener
        if self._closing:
            return
        write_scheduler, fanout_before = listener.write_scheduler, self.session.fanout_bytes
        if self._channel is not None:
            self._receive_tls(nbytes)
        else:
            self._on_plaintext(listener.recv_buffer, nbytes)
        buffer_full = nbytes == len(listener.recv_buffer)
        if buffer_full:
            write_scheduler.flush()
        if listener.is_disk_backlogged():
            listener.pause_publishers()
        if listener.congested:
            listener.pause_connection(self)
        elif write_scheduler.is_congested_by(self.session, self.session.fanout_bytes - fanout_before):
            write_scheduler.pause_reader(self)
        elif buffer_full:
            # Bulk data: libuv would read on and on here. Let other connections have their turn first.
            self.pause_reading()
            listener.loop.call_soon(self.resume_reading)

    def _extend_handshake_timeout(self) -> None:
        """Restart the timeout for a client that starts TLS before it got INFO."""
        options = self._listener.options
        if not self._info_sent and options.tls_first_wait_s:
            self._listener.timer_wheel.schedule(self, options.tls_timeout_s)

    def _on_tls_established(self) -> None:
        """Send INFO after the handshake if it was not sent before."""
        if not self._info_sent:
            self._send_info()
        self._on_ready()

    def _on_plaintext(self, data: bytes | bytearray, size: int) -> None:
        """Handle decrypted or plain bytes."""
        self._parse(data, size)

    def _parse(self, data: bytes | bytearray, size: int) -> None:
        assert self._parser is not None
        try:
            self._parser.feed(data, size)
        except ProtocolError as error:
            self.fail(error.text)
        except Exception as error:  # an error caused by one client must not affect the others
            self._listener.log.error(f"cid {self.session.cid}: {type(error).__name__}: {error}")
            self.fail(None)

    def _receive_tls(self, nbytes: int) -> None:
        channel = self._channel
        assert channel is not None
        recv_buffer = self._listener.recv_buffer
        if self._detecting_tls:
            self._detecting_tls = False
            if recv_buffer[0] != TLS_HANDSHAKE_RECORD:
                self._channel = None
                self._on_tls_established()
                self._on_plaintext(recv_buffer, nbytes)
                return
        already_established = channel.established
        self._extend_handshake_timeout()
        try:
            plaintexts = channel.receive(memoryview(recv_buffer)[:nbytes])
        except ssl.SSLError:
            self._write(channel.drain_outgoing())
            self.fail(None)
            return
        self._write(channel.drain_outgoing())
        if channel.established and not already_established:
            self._on_tls_established()
        for chunk in plaintexts:
            if not self._closing:
                self._on_plaintext(chunk, len(chunk))
        if channel.peer_closed:
            self.close()

    def eof_received(self) -> None:
        # The socket is closed next; requests sent before still get their replies.
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._parser = None
        self._set_expiry(0)
        self.session.close()
        self._listener.remove(self)

    # Output

    def flush(self) -> None:
        """Write the session's output; a client that does not keep up is disconnected."""
        if self.session.chunk_bytes and self.writes_chunks and self._channel is None:
            chunks = self.session.drain_chunks()
            if self._transport.is_closing():
                return
            self._transport.writelines(chunks)
            self._check_write_backlog()
        else:
            output = self.session.drain()
            if not output or self._transport.is_closing():
                return
            self._send(self._encode(output))
        if self.session.writable_callbacks and not self.session.blocked:
            self.session.notify_writable()

    def _encode(self, output: bytearray) -> bytes | bytearray:
        """Encode output for this kind of connection."""
        return output

    def _send(self, data: bytes | bytearray) -> None:
        """Send, encrypted if there is TLS; before the handshake only INFO is sent in plain text."""
        channel = self._channel
        if channel is None:
            self._write(data)
        elif channel.established:
            self._write(channel.encrypt(data))
        elif not self.session.connect_accepted:
            self._transport.write(data)

    def _write(self, data: bytes | bytearray) -> None:
        if not data:
            return
        self._transport.write(data)
        self._check_write_backlog()

    def _check_write_backlog(self) -> None:
        pending = self._transport.get_write_buffer_size()
        if pending:
            self._listener.on_write_backlog(self, pending)

    def pause_writing(self) -> None:
        self.session.blocked = True
        self._listener.start_write_deadline(self)

    def resume_writing(self) -> None:
        self._listener.clear_write_deadline(self)
        self.session.notify_writable()

    @property
    def timer_id(self) -> int:
        """The client id, by which the timer wheel finds it."""
        return self.session.cid

    @property
    def bytes_pending(self) -> int:
        """Bytes that wait to be sent."""
        return len(self.session.buffer) + self.session.chunk_bytes + self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # Closing

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless nats-server sends none in that case."""
        if text is not None:
            self.session.send_error(text)
        self._listener.log.debug(f"cid {self.session.cid}: closed: {text or 'malformed operation'}")
        self.close()

    def close(self) -> None:
        """Close the connection after pending output has been sent."""
        if self._closing:
            return
        self.flush()
        self._send_close()
        self._closing = True
        self.session.close()
        if self._channel is not None and self._channel.established:
            self._write(self._channel.close())
        self._transport.close()
        self._listener.timer_wheel.schedule(self, CLOSE_TIMEOUT_S)

    def _send_close(self) -> None:
        """Send what this kind of connection sends last."""

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self.session.close()
        self._transport.abort()

    # Timeouts

    def on_timeout(self) -> None:
        """Handle a timeout: close, handshake, authentication or ping interval."""
        if self._closing:
            self._transport.abort()
        elif self._channel is not None and not self._channel.established:
            self._on_handshake_timeout()
        elif not self.session.authenticated:
            self.fail("Authentication Timeout")
        else:
            self._ping()

    def _on_handshake_timeout(self) -> None:
        """TLS handshake timed out: send INFO to a client we were waiting on (handshake-first fallback), else disconnect."""
        if self._info_sent or not self._listener.options.tls_first_wait_s:
            self.abort()
            return
        self._send_info()
        self._listener.timer_wheel.schedule(self, self._listener.options.tls_timeout_s)

    def _ping(self) -> None:
        """Send a ping unless the client was active since the last one; disconnect after too many without a pong."""
        session, listener = self.session, self._listener
        activity = session.activity + session.in_msgs
        if not self._ping_sent or activity == self._last_activity:
            if session.pings_out >= listener.options.ping_max:
                listener.stale_connections += 1
                self.fail("Stale Connection")
                return
            self._ping_sent = True
            session.ping()
        self._last_activity = activity
        listener.timer_wheel.schedule(self, listener.options.ping_interval_s)

    # The session's transport

    def now_ns(self) -> int:
        return int(self._listener.loop.time() * 1e9)

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        identity = self._listener.authenticator.check(fields, self.auth_context())
        if identity is not None:
            self._listener.bind_account(self, identity)
            self._set_expiry(identity.expires_s, identity.grant.expiry_error if identity.grant else "")
        return identity

    def auth_context(self) -> AuthContext:
        """Return the properties of the connection that authentication needs."""
        certificate = (
            self._channel.get_peer_certificate()
            if self._channel is not None and self._channel.established
            else None
        )
        profile = self._profile
        return AuthContext(
            self._nonce,
            profile.connection_type,
            self.client_ip,
            certificate,
            profile.map_users,
            profile.no_auth_user,
        )

    def set_max_payload(self, max_payload: int) -> None:
        """Reject larger messages than this."""
        if self._parser is not None:
            self._parser.payload_max = max_payload

    @property
    def connection_type(self) -> str:
        """The type of connection, such as STANDARD."""
        return self._profile.connection_type

    def _set_expiry(self, at_s: float, text: str = "") -> None:
        """Disconnect when the user's JWT expires."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if at_s:
            delay_s = max(at_s - time.time(), 0.0)
            self._expiry_timer = self._listener.loop.call_later(delay_s, self.fail, text)

    def on_connected(self) -> None:
        if self._listener.observer is not None:
            self._listener.observer.on_connect(self.session)
        first_ping_s = min(self._listener.options.ping_interval_s, FIRST_PING_S)
        self._listener.timer_wheel.schedule(self, first_ping_s * (1 + FIRST_PING_JITTER * random.random()))

    def info(self) -> bytes:
        identity = self.session.identity
        return self._listener.make_info(self, self._profile, account=identity.account if identity else "")
