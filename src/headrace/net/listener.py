"""The client listener: accepts connections, creates their sessions, flushes output, closes them.

Owns the set of connections and what they share: the receive buffer, the flush at the end of a turn of the loop, the
timer wheel, the limits. Invariant: at most one write per connection and turn, however many messages it has.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from headrace._native import Parser
from headrace.auth.authenticator import STANDARD, WEBSOCKET, Authenticator, UserIdentity
from headrace.broker import Account, Accounts, Session, SessionLimits
from headrace.config.options import ServerOptions
from headrace.errors import ProtocolError
from headrace.net.connection import Connection
from headrace.net.info import InfoTemplate
from headrace.net.listener_profile import ListenerProfile
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.net.timer_wheel import TimerWheel
from headrace.net.write_scheduler import WriteScheduler

RECV_BUFFER_BYTES = 512 * 1024
LISTEN_BACKLOG = 4096
STALL_PAUSE_S = 0.005
CONGESTION_RATIO = 0.75
STOP_TIMEOUT_S = 2.0
LAME_DUCK_STEP_S_MAX = 1.0


class ConnectionObserver(Protocol):
    """Is told of clients that come and go."""

    def on_connect(self, session: Session) -> None:
        """Handle a client that was authenticated."""

    def on_disconnect(self, session: Session) -> None:
        """Handle an authenticated client that disconnected."""


class Listener:
    """Clients on one address, and what they share with clients of the WebSocket address."""

    profile: ListenerProfile
    _websocket_profile: ListenerProfile

    def __init__(
        self,
        accounts: Accounts,
        options: ServerOptions,
        *,
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        log: Logger = SILENT_LOGGER,
        server_id: str = "",
        server_name: str = "",
    ) -> None:
        self.accounts = accounts
        self.options = options
        self.authenticator = authenticator or Authenticator(options)
        self.tls = tls
        self.log = log
        self.connections: dict[int, Connection] = {}
        self._write_deadlines: dict[Connection, float] = {}
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.recv_buffer = bytearray(RECV_BUFFER_BYTES)
        self.congested = False
        #: Called after each chunk: whether too much waits for the disk.
        self.is_disk_backlogged: Callable[[], bool] = lambda: False
        self.total_connections = 0
        self.slow_consumers = 0
        self.stale_connections = 0
        self.host, self.port = options.host, options.port
        self._server_id, self._server_name = server_id, server_name or server_id
        self._limits = SessionLimits(options.max_subscriptions, options.max_subscription_tokens)
        self._closed_totals = (0, 0, 0, 0)
        self._publishers_paused = False
        self._paused_connections: dict[Connection, None] = {}
        self._in_lame_duck = False
        self._all_closed: asyncio.Event | None = None
        self.observer: ConnectionObserver | None = None
        self._server: asyncio.Server | None = None
        self._websocket_server: asyncio.Server | None = None
        self.websocket_port = 0

    # Life

    async def start(self) -> None:
        """Start listening; raise OSError if the address is not available."""
        self.loop = asyncio.get_running_loop()
        self.timer_wheel = TimerWheel(self.loop, self.connections.get)
        self.write_scheduler = WriteScheduler(
            self.loop,
            self.accounts.dirty,
            lambda: int(self.options.max_pending * CONGESTION_RATIO),
            self._on_send_error,
        )
        self._server = await self.loop.create_server(
            lambda: Connection(self, self.profile),
            self.options.host or "0.0.0.0",
            max(self.options.port, 0),
            backlog=LISTEN_BACKLOG,
            start_serving=False,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.profile = self._make_profile(self.tls)
        self.accounts.set_wakeup(self._schedule_flush, self.loop.call_soon)
        await self._server.start_serving()

    async def start_websocket(self, tls: ssl.SSLContext | None) -> None:
        """Listen for WebSocket clients, too; raise OSError if the address is not available."""
        from headrace.net.websocket_connection import create_websocket_server

        settings = self.options.websocket
        host = settings.host or self.options.host
        self._websocket_server = server = await create_websocket_server(
            self, lambda: (self._websocket_profile, self.options.websocket), host or "0.0.0.0", settings.port
        )
        self.websocket_port = server.sockets[0].getsockname()[1]
        self._websocket_profile = self._make_websocket_profile(tls)
        await server.start_serving()

    def _make_websocket_profile(self, tls: ssl.SSLContext | None) -> ListenerProfile:
        settings = self.options.websocket
        info_template = InfoTemplate(
            self.options,
            self._server_id,
            self._server_name,
            settings.host or self.host,
            self.websocket_port,
            tls=tls is not None,
            verify=settings.tls.verify,
            no_auth_user=settings.no_auth_user,
        )
        return ListenerProfile(WEBSOCKET, info_template, tls, settings.tls.map_users, settings.no_auth_user)

    async def stop(self) -> None:
        """Stop accepting, send pending output, close all connections."""
        self.stop_accepting()
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            self._all_closed = asyncio.Event()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in list(self.connections.values()):
                    connection.abort()
                await asyncio.sleep(0)
        self.timer_wheel.stop()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.accounts.set_wakeup(None)

    def reconfigure(
        self, options: ServerOptions, tls: ssl.SSLContext | None, websocket_tls: ssl.SSLContext | None = None
    ) -> None:
        """Apply new options; the address stays the same."""
        self.options, self.tls = options, tls
        self._limits = SessionLimits(options.max_subscriptions, options.max_subscription_tokens)
        profile = self._make_profile(tls)
        # Existing connections refer to the old profile, so change it in place.
        self.profile.info_template, self.profile.tls, self.profile.map_users = (
            profile.info_template,
            profile.tls,
            profile.map_users,
        )
        if self._websocket_server is not None:
            self._websocket_profile = self._make_websocket_profile(websocket_tls)

    def _make_profile(self, tls: ssl.SSLContext | None) -> ListenerProfile:
        info_template = InfoTemplate(self.options, self._server_id, self._server_name, self.host, self.port)
        return ListenerProfile(STANDARD, info_template, tls, self.options.tls_map)

    def stop_accepting(self) -> None:
        """Stop accepting connections."""
        for server in (self._server, self._websocket_server):
            if server is not None:
                server.close()
        self._server = self._websocket_server = None

    async def run_lame_duck(self) -> None:
        """Stop accepting, notify clients of lame duck mode, close them one by one; return when all are closed."""
        self.stop_accepting()
        self._in_lame_duck = True
        for connection in self.connections.values():
            if connection.session.protocol >= 1:
                connection.session.send(connection.info())
        await asyncio.sleep(self.options.lame_duck_grace_s)
        closing_s = max(self.options.lame_duck_duration_s - self.options.lame_duck_grace_s, 0.0)
        remaining = list(self.connections.values())
        step_s = min(closing_s / max(len(remaining), 1), LAME_DUCK_STEP_S_MAX)
        for connection in remaining:
            connection.close()
            await asyncio.sleep(step_s)

    # Connections

    @property
    def at_max_connections(self) -> bool:
        limit = self.options.max_connections
        return bool(limit) and len(self.connections) > limit

    def create_session(self, connection: Connection) -> tuple[Session, Parser]:
        """Create the session and the parser of a new connection."""
        self.total_connections += 1
        cid = self.total_connections
        session = Session(self.accounts.main.router, connection, cid, self._limits, False)
        auth_context = connection.auth_context()
        if not self.authenticator.is_required_for(auth_context):
            # A client that needs no authentication gets the same identity as with a CONNECT without credentials.
            identity = self.authenticator.check({}, auth_context)
            if identity is not None and not self._account_for(identity).at_max_connections:
                self._add_to_account(session, identity)
                session.authenticate_as(identity)
                session.authenticated = True
        self.connections[cid] = connection
        return session, Parser(
            session, self.options.max_control_line, self._max_payload_for(session.identity)
        )

    def bind_account(self, connection: Connection, identity: UserIdentity) -> None:
        """Move a session to the account of its user, and apply the limits of both."""
        session = connection.session
        self._remove_from_account(session)
        if self._account_for(identity).at_max_connections:
            raise ProtocolError("maximum account active connections exceeded")
        self._add_to_account(session, identity)
        connection.set_max_payload(self._max_payload_for(identity))

    def _account_for(self, identity: UserIdentity) -> Account:
        return self.accounts.get_or_create(identity.account)

    def _add_to_account(self, session: Session, identity: UserIdentity) -> None:
        account = self._account_for(identity)
        session.bind(account.router)
        account.sessions.add(session)
        caps = [limit for limit in (identity.subscriptions, account.limits.subscriptions) if limit >= 0]
        session.limits = self._limits.apply_caps(caps)

    def _max_payload_for(self, identity: Any) -> int:
        """Return the largest payload that a user may send."""
        caps = [self.options.max_payload]
        if isinstance(identity, UserIdentity):
            caps += [
                limit
                for limit in (identity.payload, self._account_for(identity).limits.payload)
                if limit >= 0
            ]
        return min(caps)

    def _remove_from_account(self, session: Session) -> None:
        if session.identity is not None:
            self.accounts.get_or_create(session.identity.account).sessions.discard(session)

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection; its traffic stays in the totals."""
        session = connection.session
        traffic = (session.in_msgs, session.in_bytes, session.out_msgs, session.out_bytes)
        self._closed_totals = tuple(a + b for a, b in zip(self._closed_totals, traffic, strict=True))  # type: ignore[assignment]
        self.connections.pop(session.cid, None)
        self._remove_from_account(session)
        if session.connect_accepted and self.observer is not None:
            self.observer.on_disconnect(session)
        self._write_deadlines.pop(connection, None)
        self._paused_connections.pop(connection, None)
        self.write_scheduler.remove_reader(connection)
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    def make_info(
        self, connection: Connection, profile: ListenerProfile, *, account: str = "", nonce: str = ""
    ) -> bytes:
        """Return the INFO line for one client."""
        return profile.info_template.render(
            connection.session.cid,
            connection.client_ip,
            account=account,
            is_system_account=account == self.accounts.system.name,
            lame_duck=self._in_lame_duck,
            nonce=nonce,
            max_payload=self._max_payload_for(connection.session.identity) if account else 0,
        )

    def get_traffic(self) -> tuple[int, int, int, int]:
        """Return messages and bytes in, messages and bytes out, since the start."""
        totals = list(self._closed_totals)
        for connection in self.connections.values():
            s = connection.session
            for position, value in enumerate((s.in_msgs, s.in_bytes, s.out_msgs, s.out_bytes)):
                totals[position] += value
        return totals[0], totals[1], totals[2], totals[3]

    # Output

    def _schedule_flush(self) -> None:
        """Flush at the end of the turn, when the first session has output."""
        self.loop.call_soon(self.write_scheduler.flush)

    def _on_send_error(self, session: Any, error: Exception) -> None:
        self.log.error(f"cid {session.cid}: {type(error).__name__}: {error}")
        session.transport.abort()

    def on_write_backlog(self, connection: Connection, pending: int) -> None:
        """Disconnect a client with too much pending output, or slow down publishers when it gets near the limit."""
        limit = self.options.max_pending
        if pending > limit:
            self.slow_consumers += 1
            self.log.warn(f"cid {connection.session.cid}: slow consumer: {pending} bytes pending")
            connection.abort()
        elif pending > limit * CONGESTION_RATIO:
            self.congested = True

    def start_write_deadline(self, connection: Connection) -> None:
        """Start the write deadline of a client whose socket is full."""
        self._write_deadlines[connection] = self.loop.time() + self.options.write_deadline_s
        if self._deadline_timer is None:
            self._deadline_timer = self.loop.call_later(self.options.write_deadline_s, self._abort_overdue)

    def clear_write_deadline(self, connection: Connection) -> None:
        """Stop the write deadline of a client whose output has been sent."""
        self._write_deadlines.pop(connection, None)

    def _abort_overdue(self) -> None:
        """Disconnect clients whose socket has been full for longer than the write deadline."""
        self._deadline_timer = None
        now = self.loop.time()
        for connection in [c for c, deadline in self._write_deadlines.items() if deadline <= now]:
            self.slow_consumers += 1
            self.log.warn(f"cid {connection.session.cid}: slow consumer: write deadline exceeded")
            connection.abort()
        if self._write_deadlines:
            self._deadline_timer = self.loop.call_at(min(self._write_deadlines.values()), self._abort_overdue)

    # Backpressure

    def pause_publishers(self) -> None:
        """Stop reading from connections that send something, until `resume_publishers`."""
        self._publishers_paused = self.congested = True

    def resume_publishers(self) -> None:
        """Resume reading from all paused connections."""
        self._publishers_paused = self.congested = False
        paused, self._paused_connections = self._paused_connections, {}
        for connection in paused:
            connection.resume_reading()

    def resume_if_paused(self) -> None:
        """Resume reading if publishers are paused."""
        if self._publishers_paused:
            self.resume_publishers()

    def pause_connection(self, connection: Connection) -> None:
        """Stop reading from a connection that sends while the server is congested."""
        connection.pause_reading()
        if not self._paused_connections and not self._publishers_paused:
            self.loop.call_later(STALL_PAUSE_S, self._resume_after_stall)
        self._paused_connections[connection] = None

    def _resume_after_stall(self) -> None:
        if not self._publishers_paused:
            self.resume_publishers()
