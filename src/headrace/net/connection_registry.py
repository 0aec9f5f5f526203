"""The clients that are connected: their sessions, accounts and limits, and the totals over all of them.

Owns the set of connections. Invariant: a session is in the account of its user and in no other, and a closed connection
is in none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace._native import Parser
from headrace.auth.authenticator import Authenticator, UserIdentity
from headrace.broker import Account, Accounts, Session, SessionLimits
from headrace.config.options import ServerOptions
from headrace.errors import ProtocolError
from headrace.net.client_connection import ClientConnection
from headrace.net.listener_profile import ListenerProfile
from headrace.net.logs import Logger

if TYPE_CHECKING:
    from headrace.net.protocol_trace import TracedSession


class ConnectionObserver(Protocol):
    """Is notified of clients that come and go."""

    def on_connect(self, session: Session) -> None:
        """Handle a client that was authenticated."""

    def on_disconnect(self, session: Session) -> None:
        """Handle an authenticated client that disconnected."""


class ConnectionRegistry:
    """The connections of a server's clients, by client id."""

    def __init__(
        self, accounts: Accounts, options: ServerOptions, authenticator: Authenticator, log: Logger
    ) -> None:
        self._log = log
        self._accounts = accounts
        self.connections: dict[int, ClientConnection] = {}
        self.total_connections = 0
        self.stale_connections = 0
        #: Clients are asked to connect elsewhere.
        self.in_lame_duck = False
        self.observer: ConnectionObserver | None = None
        self._closed_totals = (0, 0, 0, 0)
        self._all_closed: asyncio.Event | None = None
        self.reconfigure(options, authenticator)

    def reconfigure(self, options: ServerOptions, authenticator: Authenticator) -> None:
        """Apply new options to clients that connect from now on."""
        self.authenticator = authenticator
        self._options = options
        self._limits = SessionLimits(options.max_subscriptions, options.max_subscription_tokens)

    @property
    def at_max_connections(self) -> bool:
        limit = self._options.max_connections
        return bool(limit) and len(self.connections) > limit

    def create_session(self, connection: ClientConnection) -> tuple[Session, Parser]:
        """Create the session and the parser of a new connection."""
        self.total_connections += 1
        cid = self.total_connections
        session = self._make_session(connection, cid)
        auth_context = connection.auth_context()
        if not self.authenticator.is_required_for(auth_context):
            # A client that needs no authentication gets the same identity as with a CONNECT without credentials.
            identity = self.authenticator.check({}, auth_context)
            if identity is not None and not self._account_for(identity).at_max_connections:
                self._add_to_account(session, identity)
                session.authenticate_as(identity)
                session.authenticated = True
        self.connections[cid] = connection
        return session, self.make_parser(session)

    def _make_session(self, connection: ClientConnection, cid: int) -> Session:
        settings = (self._accounts.main.router, connection, cid, self._limits, False)
        if not self._log.trace_enabled:
            return Session(*settings)
        from headrace.net.protocol_trace import TracedSession

        return TracedSession(self._log, *settings)

    def make_parser(self, session: Session) -> Parser:
        """Create a parser for what a session receives."""
        parser = Parser(session, self._options.max_control_line, self._max_payload_for(session.identity))
        if type(session) is Session:
            return parser
        from headrace.net.protocol_trace import TracingParser

        return cast("Parser", TracingParser(parser, cast("TracedSession", session)))

    def authenticate(self, connection: ClientConnection, fields: Mapping[str, Any]) -> UserIdentity | None:
        """Check the credentials of a CONNECT, and move the session to the account of its user."""
        identity = self.authenticator.check(fields, connection.auth_context())
        if identity is not None:
            self._bind_account(connection, identity)
        return identity

    def on_connected(self, session: Session) -> None:
        """Notify the observer of a client whose CONNECT was accepted."""
        if self.observer is not None:
            self.observer.on_connect(session)

    def remove(self, connection: ClientConnection) -> None:
        """Remove a closed connection; its traffic stays in the totals."""
        session = connection.session
        traffic = (session.in_msgs, session.in_bytes, session.out_msgs, session.out_bytes)
        self._closed_totals = tuple(a + b for a, b in zip(self._closed_totals, traffic, strict=True))  # type: ignore[assignment]
        self.connections.pop(session.cid, None)
        self._remove_from_account(session)
        if session.connect_accepted and self.observer is not None:
            self.observer.on_disconnect(session)
        if self._all_closed is not None and not self.connections:
            self._all_closed.set()

    async def close_all(self, timeout_s: float) -> None:
        """Close all connections after their pending output has been sent; abort those that are not closed in time."""
        for connection in list(self.connections.values()):
            connection.close()
        if not self.connections:
            return
        self._all_closed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self.connections.values()):
                connection.abort()
            await asyncio.sleep(0)

    def make_info(
        self, connection: ClientConnection, profile: ListenerProfile, *, account: str = "", nonce: str = ""
    ) -> bytes:
        """Return the INFO line for one client."""
        session = connection.session
        return profile.info_template.render(
            session.cid,
            connection.client_ip,
            account=account,
            is_system_account=account == self._accounts.system.name,
            lame_duck=self.in_lame_duck,
            nonce=nonce,
            max_payload=self._max_payload_for(session.identity) if account else 0,
        )

    def get_traffic(self) -> tuple[int, int, int, int]:
        """Return messages and bytes in, messages and bytes out, since the start."""
        totals = list(self._closed_totals)
        for connection in self.connections.values():
            s = connection.session
            for position, value in enumerate((s.in_msgs, s.in_bytes, s.out_msgs, s.out_bytes)):
                totals[position] += value
        return totals[0], totals[1], totals[2], totals[3]

    # Accounts

    def _bind_account(self, connection: ClientConnection, identity: UserIdentity) -> None:
        """Move a session to the account of its user, and apply the limits of both."""
        session = connection.session
        self._remove_from_account(session)
        if self._account_for(identity).at_max_connections:
            raise ProtocolError("maximum account active connections exceeded")
        self._add_to_account(session, identity)
        connection.set_max_payload(self._max_payload_for(identity))

    def _account_for(self, identity: UserIdentity) -> Account:
        return self._accounts.get_or_create(identity.account)

    def _add_to_account(self, session: Session, identity: UserIdentity) -> None:
        account = self._account_for(identity)
        session.bind(account.router)
        account.sessions.add(session)
        caps = [limit for limit in (identity.subscriptions, account.limits.subscriptions) if limit >= 0]
        session.limits = self._limits.apply_caps(caps)

    def _remove_from_account(self, session: Session) -> None:
        if session.identity is not None:
            self._accounts.get_or_create(session.identity.account).sessions.discard(session)

    def _max_payload_for(self, identity: Any) -> int:
        """Return the largest payload that a user may send."""
        caps = [self._options.max_payload]
        if isinstance(identity, UserIdentity):
            caps += [
                limit
                for limit in (identity.payload, self._account_for(identity).limits.payload)
                if limit >= 0
            ]
        return min(caps)
