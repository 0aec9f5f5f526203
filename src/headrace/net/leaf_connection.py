"""The socket of one leafnode connection, whichever side dialled: bytes to and fro, TLS, and the patience with both.

What is said is the session's business, who may say it the door's. A peer that does not take what is sent is cut off, as
slow clients are, and dials again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from headrace.broker import Identity
from headrace.broker.leaf import LeafSession
from headrace.broker.leaf_interest import Leaves
from headrace.errors import ProtocolError
from headrace.net.auth import Approach
from headrace.net.auth import Identity as Known
from headrace.net.leaf_options import Address, LeafRemote
from headrace.net.nkeys import new_nonce
from headrace.net.outflow import MODEST_BYTES
from headrace.net.secure import Channel
from headrace.protocol import frames
from headrace.protocol.leaf import LeafParser

if TYPE_CHECKING:
    from headrace.net.leaf import LeafDoor

FIRST_PING_S = 1.0
LINGER_S = 1.0
RELIEF_S = 0.01
BUFFER_BYTES = 1024 * 1024
#: From the first INFO to the second, which says that all is well.
JOIN_S = 5.0
#: The kind of connection that users can be confined to.
LEAFNODE = "LEAFNODE"


class LeafConnection(asyncio.Protocol):
    """A server on a socket; the `owner` of its session. `ended` is done when the socket is closed."""

    _transport: asyncio.Transport

    def __init__(
        self, door: LeafDoor, leaves: Leaves, remote: LeafRemote | None = None, address: Address | None = None
    ) -> None:
        """With a remote, we dialled it at that address."""
        self._door, self._remote, self._address = door, remote, address
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.was_joined = False
        self.client_ip, self.client_port = "", 0
        self._channel: Channel | None = None
        self._closing = False
        self._seen = 0
        self._nonce = new_nonce()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        cid = door.next_cid()
        denied = remote or LeafRemote(urls=())
        self.session = LeafSession(
            leaves,
            self,
            cid,
            door.local,
            dialled=remote is not None,
            hub_role=denied.hub,
            deny_imports=[each.encode() for each in denied.deny_imports],
            deny_exports=[each.encode() for each in denied.deny_exports],
        )
        self._parser = LeafParser(self.session, door.options.max_payload)

    @property
    def label(self) -> str:
        """For the log."""
        return f"lid {self.session.cid} {self.client_ip}"

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio's do without being of their kind.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.client_ip, self.client_port = peer[0], peer[1]
        self._door.connections[self.session.cid] = self
        if self._remote is not None:
            tls = self._remote.tls
            self._expect(self._remote.first_info_timeout_s, "no INFO came")
            if tls is not None and tls.handshake_first:
                self._begin_tls(self._door.dialling(self._remote))
        else:
            self._expect(self._door.leaf.auth_timeout_s, "Authentication Timeout")
            self._accepted()

    def _accepted(self) -> None:
        context, tls = self._door.tls, self._door.leaf.tls
        first = tls is not None and tls.handshake_first
        if not first:
            self._transport.write(self.info("", None, None))
        if context is not None:
            self._channel = Channel(context)

    def _begin_tls(self, context: ssl.SSLContext) -> None:
        assert self._address is not None
        self._channel = Channel(context, self._address.host)
        self._receive_secure(b"")

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._channel is None:
            self._feed(data)
        else:
            self._receive_secure(data)
        if self._door.pressed():
            self._hold_back()
        elif self._door.outflow.waiting and len(data) > MODEST_BYTES:
            self._door.outflow.hold(self)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self.fail(error.text)
        except Exception as error:  # whatever one peer triggers must not end the others
            self._door.log.error(f"{self.label}: {type(error).__name__}: {error}")
            self.fail(None)

    def _receive_secure(self, data: bytes) -> None:
        channel = self._channel
        assert channel is not None
        opened = channel.open
        try:
            plain = channel.receive(memoryview(data))
        except ssl.SSLError as error:
            self._door.log.warn(f"{self.label}: TLS: {error.reason or error}")
            self._write(channel.pending())
            self._end()
            return
        self._write(channel.pending())
        if channel.open and not opened:
            self._secured()
        for chunk in plain:
            if not self._closing:
                self._feed(chunk)
        if channel.ended:
            self._end()

    def _secured(self) -> None:
        """The channel is secret from now on."""
        if self._remote is None:
            tls = self._door.leaf.tls
            if tls is not None and tls.handshake_first:
                self.session.send(self.info("", None, None))
        elif not (self._remote.tls is not None and self._remote.tls.handshake_first):
            self.session.greet()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self.session.close()
        self._door.dismiss(self)
        if not self.ended.done():
            self.ended.set_result(None)

    # Output

    def flush(self) -> None:
        """Send what the session has to say."""
        if self._channel is not None and not self._channel.open:
            return  # after the handshake
        out = self.session.take()
        if not out or self._transport.is_closing():
            return
        self._write(out if self._channel is None else self._channel.seal(out))
        if self.session.waiting and not self.session.blocked:
            self.session.drained()

    def _write(self, data: bytes | bytearray) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > self._door.options.max_pending:
                self._slow("too much is pending")

    def pause_writing(self) -> None:
        self.session.blocked = True
        patience = self._door.options.write_deadline_s
        self._deadline = self._loop.call_later(patience, self._slow, "write deadline exceeded")

    def resume_writing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.session.drained()

    def _slow(self, why: str) -> None:
        self._door.log.warn(f"{self.label}: slow consumer: {why}")
        self.abort()

    # Back-pressure

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _hold_back(self) -> None:
        """More waits for the disk than should: read on when it has caught up."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_later(RELIEF_S, self._read_on)

    def _read_on(self) -> None:
        if self._transport.is_closing():
            return
        if self._door.pressed():
            self._loop.call_later(RELIEF_S, self._read_on)
        else:
            self._transport.resume_reading()

    # The end

    def fail(self, text: str | None) -> None:
        """End the connection, saying why unless there is nothing to say."""
        if self._closing:
            return
        if text is not None:
            self.session.send(frames.error(text))
            self._door.log.error(f"{self.label}: closed: {text}")
        self._end()

    def complained(self, text: str) -> None:
        self._door.log.error(f"{self.label}: the other side says {text!r}")
        self._end()

    def _end(self) -> None:
        """Close when what was said has been sent."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self.session.close()
        if self._channel is not None and self._channel.open:
            self._write(self._channel.close())
        self._transport.close()
        self._cancel()
        self._timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self.session.close()
        self._transport.abort()

    close = _end

    # Patience

    def _expect(self, patience_s: float, otherwise: str) -> None:
        self._cancel()
        self._timer = self._loop.call_later(patience_s, self.fail, otherwise)

    def _cancel(self) -> None:
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None

    def _ping(self) -> None:
        """Ask whether the other side is there, unless it was heard since."""
        session, options = self.session, self._door.options
        seen = session.activity + session.in_msgs
        if seen == self._seen:
            if session.pings_out >= options.ping_max:
                self.fail("Stale Connection")
                return
            session.pings_out += 1
            session.send(frames.PING)
        else:
            session.pings_out = 0
        self._seen = seen
        self._timer = self._loop.call_later(options.ping_interval_s, self._ping)

    # What the session asks of its owner

    def authenticate(self, fields: Mapping[str, Any]) -> Identity | None:
        certificate = self._channel.certificate() if self._channel is not None else None
        approach = Approach(
            kind=LEAFNODE, nonce=self._nonce, client_ip=self.client_ip, certificate=certificate
        )
        identity = self._door.authenticate(fields, approach)
        if isinstance(identity, Known) and identity.grant is not None and identity.expires_s:
            delay_s = max(identity.expires_s - time.time(), 0.0)
            self._expiry = self._loop.call_later(delay_s, self.fail, identity.grant.expiry)
        return identity

    def leaves(self, account: str) -> Leaves:
        return self._door.leaves(account)

    def secure(self, *, asked: bool) -> None:
        assert self._remote is not None
        assert self._address is not None
        if not (asked or self._remote.tls is not None or self._address.tls):
            self.session.greet()
            return
        self._expect(self._remote.tls.timeout_s if self._remote.tls else JOIN_S, "TLS took too long")
        if self._channel is None:
            self._begin_tls(self._door.dialling(self._remote))
        else:
            self.session.greet()

    def credentials(self, nonce: str) -> dict[str, str]:
        assert self._remote is not None
        assert self._address is not None
        self._expect(JOIN_S, "Stale Leaf Node Connection - Closing")
        return self._door.credentials(self._remote, self._address, nonce)

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        nonce = "" if account else self._nonce
        return self._door.info(self.session.cid, self.client_ip, nonce, account, imports, exports)

    def may_want(self, count: int) -> bool:
        return self._remote is not None or self._door.may_want(self.session, count)

    def joined(self) -> None:
        self.was_joined = True
        session = self.session
        self._door.log.info(f"{self.label}: leafnode connection with {session.name!r} for {session.account}")
        self._cancel()
        self._timer = self._loop.call_later(FIRST_PING_S, self._ping)
