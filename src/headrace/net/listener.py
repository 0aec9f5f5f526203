"""The door for clients: accepts them, gives each its session, flushes what is for them, and sends them home.

Owns the set of connections and what they share: the receive buffer, the flush at the end of a turn of the
loop, the wheel of patience, the limits. Invariant: at most one write per connection and turn, however many
messages it is for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from headrace.broker import Account, Accounts, Limits, Session
from headrace.errors import ProtocolError
from headrace.kernel import Parser
from headrace.net.auth import STANDARD, WEBSOCKET, Authenticator, Identity
from headrace.net.connection import Connection
from headrace.net.doors import Door
from headrace.net.info import Card
from headrace.net.logs import SILENT, Log
from headrace.net.options import Options
from headrace.net.outflow import Outflow
from headrace.net.wheel import Wheel

INBOX_BYTES = 512 * 1024
BACKLOG = 4096
STALL_S = 0.005
STRAIN = 0.75
STOP_PATIENCE_S = 2.0
LAME_DUCK_STEP_S_MAX = 1.0


class Listener:
    """Clients on one address, and what they share with those who come by other doors."""

    door: Door
    _web_door: Door

    def __init__(
        self,
        accounts: Accounts,
        options: Options,
        *,
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        log: Log = SILENT,
        server_id: str = "",
        server_name: str = "",
    ) -> None:
        self.accounts = accounts
        self.options = options
        self.authenticator = authenticator or Authenticator(options)
        self.tls = tls
        self.log = log
        self.connections: dict[int, Connection] = {}
        self._blocked: dict[Connection, float] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self.inbox = bytearray(INBOX_BYTES)
        self.strained = False
        #: Asked after each chunk: whether more waits for the disk than should.
        self.pressed: Callable[[], bool] = lambda: False
        self.total_connections = 0
        self.slow_consumers = 0
        self.stale_connections = 0
        self.host, self.port = options.host, options.port
        self._server_id, self._server_name = server_id, server_name or server_id
        self._limits = Limits(options.max_subscriptions, options.max_subscription_tokens)
        self._gone = (0, 0, 0, 0)
        self._paused = False
        self._held_back: dict[Connection, None] = {}
        self._lame = False
        self._empty: asyncio.Event | None = None
        #: Told of every client that was let in, and that is gone.
        self.on_come: Callable[[Session], None] = lambda session: None
        self.on_go: Callable[[Session], None] = lambda session: None
        self._server: asyncio.Server | None = None
        self._web_server: asyncio.Server | None = None
        self.web_port = 0

    # Life

    async def start(self) -> None:
        """Listen; raises OSError when the address is not to be had."""
        self.loop = asyncio.get_running_loop()
        self.wheel = Wheel(self.loop, self.connections.get)
        self.outflow = Outflow(
            self.loop, self.accounts.dirty, lambda: int(self.options.max_pending * STRAIN), self._cannot_send
        )
        self._server = await self.loop.create_server(
            lambda: Connection(self, self.door),
            self.options.host or "0.0.0.0",
            max(self.options.port, 0),
            backlog=BACKLOG,
            start_serving=False,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.door = self._make_door(self.tls)
        self.accounts.wake_by(self._wake, self.loop.call_soon)
        await self._server.start_serving()

    async def start_web(self, tls: ssl.SSLContext | None) -> None:
        """Listen for WebSocket clients, too; raises OSError when the address is not to be had."""
        from headrace.net.web import open_web

        settings = self.options.websocket
        host = settings.host or self.options.host
        self._web_server = server = await open_web(
            self, lambda: (self._web_door, self.options.websocket), host or "0.0.0.0", settings.port
        )
        self.web_port = server.sockets[0].getsockname()[1]
        self._web_door = self._make_web_door(tls)
        await server.start_serving()

    def _make_web_door(self, tls: ssl.SSLContext | None) -> Door:
        settings = self.options.websocket
        card = Card(
            self.options,
            self._server_id,
            self._server_name,
            settings.host or self.host,
            self.web_port,
            tls=tls is not None,
            verify=settings.tls.verify,
            stranger=settings.no_auth_user,
        )
        return Door(WEBSOCKET, card, tls, settings.tls.map_users, settings.no_auth_user)

    async def stop(self) -> None:
        """Accept no more, send what is pending, close."""
        self.close_door()
        for connection in list(self.connections.values()):
            connection.close()
        if self.connections:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(STOP_PATIENCE_S):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections.values()):
                    connection.abort()
                await asyncio.sleep(0)
        self.wheel.stop()
        if self._deadline is not None:
            self._deadline.cancel()
        self.accounts.wake_by(None)

    def adopt(
        self, options: Options, tls: ssl.SSLContext | None, web_tls: ssl.SSLContext | None = None
    ) -> None:
        """Go by these options from now on; the address stays what it is."""
        self.options, self.tls = options, tls
        self._limits = Limits(options.max_subscriptions, options.max_subscription_tokens)
        door = self._make_door(tls)
        # Who is here came through the old one; from now on it is the same.
        self.door.card, self.door.tls, self.door.map_users = door.card, door.tls, door.map_users
        if self._web_server is not None:
            self._web_door = self._make_web_door(web_tls)

    def _make_door(self, tls: ssl.SSLContext | None) -> Door:
        card = Card(self.options, self._server_id, self._server_name, self.host, self.port)
        return Door(STANDARD, card, tls, self.options.tls_map)

    def close_door(self) -> None:
        """Accept no more."""
        for server in (self._server, self._web_server):
            if server is not None:
                server.close()
        self._server = self._web_server = None

    async def lame_duck(self) -> None:
        """Accept no more, tell clients to go elsewhere, close them one by one; returns when all are gone."""
        self.close_door()
        self._lame = True
        for connection in self.connections.values():
            if connection.session.protocol >= 1:
                connection.session.send(connection.info())
        await asyncio.sleep(self.options.lame_duck_grace_s)
        spread = max(self.options.lame_duck_duration_s - self.options.lame_duck_grace_s, 0.0)
        leaving = list(self.connections.values())
        step = min(spread / max(len(leaving), 1), LAME_DUCK_STEP_S_MAX)
        for connection in leaving:
            connection.close()
            await asyncio.sleep(step)

    # What connections need

    @property
    def crowded(self) -> bool:
        most = self.options.max_connections
        return bool(most) and len(self.connections) > most

    def admit(self, connection: Connection) -> tuple[Session, Parser]:
        """A session and a parser for a new connection."""
        self.total_connections += 1
        cid = self.total_connections
        session = Session(self.accounts.main.hub, connection, cid, self._limits, False)
        approach = connection.approach()
        if not self.authenticator.required_for(approach):
            # Whoever may come unknown is let in under the same rules as with a CONNECT that names nobody.
            identity = self.authenticator.check({}, approach)
            if identity is not None and not self._account(identity).full:
                self._join(session, identity)
                session.admit_as(identity)
                session.ready = True
        self.connections[cid] = connection
        return session, Parser(session, self.options.max_control_line, self._payload(session.identity))

    def enroll(self, connection: Connection, identity: Identity) -> None:
        """Bring a session into the account of whom it speaks for, with the limits that go with it."""
        session = connection.session
        self._leave(session)
        if self._account(identity).full:
            raise ProtocolError("maximum account active connections exceeded")
        self._join(session, identity)
        connection.allow_payload(self._payload(identity))

    def _account(self, identity: Identity) -> Account:
        return self.accounts.make(identity.account)

    def _join(self, session: Session, identity: Identity) -> None:
        account = self._account(identity)
        session.bind(account.hub)
        account.sessions.add(session)
        caps = [most for most in (identity.subscriptions, account.limits.subscriptions) if most >= 0]
        session.limits = self._limits.capped(caps)

    def _payload(self, identity: Any) -> int:
        """The largest message that somebody may send."""
        caps = [self.options.max_payload]
        if isinstance(identity, Identity):
            caps += [most for most in (identity.payload, self._account(identity).limits.payload) if most >= 0]
        return min(caps)

    def _leave(self, session: Session) -> None:
        if session.identity is not None:
            self.accounts.make(session.identity.account).sessions.discard(session)

    def dismiss(self, connection: Connection) -> None:
        """A connection is gone; what it moved stays counted."""
        session = connection.session
        moved = (session.in_msgs, session.in_bytes, session.out_msgs, session.out_bytes)
        self._gone = tuple(a + b for a, b in zip(self._gone, moved, strict=True))  # type: ignore[assignment]
        self.connections.pop(session.cid, None)
        self._leave(session)
        if session.stamped:
            self.on_go(session)
        self._blocked.pop(connection, None)
        self._held_back.pop(connection, None)
        self.outflow.forget(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def info(self, connection: Connection, door: Door, *, account: str = "", nonce: str = "") -> bytes:
        """The INFO line for one client."""
        return door.card.line(
            connection.session.cid,
            connection.client_ip,
            account=account,
            system=account == self.accounts.system.name,
            lame_duck=self._lame,
            nonce=nonce,
            max_payload=self._payload(connection.session.identity) if account else 0,
        )

    def traffic(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, messages and bytes out, since the start."""
        totals = list(self._gone)
        for connection in self.connections.values():
            s = connection.session
            for position, value in enumerate((s.in_msgs, s.in_bytes, s.out_msgs, s.out_bytes)):
                totals[position] += value
        return totals[0], totals[1], totals[2], totals[3]

    # Output

    def _wake(self) -> None:
        """The first session of this turn has output: flush when the turn is over."""
        self.loop.call_soon(self.outflow.flush)

    def _cannot_send(self, session: Any, error: Exception) -> None:
        self.log.error(f"cid {session.cid}: {type(error).__name__}: {error}")
        session.owner.abort()

    def backlog(self, connection: Connection, pending: int) -> None:
        """A client has not taken all that was sent: cut it off, or slow publishers when it is near that."""
        limit = self.options.max_pending
        if pending > limit:
            self.slow_consumers += 1
            self.log.warn(f"cid {connection.session.cid}: slow consumer: {pending} bytes pending")
            connection.abort()
        elif pending > limit * STRAIN:
            self.strained = True

    def block(self, connection: Connection) -> None:
        """A client's socket is full: from now on its write deadline runs."""
        self._blocked[connection] = self.loop.time() + self.options.write_deadline_s
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.options.write_deadline_s, self._cut_blocked)

    def unblock(self, connection: Connection) -> None:
        """A client has taken all that was sent."""
        self._blocked.pop(connection, None)

    def _cut_blocked(self) -> None:
        """Cut off those whose socket has been full for longer than the write deadline."""
        self._deadline = None
        now = self.loop.time()
        for connection in [c for c, deadline in self._blocked.items() if deadline <= now]:
            self.slow_consumers += 1
            self.log.warn(f"cid {connection.session.cid}: slow consumer: write deadline exceeded")
            connection.abort()
        if self._blocked:
            self._deadline = self.loop.call_at(min(self._blocked.values()), self._cut_blocked)

    # Back-pressure

    def pause_publishers(self) -> None:
        """Stop reading from whoever sends something, until `resume_publishers`."""
        self._paused = self.strained = True

    def resume_publishers(self) -> None:
        """Read again."""
        self._paused = self.strained = False
        held, self._held_back = self._held_back, {}
        for connection in held:
            connection.resume_reading()

    def relieve(self) -> None:
        """Read again, if publishers were paused."""
        if self._paused:
            self.resume_publishers()

    def hold_back(self, connection: Connection) -> None:
        """Stop reading from a connection that sends while the server is strained."""
        connection.pause_reading()
        if not self._held_back and not self._paused:
            self.loop.call_later(STALL_S, self._relax)
        self._held_back[connection] = None

    def _relax(self) -> None:
        if not self._paused:
            self.resume_publishers()
