"""One client's socket: bytes in to the parser, a session's output out, and the patience with both.

Owns the life of a connection: greeting, TLS, authentication time, pings, slow and stale ends. What is said
is the session's business, who may say it the listener's. An idle connection costs no timer and no buffer of
its own.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from headrace.broker import Identity, Session
from headrace.errors import ProtocolError
from headrace.kernel import Parser
from headrace.net.auth import Approach
from headrace.net.doors import Door
from headrace.net.nkeys import new_nonce
from headrace.net.secure import Channel

if TYPE_CHECKING:
    from headrace.net.listener import Listener

FIRST_PING_S = 2.0
FIRST_PING_SPREAD = 0.2
LINGER_S = 2.0
TLS_HANDSHAKE = 0x16


class Connection(asyncio.BufferedProtocol):
    """A client on a socket; the `owner` of its session."""

    __slots__ = (
        "_channel",
        "_closing",
        "_door",
        "_expiry",
        "_greeted",
        "_listener",
        "_nonce",
        "_parser",
        "_peeking",
        "_pinged",
        "_seen",
        "_transport",
        "client_ip",
        "client_port",
        "session",
        "slot",
        "start_s",
    )

    #: Whether what several clients share goes out as it is; otherwise it has to be put into a form of its own.
    in_parts: ClassVar[bool] = True
    session: Session
    _transport: asyncio.Transport

    def __init__(self, listener: Listener, door: Door) -> None:
        self._listener = listener
        self._door = door
        self._greeted = False
        self._nonce = ""
        self._expiry: asyncio.TimerHandle | None = None
        self._parser: Parser | None = None
        self._channel: Channel | None = None
        self._peeking = False
        self._closing = False
        self._pinged = False
        self._seen = 0
        self.client_ip = ""
        self.client_port = 0
        self.slot = 0

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        # uvloop's transports do what asyncio's do without being of their kind.
        self._transport = transport = cast("asyncio.Transport", transport)
        # Whatever does not fit into the socket at once counts as a blocked write.
        transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client_ip, self.client_port = peer[0], peer[1]
        self.start_s = listener.loop.time()
        if listener.authenticator.signs:
            self._nonce = new_nonce()
        self.session, self._parser = listener.admit(self)
        if self._door.tls is not None:
            self._begin_tls(self._door.tls)
        else:
            self._begin_plain()

    def _begin_tls(self, context: ssl.SSLContext) -> None:
        options = self._listener.options
        self._peeking = options.allow_non_tls
        self._make_channel(context)
        if not options.tls_handshake_first:
            self._greet()
        elif options.tls_first_wait_s:
            self._listener.wheel.appoint(self, options.tls_first_wait_s)
            return
        self._listener.wheel.appoint(self, options.tls_timeout_s)

    def _make_channel(self, context: ssl.SSLContext) -> None:
        self._channel = Channel(context)

    def _begin_plain(self) -> None:
        self._greet()
        self._begin_session()

    def _greet(self) -> None:
        """Say who is here, once, before anything else."""
        self._greeted = True
        self._send_plain(self.greeting())

    def greeting(self) -> bytes:
        """The first INFO."""
        return self._listener.info(self, self._door, nonce=self._nonce)

    def _begin_session(self) -> None:
        """The way is open: wait for CONNECT, or for whatever comes."""
        listener = self._listener
        options = listener.options
        if listener.crowded:
            self.fail("maximum connections exceeded")
            return
        patience = options.ping_interval_s if self.session.ready else options.auth_timeout_s
        listener.wheel.appoint(self, patience)

    def get_buffer(self, sizehint: int) -> bytearray:
        # All connections share one buffer: it is parsed before anybody else can read.
        return self._listener.inbox

    def buffer_updated(self, nbytes: int) -> None:
        listener = self._listener
        if self._closing:
            return
        outflow, carried = listener.outflow, self.session.carried
        if self._channel is not None:
            self._receive_secure(nbytes)
        else:
            self._arrived(listener.inbox, nbytes)
        full = nbytes == len(listener.inbox)
        if full:
            outflow.flush()
        if listener.pressed():
            listener.pause_publishers()
        if listener.strained:
            listener.hold_back(self)
        elif outflow.crowded_by(self.session, self.session.carried - carried):
            outflow.hold(self)
        elif full:
            # Bulk: libuv would read on and on here. Let others have their turn first.
            self.pause_reading()
            listener.loop.call_soon(self.resume_reading)

    def _wait_for_handshake(self) -> None:
        """A client that begins TLS unasked has the whole time for it."""
        options = self._listener.options
        if not self._greeted and options.tls_first_wait_s:
            self._listener.wheel.appoint(self, options.tls_timeout_s)

    def _secured(self) -> None:
        """The handshake is over: greet who was not greeted before."""
        if not self._greeted:
            self._greet()
        self._begin_session()

    def _arrived(self, data: bytes | bytearray, size: int) -> None:
        """Plain bytes came."""
        self._feed(data, size)

    def _feed(self, data: bytes | bytearray, size: int) -> None:
        assert self._parser is not None
        try:
            self._parser.feed(data, size)
        except ProtocolError as error:
            self.fail(error.text)
        except Exception as error:  # whatever one client triggers must not end the others
            self._listener.log.error(f"cid {self.session.cid}: {type(error).__name__}: {error}")
            self.fail(None)

    def _receive_secure(self, nbytes: int) -> None:
        channel = self._channel
        assert channel is not None
        inbox = self._listener.inbox
        if self._peeking:
            self._peeking = False
            if inbox[0] != TLS_HANDSHAKE:
                self._channel = None
                self._secured()
                self._arrived(inbox, nbytes)
                return
        opened = channel.open
        self._wait_for_handshake()
        try:
            plain = channel.receive(memoryview(inbox)[:nbytes])
        except ssl.SSLError:
            self._send(channel.pending())
            self.fail(None)
            return
        self._send(channel.pending())
        if channel.open and not opened:
            self._secured()
        for chunk in plain:
            if not self._closing:
                self._arrived(chunk, len(chunk))
        if channel.ended:
            self.close()

    def eof_received(self) -> None:
        # The socket is closed next; what was asked for before is still answered.
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._parser = None
        self._set_expiry(0)
        self.session.close()
        self._listener.dismiss(self)

    # Output

    def flush(self) -> None:
        """Send what the session has to say; a client that does not keep up is cut off."""
        if self.session.parted and self.in_parts and self._channel is None:
            parts = self.session.take_parts()
            if self._transport.is_closing():
                return
            self._transport.writelines(parts)
            self._note_backlog()
        else:
            out = self.session.take()
            if not out or self._transport.is_closing():
                return
            self._send_plain(self._framed(out))
        if self.session.waiting and not self.session.blocked:
            self.session.drained()

    def _framed(self, out: bytearray) -> bytes | bytearray:
        """What goes out as this kind of connection carries it."""
        return out

    def _send_plain(self, data: bytes | bytearray) -> None:
        """Send, sealed where there is TLS; before the handshake only the greeting goes as it is."""
        channel = self._channel
        if channel is None:
            self._send(data)
        elif channel.open:
            self._send(channel.seal(data))
        elif not self.session.stamped:
            self._transport.write(data)

    def _send(self, data: bytes | bytearray) -> None:
        if not data:
            return
        self._transport.write(data)
        self._note_backlog()

    def _note_backlog(self) -> None:
        pending = self._transport.get_write_buffer_size()
        if pending:
            self._listener.backlog(self, pending)

    def pause_writing(self) -> None:
        self.session.blocked = True
        self._listener.block(self)

    def resume_writing(self) -> None:
        self._listener.unblock(self)
        self.session.drained()

    @property
    def number(self) -> int:
        """The client id, which the wheel knows it by."""
        return self.session.cid

    @property
    def bytes_pending(self) -> int:
        """What waits to be sent."""
        return len(self.session.out) + self.session.parted + self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # The end

    def fail(self, text: str | None) -> None:
        """End the connection, saying why unless the reference keeps silent there."""
        if text is not None:
            self.session.complain(text)
        self._listener.log.debug(f"cid {self.session.cid}: closed: {text or 'malformed operation'}")
        self.close()

    def close(self) -> None:
        """End the connection after what was said has been sent."""
        if self._closing:
            return
        self.flush()
        self._say_goodbye()
        self._closing = True
        self.session.close()
        if self._channel is not None and self._channel.open:
            self._send(self._channel.close())
        self._transport.close()
        self._listener.wheel.appoint(self, LINGER_S)

    def _say_goodbye(self) -> None:
        """What this kind of connection says last."""

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self.session.close()
        self._transport.abort()

    # Patience

    def look(self) -> None:
        """The appointed time has come: somebody was silent for long."""
        if self._closing:
            self._transport.abort()
        elif self._channel is not None and not self._channel.open:
            self._look_at_handshake()
        elif not self.session.ready:
            self.fail("Authentication Timeout")
        else:
            self._ping()

    def _look_at_handshake(self) -> None:
        """No TLS yet: who was waited for in silence is greeted now, anybody else is cut off."""
        if self._greeted or not self._listener.options.tls_first_wait_s:
            self.abort()
            return
        self._greet()
        self._listener.wheel.appoint(self, self._listener.options.tls_timeout_s)

    def _ping(self) -> None:
        """Ask whether the client is there, unless it was heard since; too many questions open end it."""
        session, listener = self.session, self._listener
        seen = session.activity + session.in_msgs
        if not self._pinged or seen == self._seen:
            if session.pings_out >= listener.options.ping_max:
                listener.stale_connections += 1
                self.fail("Stale Connection")
                return
            self._pinged = True
            session.ping()
        self._seen = seen
        listener.wheel.appoint(self, listener.options.ping_interval_s)

    # What the session asks of its owner

    def now_ns(self) -> int:
        return int(self._listener.loop.time() * 1e9)

    def authenticate(self, fields: Mapping[str, Any]) -> Identity | None:
        identity = self._listener.authenticator.check(fields, self.approach())
        if identity is not None:
            self._listener.enroll(self, identity)
            self._set_expiry(identity.expires_s, identity.grant.expiry if identity.grant else "")
        return identity

    def approach(self) -> Approach:
        """How this client comes in."""
        certificate = (
            self._channel.certificate() if self._channel is not None and self._channel.open else None
        )
        door = self._door
        return Approach(self._nonce, door.kind, self.client_ip, certificate, door.map_users, door.stranger)

    def allow_payload(self, most: int) -> None:
        """Take no larger messages than this."""
        if self._parser is not None:
            self._parser.payload_max = most

    @property
    def kind(self) -> str:
        """What kind of connection this is, such as STANDARD."""
        return self._door.kind

    def _set_expiry(self, at_s: float, text: str = "") -> None:
        """Who came with a token goes when it ends."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if at_s:
            delay_s = max(at_s - time.time(), 0.0)
            self._expiry = self._listener.loop.call_later(delay_s, self.fail, text)

    def connected(self) -> None:
        self._listener.on_come(self.session)
        first = min(self._listener.options.ping_interval_s, FIRST_PING_S)
        self._listener.wheel.appoint(self, first * (1 + FIRST_PING_SPREAD * random.random()))

    def info(self) -> bytes:
        identity = self.session.identity
        return self._listener.info(self, self._door, account=identity.account if identity else "")
