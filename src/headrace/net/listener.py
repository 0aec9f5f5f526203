"""The client listener: accepts connections on the addresses for clients, and closes them all at the end.

Owns the sockets, the profile of each address, and the objects that all connections share. Which clients are connected is
in the registry; when they have to wait is decided by the backpressure.
"""

from __future__ import annotations

import asyncio
import ssl

from headrace.auth.authenticator import STANDARD, WEBSOCKET, Authenticator
from headrace.broker import Accounts
from headrace.broker.commit.disk_backpressure import NO_DISKS
from headrace.config.options import ServerOptions
from headrace.net.client_backpressure import ClientBackpressure, DiskPressure
from headrace.net.client_connection import ClientConnection
from headrace.net.connection import Connection
from headrace.net.connection_context import ConnectionContext
from headrace.net.connection_registry import ConnectionRegistry
from headrace.net.info import InfoTemplate
from headrace.net.listen_socket import start_listening
from headrace.net.listener_profile import ListenerProfile, format_address, make_bind_error
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.net.password_verifier import PasswordVerifier
from headrace.net.timer_wheel import TimerWheel
from headrace.net.turn_queue import TurnQueue
from headrace.net.write_scheduler import WriteScheduler

RECV_BUFFER_BYTES = 512 * 1024
LISTEN_BACKLOG = 4096
STOP_TIMEOUT_S = 2.0
LAME_DUCK_STEP_S_MAX = 1.0
#: How often lame duck mode looks whether clients are left.
LAME_DUCK_POLL_S = 0.05


class Listener:
    """Clients on one address, and on the WebSocket address if there is one. Needs a running event loop."""

    profile: ListenerProfile
    _websocket_profile: ListenerProfile

    def __init__(
        self,
        accounts: Accounts,
        options: ServerOptions,
        *,
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        disk: DiskPressure = NO_DISKS,
        log: Logger = SILENT_LOGGER,
        server_id: str = "",
        server_name: str = "",
    ) -> None:
        self.accounts = accounts
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.registry = ConnectionRegistry(accounts, options, authenticator or Authenticator(options), log)
        self.backpressure = ClientBackpressure(self.loop, options, disk, log)
        self._write_scheduler = WriteScheduler(
            self.loop, accounts.dirty, self.backpressure.get_congestion_bytes, self.backpressure.on_send_error
        )
        self._timer_wheel = TimerWheel(self.loop, self.connections.get)
        self.context = ConnectionContext(
            self.loop,
            options,
            log,
            self.registry,
            self.backpressure,
            self._write_scheduler,
            self._timer_wheel,
            PasswordVerifier(self.loop),
            TurnQueue(self.loop),
            TurnQueue(self.loop),
            bytearray(RECV_BUFFER_BYTES),
        )
        #: Applies new permissions to connected clients after a reload.
        self.rechecks = TurnQueue(self.loop)
        self.host, self.port, self.websocket_port = options.host, options.port, 0
        self._tls = tls
        self._server_id, self._server_name = server_id, server_name or server_id
        self._server: asyncio.Server | None = None
        self._websocket_server: asyncio.Server | None = None

    @property
    def connections(self) -> dict[int, ClientConnection]:
        """The connections by client id."""
        return self.registry.connections

    async def start(self) -> None:
        """Start listening; raise OptionsError if the address is not available."""
        options, log = self.options, self.context.log
        try:
            await self._serve()
        except OSError as error:
            raise make_bind_error(options.host, options.port, "-p", error) from error
        log.info(f"Listening for client connections on {format_address(options.host, self.port)}")
        if self._tls is not None:
            log.info("TLS required for client connections")

    async def _serve(self) -> None:
        self._server = await start_listening(
            lambda: Connection(self.context, self.profile),
            self.options.host,
            self.options.port,
            backlog=LISTEN_BACKLOG,
            start_serving=False,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.profile = self._make_profile(self._tls)
        self.accounts.set_wakeup(self._schedule_flush, self.loop.call_soon)
        await self._server.start_serving()

    async def start_websocket(self, tls: ssl.SSLContext | None) -> None:
        """Listen for WebSocket clients, too; raise OptionsError if the address is not available."""
        settings = self.options.websocket
        host = settings.host or self.options.host
        try:
            await self._serve_websocket(host, settings.port, tls)
        except OSError as error:
            raise make_bind_error(host, settings.port, "websocket { port }", error) from error
        self.context.log.info(f"Listening for websocket clients on {self.websocket_url}")

    async def _serve_websocket(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        from headrace.net.websocket_connection import create_websocket_server

        self._websocket_server = server = await create_websocket_server(
            self.context, lambda: (self._websocket_profile, self.options.websocket), host, port
        )
        self.websocket_port = server.sockets[0].getsockname()[1]
        self._websocket_profile = self._make_websocket_profile(tls)
        await server.start_serving()

    @property
    def websocket_url(self) -> str:
        """The URL that WebSocket clients connect to; empty if there is none."""
        settings = self.options.websocket
        if not settings.port:
            return ""
        scheme = "wss" if settings.tls.cert else "ws"
        return f"{scheme}://{format_address(settings.host or self.options.host, self.websocket_port)}"

    async def stop(self) -> None:
        """Stop accepting, send pending output, close all connections."""
        self.stop_accepting()
        await self.registry.close_all(STOP_TIMEOUT_S)
        self.context.closed_queue.finish()
        self._timer_wheel.stop()
        self.backpressure.stop()
        self.context.password_verifier.close()
        self.accounts.set_wakeup(None)

    def stop_accepting(self) -> None:
        """Stop accepting connections."""
        for server in (self._server, self._websocket_server):
            if server is not None:
                server.close()
        self._server = self._websocket_server = None

    def announce_lame_duck(self) -> None:
        """Stop accepting connections, and notify clients that this server stops: they reconnect to another one."""
        self.stop_accepting()
        self.registry.in_lame_duck = True
        for connection in self.connections.values():
            session = connection.session
            if session.protocol >= 1:
                session.send(connection.info())

    async def run_lame_duck(self) -> None:
        """Stop accepting, notify clients of lame duck mode, close them one by one; return when all are closed."""
        self.announce_lame_duck()
        await self._wait_while_connected(self.options.lame_duck_grace_s)
        self.accounts.end_pulls()
        closing_s = max(self.options.lame_duck_duration_s - self.options.lame_duck_grace_s, 0.0)
        remaining = list(self.connections.values())
        step_s = min(closing_s / max(len(remaining), 1), LAME_DUCK_STEP_S_MAX)
        for connection in remaining:
            connection.close()
            await self._wait_while_connected(step_s)

    async def _wait_while_connected(self, timeout_s: float) -> None:
        """Wait this long, but not after the last client has left: then nothing keeps the server from stopping."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        while self.connections and (left_s := end_s - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, LAME_DUCK_POLL_S))

    def reconfigure(
        self,
        options: ServerOptions,
        authenticator: Authenticator,
        disk: DiskPressure,
        tls: ssl.SSLContext | None,
        websocket_tls: ssl.SSLContext | None = None,
    ) -> None:
        """Apply new options; the address stays the same."""
        self.options = self.context.options = options
        self._tls = tls
        self.registry.reconfigure(options, authenticator)
        self.backpressure.reconfigure(options, disk)
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

    def _schedule_flush(self) -> None:
        """Flush at the end of the turn, when the first session has output."""
        self.loop.call_soon(self._write_scheduler.flush)
