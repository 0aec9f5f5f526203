"""One client's socket: writes the session's output, and enforces timeouts.

Owns the lifecycle of a connection: INFO, the authentication timeout, pings, slow and stale clients. Input is in
`client_input`, TLS in `client_tls`, the protocol in the session, authorization in the registry. An idle connection has
no timer and no buffer of its own.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from headrace.auth.authenticator import AuthContext
from headrace.auth.nkeys import new_nonce
from headrace.broker import SessionIdentity
from headrace.net.client_input import ClientInput
from headrace.net.client_tls import ClientTls
from headrace.net.closed_transport import ClosedTransport
from headrace.net.connection_context import ConnectionContext
from headrace.net.listen_socket import get_peer_address
from headrace.net.listener_profile import ListenerProfile
from headrace.net.password_verifier import Greeting

FIRST_PING_S = 2.0
FIRST_PING_JITTER = 0.2
CLOSE_TIMEOUT_S = 2.0


class Connection(ClientInput):
    """A client on a socket; the transport of its session."""

    __slots__ = (
        "_expiry_timer",
        "_last_activity",
        "_nonce",
        "_ping_sent",
        "_profile",
        "client_ip",
        "client_port",
        "info_sent",
        "slot",
        "start_s",
    )

    #: Whether chunks shared by several clients can be written as they are, without encoding.
    writes_chunks: ClassVar[bool] = True

    def __init__(self, context: ConnectionContext, profile: ListenerProfile) -> None:
        super().__init__(context)
        self._profile = profile
        self.info_sent = False
        self._nonce = ""
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._ping_sent = False
        self._last_activity = 0
        self.client_ip = ""
        self.client_port = 0
        self.slot = 0

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        context = self._context
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        # Anything that does not fit into the socket at once counts as a blocked write.
        transport.set_write_buffer_limits(high=0)
        self.client_ip, self.client_port = get_peer_address(transport)
        self.start_s = context.loop.time()
        registry = context.registry
        if registry.authenticator.needs_nonce:
            self._nonce = new_nonce()
        self.session, self._parser = registry.create_session(self)
        if registry.authenticator.has_slow_passwords:
            self._greeting = Greeting(context.password_verifier, self._on_password_verified)
        if self._profile.tls is not None:
            self._start_tls(self._profile.tls)
        else:
            self._start_plain()

    def _start_tls(self, ssl_context: ssl.SSLContext) -> None:
        self._tls = ClientTls(self, self._context, ssl_context)
        self._tls.start()

    def _start_plain(self) -> None:
        self.send_info()
        self._on_ready()

    def send_info(self) -> None:
        """Send INFO, once, before anything else."""
        self.info_sent = True
        self._send(self.info_line())

    def info_line(self) -> bytes:
        """Return the first INFO."""
        return self._context.registry.make_info(self, self._profile, nonce=self._nonce)

    def _on_ready(self) -> None:
        """Start the timeout for CONNECT, or the ping interval if no CONNECT is needed."""
        context = self._context
        options = context.options
        if context.registry.at_max_connections:
            self.fail("maximum connections exceeded")
            return
        timeout_s = options.ping_interval_s if self.session.authenticated else options.auth_timeout_s
        context.timer_wheel.schedule(self, timeout_s)

    def on_tls_established(self) -> None:
        """Send INFO after the handshake if it was not sent before."""
        if not self.info_sent:
            self.send_info()
        self._on_ready()

    def continue_without_tls(self) -> None:
        """Serve a client that does not want TLS."""
        self._tls = None
        self.on_tls_established()

    def eof_received(self) -> bool:
        """Close the connection after others had their turn: thousands of clients may disconnect at once."""
        if self._unparsed is not None:
            self.finish_input()
        self._context.closed_queue.run(self._close_after_eof)
        return True  # it is closed here, not by asyncio

    def _close_after_eof(self) -> None:
        if not self._transport.is_closing():
            self.flush()  # requests sent before still get their replies
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        # The connection itself may wait long for the garbage collector.
        self._parser = self._unparsed = self._tls = self._greeting = None
        self._set_expiry(0)
        self._context.closed_queue.run(self._on_closed)

    def _on_closed(self) -> None:
        """Remove the session and everything that refers to the connection."""
        self.session.close()
        context = self._context
        context.registry.remove(self)
        context.backpressure.remove(self)
        context.write_scheduler.remove_reader(self)
        self.session.transport = ClosedTransport(self.client_ip, self.client_port, context.now_ns)

    # Output

    def flush(self) -> None:
        """Write the session's output; a client that does not keep up is disconnected."""
        may_send = self._context.may_send
        if may_send is not None and not may_send():
            self._transport.abort()
            return
        if self.session.chunk_bytes and self.writes_chunks and self._tls is None:
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
        tls = self._tls
        if tls is None:
            self.write(data)
        elif (channel := tls.channel).established:
            self.write(channel.encrypt(data))
        elif not self.session.connect_accepted:
            self._transport.write(data)

    def write(self, data: bytes | bytearray) -> None:
        """Write to the socket; a client that does not keep up is disconnected."""
        if not data:
            return
        self._transport.write(data)
        self._check_write_backlog()

    def _check_write_backlog(self) -> None:
        pending = self._transport.get_write_buffer_size()
        if pending:
            backpressure = self._context.backpressure
            backpressure.on_write_backlog(self, pending)

    def pause_writing(self) -> None:
        self.session.blocked = True
        backpressure = self._context.backpressure
        backpressure.start_write_deadline(self)

    def resume_writing(self) -> None:
        backpressure = self._context.backpressure
        backpressure.clear_write_deadline(self)
        self.session.notify_writable()

    @property
    def timer_id(self) -> int:
        """The client id, by which the timer wheel finds it."""
        return self.session.cid

    @property
    def bytes_pending(self) -> int:
        """Bytes that wait to be sent."""
        return len(self.session.buffer) + self.session.chunk_bytes + self._transport.get_write_buffer_size()

    # Closing

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless nats-server sends none in that case."""
        if text is not None:
            self.session.send_error(text)
        self._context.log.debug(f"cid {self.session.cid}: closed: {text or 'malformed operation'}")
        self.close()

    def close(self) -> None:
        """Close the connection after pending output has been sent."""
        if self.closing:
            return
        self.flush()
        self._send_close()
        self.closing = True
        self.session.close()
        if self._tls is not None:
            self._tls.close()
        self._transport.close()
        self._context.timer_wheel.schedule(self, CLOSE_TIMEOUT_S)

    def _send_close(self) -> None:
        """Send what this kind of connection sends last."""

    def abort(self) -> None:
        """Close the connection at once."""
        self.closing = True
        self.session.close()
        self._transport.abort()

    # Timeouts

    def on_timeout(self) -> None:
        """Handle a timeout: close, handshake, authentication or ping interval."""
        if self.closing:
            self._transport.abort()
        elif (tls := self._tls) is not None and not tls.channel.established:
            tls.on_handshake_timeout()
        elif self._greeting is not None and self._greeting.is_waiting:
            self._context.timer_wheel.schedule(self, self._context.options.auth_timeout_s)
        elif not self.session.authenticated:
            self.fail("Authentication Timeout")
        else:
            self._ping()

    def _ping(self) -> None:
        """Send a ping unless the client was active since the last one; disconnect after too many without a pong."""
        session, context = self.session, self._context
        activity = session.activity + session.in_msgs
        if not self._ping_sent or activity == self._last_activity:
            if session.pings_out >= context.options.ping_max:
                context.registry.stale_connections += 1
                self.fail("Stale Connection")
                return
            self._ping_sent = True
            session.ping()
        self._last_activity = activity
        context.timer_wheel.schedule(self, context.options.ping_interval_s)

    # The session's transport

    def now_ns(self) -> int:
        return self._context.now_ns()

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        identity = self._context.registry.authenticate(self, fields)
        if identity is not None:
            self._set_expiry(identity.expires_s, identity.grant.expiry_error if identity.grant else "")
        return identity

    def auth_context(self) -> AuthContext:
        """Return the properties of the connection that authentication needs."""
        certificate = self._tls.get_peer_certificate() if self._tls is not None else None
        profile = self._profile
        return AuthContext(
            self._nonce,
            profile.connection_type,
            self.client_ip,
            certificate,
            profile.map_users,
            profile.no_auth_user,
            self._greeting.verified if self._greeting is not None else None,
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
            self._expiry_timer = self._context.loop.call_later(delay_s, self.fail, text)

    def on_connected(self) -> None:
        context = self._context
        self._greeting = None
        context.registry.on_connected(self.session)
        first_ping_s = min(context.options.ping_interval_s, FIRST_PING_S)
        context.timer_wheel.schedule(self, first_ping_s * (1 + FIRST_PING_JITTER * random.random()))

    def info(self) -> bytes:
        identity, registry = self.session.identity, self._context.registry
        return registry.make_info(self, self._profile, account=identity.account if identity else "")
