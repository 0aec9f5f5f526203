"""The socket of one leafnode connection, whichever side dialed: bytes in both directions, TLS, timeouts.

The session handles the protocol, the listener authorization. A peer that does not read its output is disconnected, as
slow clients are, and dials again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from headrace._native import LeafnodeParser
from headrace.auth.authenticator import AuthContext, SlowPassword
from headrace.auth.authenticator import UserIdentity as Known
from headrace.auth.nkeys import new_nonce
from headrace.broker import SessionIdentity
from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.broker.leafnodes.leafnode_session import LeafnodeSession
from headrace.config.leafnode_options import LeafnodeAddress, LeafnodeRemote
from headrace.errors import ProtocolError
from headrace.net.leafnode.leafnode_compression import LeafnodeCompression
from headrace.net.leafnode.leafnode_input import LeafnodeInput, read_tcp_rtt_s
from headrace.net.leafnode.leafnode_tls import load_leafnode_client_context
from headrace.net.leafnode.output_queue import OutputQueue
from headrace.net.listen_socket import get_peer_address
from headrace.net.password_verifier import Greeting
from headrace.net.tls_channel import TlsChannel
from headrace.net.write_scheduler import SMALL_FANOUT_BYTES
from headrace.protocol import server_lines

if TYPE_CHECKING:
    from headrace.net.leafnode.leafnode_listener import LeafnodeListener

FIRST_PING_S = 1.0
CLOSE_TIMEOUT_S = 1.0
#: The timeout for each further step of the handshake: the reply to the announced compression, TLS, and the last INFO.
ESTABLISH_TIMEOUT_S = 5.0
#: The connection type that users can be restricted to.
LEAFNODE = "LEAFNODE"


class LeafnodeConnection(LeafnodeInput):
    """A server on a socket; the transport of its session. `closed` is done when the socket is closed."""

    def __init__(
        self,
        listener: LeafnodeListener,
        leafnodes: LeafnodeSet,
        remote: LeafnodeRemote | None = None,
        address: LeafnodeAddress | None = None,
    ) -> None:
        """With `remote`, this side dials it at `address`."""
        options = remote.compression if remote is not None else listener.leafnode_options.compression
        super().__init__(LeafnodeCompression(options), listener.is_disk_backlogged, listener.input_queue)
        self._listener, self._remote, self._address = listener, remote, address
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.was_established = False
        self.client_ip, self.client_port = "", 0
        self._rtt_start_s = 0.0  # when the connection was made, then when the last ping was sent
        self._last_activity = 0
        self._is_flushing = False  # the rest of a large output is scheduled
        self._nonce = new_nonce()
        self._timer: asyncio.TimerHandle | None = None
        self._output_queue: OutputQueue | None = None
        self._expiry_timer: asyncio.TimerHandle | None = None
        cid = listener.next_cid()
        remote_options = remote or LeafnodeRemote(urls=())
        self.session = LeafnodeSession(
            leafnodes,
            self,
            cid,
            listener.local_info,
            solicited=remote is not None,
            hub_role=remote_options.hub,
            deny_imports=[each.encode() for each in remote_options.deny_imports],
            deny_exports=[each.encode() for each in remote_options.deny_exports],
        )
        self._parser: LeafnodeParser | None = LeafnodeParser(self.session, listener.options.max_payload)
        self._greeting: Greeting | None = None  # of a server that dialed, if passwords take long to check
        if remote is None and listener.has_slow_passwords:
            self._greeting = Greeting(listener.password_verifier, self._on_password_verified)

    @property
    def label(self) -> str:
        """The name of the connection in the log."""
        return f"lid {self.session.cid} {self.client_ip}"

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._output_queue = self._listener.make_output_queue(self._transport, self.session, self._abort_slow)
        self.client_ip, self.client_port = get_peer_address(transport)
        self._rtt_start_s = self._loop.time()
        self._listener.connections[self.session.cid] = self
        if self._remote is not None:
            tls = self._remote.tls
            self._start_timeout(self._remote.first_info_timeout_s, "no INFO came")
            if tls is not None and tls.handshake_first:
                self._start_handshake()
        else:
            self._start_timeout(self._listener.leafnode_options.auth_timeout_s, "Authentication Timeout")
            self._on_accepted()

    def _on_accepted(self) -> None:
        context, tls = self._listener.tls, self._listener.leafnode_options.tls
        if tls is None or not tls.handshake_first:
            self._transport.write(self.info("", None, None))
        if context is not None:
            self._channel = TlsChannel(context)

    def _start_handshake(self) -> None:
        assert self._remote is not None
        self.pause_reading()
        load_leafnode_client_context(self._remote.tls, self._on_context_loaded, self.on_tls_error)

    def _on_context_loaded(self, context: ssl.SSLContext) -> None:
        if not self._closing:
            assert self._address is not None
            self._channel = TlsChannel(context, self._address.host)
            self.receive_tls(b"")
            self.resume_reading()

    @property
    def is_trusted(self) -> bool:
        return self._remote is not None or self.session.authenticated

    @property
    def is_waiting(self) -> bool:
        return self._greeting is not None and self._greeting.is_waiting

    def after_slice(self, parsed_bytes: int) -> None:
        write_scheduler = self._listener.write_scheduler
        if write_scheduler.has_queued_output and parsed_bytes > SMALL_FANOUT_BYTES:
            write_scheduler.pause_reader(self)

    def parse(self, data: bytes) -> None:
        greeting = self._greeting
        if greeting is not None:
            greeting.receive(data)
        assert self._parser is not None
        try:
            self._parser.feed(data)
        except SlowPassword as password:
            assert greeting is not None, "a second CONNECT is a protocol error"
            self._cancel_timers()
            greeting.wait_for(password, self.client_ip)
        except ProtocolError as error:
            self.fail(error.text)
        except Exception as error:  # an error caused by one server must not affect the others
            self._listener.log.error(f"{self.label}: {type(error).__name__}: {error}")
            self.fail(None)

    def _on_password_verified(self, received: bytes) -> None:
        """Parse CONNECT again, and what followed it."""
        if self._closing:
            return
        self._start_timeout(self._listener.leafnode_options.auth_timeout_s, "Authentication Timeout")
        self._parser = LeafnodeParser(self.session, self._listener.options.max_payload)
        self._unparsed[:0] = received
        self._untrusted_bytes = 0
        self.continue_input()

    def on_tls_error(self, error: ssl.SSLError) -> None:
        self._listener.log.warn(f"{self.label}: TLS: {error.reason or error}")
        self.close()

    def on_tls_established(self) -> None:
        """Continue the handshake of the protocol after that of TLS."""
        if self._remote is None:
            tls = self._listener.leafnode_options.tls
            if tls is not None and tls.handshake_first:
                self.session.send(self.info("", None, None))
        elif not (self._remote.tls is not None and self._remote.tls.handshake_first):
            self.session.send_connect()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._cancel_timers()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self.session.close()
        self._listener.remove(self)
        self._drop_buffers()
        if not self.closed.done():
            self.closed.set_result(None)

    def _drop_buffers(self) -> None:
        """Free what was received: the closed connection itself may wait long for the garbage collector."""
        self._parser = self._greeting = self._channel = None
        self._unparsed = bytearray()
        self._compression.close()

    # Output

    def flush(self) -> None:
        """Write the session's output; if it is large, a part in each turn of the loop."""
        if not self._is_flushing:
            self._flush_part()

    def _continue_flush(self) -> None:
        self._is_flushing = False
        self._flush_part()

    def _flush_part(self) -> None:
        if self._channel is not None and not self._channel.established:
            return  # sent after the handshake
        output = self._compression.encode(self.session.drain())
        if not output or self._transport.is_closing():
            return
        self.write(output if self._channel is None else self._channel.encrypt(output))
        if self._compression.pending_bytes and not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._continue_flush)
        if self.session.writable_callbacks and not self.session.blocked:
            self.session.notify_writable()

    def write(self, data: bytes | bytearray) -> None:
        if data and self._output_queue is not None and not self._transport.is_closing():
            self._output_queue.write(data)
            pending = self._transport.get_write_buffer_size() + self._compression.pending_bytes
            if pending > self._listener.options.max_pending:
                self._abort_slow("too much is pending")

    def pause_writing(self) -> None:
        self.session.blocked = True
        if self._output_queue is not None:
            self._output_queue.on_full()

    def resume_writing(self) -> None:
        if self._output_queue is not None:
            self._output_queue.on_drained()
        self.session.notify_writable()

    def _abort_slow(self, reason: str) -> None:
        self._listener.log.warn(f"{self.label}: slow consumer: {reason}")
        self.abort()

    # Closing

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless it is None."""
        if self._closing:
            return
        if text is not None:
            self.session.send(server_lines.encode_error(text))
            self._listener.log.error(f"{self.label}: closed: {text}")
        self.close()

    def on_remote_error(self, text: str) -> None:
        self._listener.log.error(f"{self.label}: received error {text!r}")
        self.close()

    def close(self) -> None:
        """Close the connection after pending output has been sent."""
        if self._closing:
            return
        self._flush_part()
        while self._compression.pending_bytes and not self._transport.is_closing():
            self._flush_part()
        self._closing = True
        self.session.close()
        if self._channel is not None and self._channel.established:
            self.write(self._channel.close())
        self._transport.close()
        self._cancel_timers()
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self.session.close()
        self._transport.abort()

    # Timeouts

    def _start_timeout(self, timeout_s: float, error_text: str) -> None:
        self._cancel_timers()
        self._timer = self._loop.call_later(timeout_s, self.fail, error_text)

    def _cancel_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._output_queue is not None:
            self._output_queue.cancel_deadline()

    def _ping(self) -> None:
        """Send a ping unless the other side was active since the last one."""
        session, options = self.session, self._listener.options
        activity = session.activity + session.in_msgs
        if activity == self._last_activity:
            if session.pings_out >= options.ping_max:
                self.fail("Stale Connection")
                return
            session.pings_out += 1
        else:
            session.pings_out = 0
        if session.pings_out or self._compression.is_auto:
            self._rtt_start_s = self._loop.time()
            session.send(server_lines.PING)
        self._last_activity = activity
        self._timer = self._loop.call_later(options.ping_interval_s, self._ping)

    # The session's transport

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        certificate = self._channel.get_peer_certificate() if self._channel is not None else None
        auth_context = AuthContext(
            connection_type=LEAFNODE,
            nonce=self._nonce,
            client_ip=self.client_ip,
            certificate=certificate,
            verified=self._greeting.verified if self._greeting is not None else None,
        )
        identity = self._listener.authenticate(fields, auth_context)
        if isinstance(identity, Known) and identity.grant is not None and identity.expires_s:
            delay_s = max(identity.expires_s - time.time(), 0.0)
            self._expiry_timer = self._loop.call_later(delay_s, self.fail, identity.grant.expiry_error)
        return identity

    def leafnodes(self, account: str) -> LeafnodeSet:
        return self._listener.get_leafnodes(account)

    def start_tls(self, *, requested: bool) -> None:
        assert self._remote is not None
        assert self._address is not None
        if not (requested or self._remote.tls is not None or self._address.tls):
            self.session.send_connect()
            return
        self._start_timeout(
            self._remote.tls.timeout_s if self._remote.tls else ESTABLISH_TIMEOUT_S, "TLS took too long"
        )
        if self._channel is None:
            self._start_handshake()
        else:
            self.session.send_connect()

    @property
    def compression(self) -> str:
        return self._compression.mode

    def negotiate_compression(self, offered: str) -> bool:
        announced = self._compression.negotiate(offered, self._measure_rtt_s())
        if not announced:
            return False
        info = self._listener.make_info(
            self.session.cid, self.client_ip, self._nonce, "", None, None, announced
        )
        if self._remote is not None:
            # The other side replies with a second INFO, after another round trip.
            self._start_timeout(ESTABLISH_TIMEOUT_S, "no INFO came after compression was announced")
            # The side that dialed announces the mode before it switches, the other side after it.
            self.session.send(info)
            self.flush()
            self._compression.start()
        else:
            self._compression.start()
            self.session.send(info)
            self.flush()
        return True

    def _measure_rtt_s(self) -> float:
        return min(self._loop.time() - self._rtt_start_s, read_tcp_rtt_s(self._transport))

    def on_pong(self) -> None:
        self._compression.update_rtt(self._measure_rtt_s())

    def credentials(self, nonce: str) -> dict[str, str]:
        assert self._remote is not None
        assert self._address is not None
        self._start_timeout(ESTABLISH_TIMEOUT_S, "Stale Leaf Node Connection - Closing")
        return self._listener.make_credentials(self._remote, self._address, nonce)

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        nonce = "" if account else self._nonce
        return self._listener.make_info(
            self.session.cid, self.client_ip, nonce, account, imports, exports, self._compression.offer
        )

    def may_subscribe(self, count: int) -> bool:
        return self._remote is not None or self._listener.may_subscribe(self.session, count)

    def on_established(self) -> None:
        self.was_established = True
        self._greeting = None
        session = self.session
        self._listener.log.info(
            f"{self.label}: leafnode connection with {session.name!r} for {session.account}"
        )
        self._cancel_timers()
        self._timer = self._loop.call_later(FIRST_PING_S, self._ping)
