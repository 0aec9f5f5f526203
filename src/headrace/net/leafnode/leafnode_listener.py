"""Leafnodes: the listener that other servers dial, and the remotes that this server dials.

Owns the set of connections and what they share. A connection belongs to one account: that of the user that dials in, or
the one in the remote's configuration.
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace import API_LEVEL, COMPATIBLE_VERSION
from headrace.auth.authenticator import AuthContext, Authenticator, RecheckResult
from headrace.auth.authenticator import UserIdentity as Known
from headrace.broker import Accounts, SessionIdentity
from headrace.broker.accounts import GLOBAL
from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.broker.leafnodes.leafnode_handshake import PROTOCOL, LeafnodeLocalInfo
from headrace.broker.leafnodes.leafnode_session import UNAUTHORIZED, LeafnodeSession
from headrace.broker.routing.permissions import have_equal_rules
from headrace.config.leafnode_options import WILDCARD_HOSTS, LeafnodeAddress, LeafnodeOptions, LeafnodeRemote
from headrace.config.options import OptionsError, ServerOptions
from headrace.errors import ProtocolError
from headrace.net.connection_context import ConnectionContext
from headrace.net.leafnode.dialer import LeafnodeDialer
from headrace.net.leafnode.leafnode_connection import LeafnodeConnection
from headrace.net.leafnode.leafnode_tls import make_leafnode_client_context, make_leafnode_server_context
from headrace.net.leafnode.output_queue import OutputQueue
from headrace.net.listen_socket import start_listening
from headrace.net.listener_profile import make_bind_error
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.protocol import server_lines

STOP_TIMEOUT_S = 2.0


class LeafnodeListener:
    """The leafnode connections of a server."""

    def __init__(
        self,
        accounts: Accounts,
        options: ServerOptions,
        *,
        server_id: str,
        server_name: str,
        clients: ConnectionContext,
        log: Logger = SILENT_LOGGER,
    ) -> None:
        """`clients` is what client connections share; their users may dial in here too."""
        self.options = options
        self.leafnode_options: LeafnodeOptions = options.effective_leafnodes
        self.log = log
        self.connections: dict[int, LeafnodeConnection] = {}
        self.port = self.leafnode_options.port
        self.local_info = LeafnodeLocalInfo(
            server_id,
            server_name,
            COMPATIBLE_VERSION,
            options.domain,
            options.jetstream,
            options.max_payload,
        )
        self._accounts = accounts
        self.write_scheduler = clients.write_scheduler
        self.input_queue = clients.input_queue
        self._client_registry = clients.registry
        self.password_verifier = clients.password_verifier
        self._client_backpressure = clients.backpressure
        self._may_send = clients.may_send
        self._leafnode_sets: dict[str, LeafnodeSet] = {}
        self._authenticator = _make_authenticator(options)
        self._last_cid = 0
        self._server: asyncio.Server | None = None
        self._dialers: list[LeafnodeDialer] = []
        self.tls: ssl.SSLContext | None = None

    # Start and stop

    async def start(self) -> None:
        """Start listening and dialing; raise OptionsError if the address is not available."""
        leafnode_options = self.leafnode_options
        if leafnode_options.port:
            if leafnode_options.tls is not None:
                self.tls = make_leafnode_server_context(leafnode_options.tls)
            try:
                self._server = await start_listening(
                    lambda: LeafnodeConnection(self, self._get_or_create_leafnodes(GLOBAL)),
                    self.host,
                    leafnode_options.port,
                )
            except OSError as error:
                raise make_bind_error(
                    self.host, leafnode_options.port, "leafnodes { port }", error
                ) from error
            self.port = self._server.sockets[0].getsockname()[1]
            self.log.info(f"Listening for leafnode connections on {self.host}:{self.port}")
        for remote in leafnode_options.remotes:
            make_leafnode_client_context(remote.tls)  # report errors in certificates at the start
            if remote.account and self._accounts.get(remote.account) is None:
                raise OptionsError(
                    f"a leafnode remote uses account {remote.account!r}, which is not configured"
                )
        self._dialers = [
            LeafnodeDialer(self, remote) for remote in leafnode_options.remotes if not remote.disabled
        ]

    async def stop(self) -> None:
        """Stop accepting and dialing, send pending output, close all connections."""
        if self._server is not None:
            self._server.close()
        for dialer in self._dialers:
            await dialer.stop()
        existing = list(self.connections.values())
        for connection in existing:
            connection.close()
        if existing:
            await asyncio.wait([each.closed for each in existing], timeout=STOP_TIMEOUT_S)

    @property
    def host(self) -> str:
        return self.leafnode_options.host or self.options.host or "0.0.0.0"

    def leafz_entries(self) -> list[dict[str, Any]]:
        """Return the connections, with the fields of the monitoring page."""
        return [
            _make_leafz_entry(connection)
            for connection in self.connections.values()
            if connection.was_established
        ]

    # Connections

    def next_cid(self) -> int:
        self._last_cid += 1
        return self._last_cid

    def count_ended(self) -> int:
        """Return how many connections have ended since the start."""
        return self._last_cid - len(self.connections)

    def remove(self, connection: LeafnodeConnection) -> None:
        self.connections.pop(connection.session.cid, None)
        self.write_scheduler.remove_reader(connection)

    def is_disk_backlogged(self) -> bool:
        """Whether too much waits for the disk."""
        disk = self._client_backpressure.disk
        return disk.is_high()

    def get_leafnodes(self, account: str) -> LeafnodeSet:
        """Return the connections of an account; raise ProtocolError if it may have no more."""
        found = self._get_or_create_leafnodes(account or GLOBAL)
        if 0 <= self._accounts[found.account].limits.leafs <= len(found.sessions):
            raise ProtocolError("maximum account active leafnode connections exceeded")
        return found

    def _get_or_create_leafnodes(self, account: str) -> LeafnodeSet:
        existing = self._accounts.get_or_create(account)
        if account not in self._leafnode_sets:
            self._leafnode_sets[account] = LeafnodeSet(existing.router, account)
        return self._leafnode_sets[account]

    def may_subscribe(self, session: LeafnodeSession, count: int) -> bool:
        """Whether a server that dialed in may add a subscription: the limits of clients apply to it too."""
        limits = [self.options.max_subscriptions] if self.options.max_subscriptions else []
        limits.append(self._accounts[session.account].limits.subscriptions)
        if isinstance(session.identity, Known):
            limits.append(session.identity.subscriptions)
        return all(count < each for each in limits if each >= 0)

    def _get_authenticator(self) -> Authenticator:
        return self._authenticator or self._client_registry.authenticator

    @property
    def has_slow_passwords(self) -> bool:
        """Whether checking a password may take long."""
        return self._get_authenticator().has_slow_passwords

    def authenticate(self, fields: Mapping[str, Any], auth_context: AuthContext) -> SessionIdentity | None:
        """Authenticate a server that dials in, by the users of the section if it has some, else by those of the server."""
        identity = self._get_authenticator().check(fields, auth_context)
        if identity is None or not self.leafnode_options.account or identity.account != GLOBAL:
            return identity
        return Known(identity.user, self.leafnode_options.account, identity.permissions)

    def recheck(self, authenticator: Authenticator, previous: Authenticator) -> None:
        """Disconnect servers whose user was removed or changed by a reload; they may dial again."""
        if self._authenticator is not None:
            return  # the section has users of its own, which change with a restart only
        for connection in list(self.connections.values()):
            identity = connection.session.identity
            if not isinstance(identity, Known):
                continue
            result, changed = authenticator.recheck(identity, previous)
            if result is not RecheckResult.ACCEPTED or not have_equal_rules(
                identity.permissions, changed.permissions
            ):
                connection.fail(UNAUTHORIZED)

    def make_output_queue(
        self, transport: asyncio.Transport, session: LeafnodeSession, on_stalled: Callable[[str], None]
    ) -> OutputQueue:
        """Return the queue for the output of a connection."""
        return OutputQueue(transport, session, self.options.write_deadline_s, on_stalled, self._may_send)

    def make_credentials(
        self, remote: LeafnodeRemote, address: LeafnodeAddress, nonce: str
    ) -> dict[str, str]:
        """Return this server's credentials for the other side."""
        found: dict[str, str] = {}
        if remote.credentials or remote.nkey:
            from headrace.auth.leafnode_credentials import sign_with_credentials_file, sign_with_nkey

            path = Path(remote.credentials)
            found |= (
                sign_with_credentials_file(path, nonce)
                if remote.credentials
                else sign_with_nkey(remote.nkey, nonce)
            )
        if address.user:
            found["user"] = address.user
            if address.password is None:
                found["auth_token"] = address.user
            else:
                found["pass"] = address.password
        return found

    def make_info(
        self,
        cid: int,
        client_ip: str,
        nonce: str,
        account: str,
        imports: dict[str, list[str]] | None,
        exports: dict[str, list[str]] | None,
        compression: str,
    ) -> bytes:
        """Return the INFO line for a server that dials in, before and after authentication."""
        options = self.options
        fields: dict[str, Any] = {
            "server_id": self.local_info.server_id,
            "server_name": self.local_info.name,
            "version": COMPATIBLE_VERSION,
            "proto": PROTOCOL,
            "go": f"python{platform.python_version()}",
            "host": self.host,
            "port": self.port,
            "headers": True,
            "auth_required": self._authenticator is not None or options.auth_required,
            "tls_required": self.tls is not None,
            "tls_verify": self.leafnode_options.tls is not None and self.leafnode_options.tls.verify,
            "max_payload": options.max_payload,
            "jetstream": options.jetstream,
            "client_id": cid,
            "client_ip": client_ip,
            "nonce": nonce,
            "cluster": self.local_info.name,
            "domain": options.domain,
            "leafnode_urls": self._get_advertised_urls(),
            "info_on_connect": True,
            "connect_info": bool(account),
            "remote_account": account,
            "import": imports,
            "export": exports,
            "compression": compression,
            "api_lvl": API_LEVEL if options.jetstream else 0,
        }
        return server_lines.encode_info({k: v for k, v in fields.items() if v or k == "leafnode_urls"})

    def _get_advertised_urls(self) -> list[str]:
        """Return other addresses to dial; a wildcard address is not one that others could dial."""
        if self.leafnode_options.no_advertise or (
            self.host in WILDCARD_HOSTS and not self.leafnode_options.advertise
        ):
            return []
        return [self.leafnode_options.advertise or f"{self.host}:{self.port}"]


def _make_leafz_entry(connection: LeafnodeConnection) -> dict[str, Any]:
    session = connection.session
    return {
        "id": session.cid,
        "name": session.name,
        "is_spoke": session.spoke,
        "account": session.account,
        "ip": connection.client_ip,
        "port": connection.client_port,
        "in_msgs": session.in_msgs,
        "out_msgs": session.out_msgs,
        "in_bytes": session.in_bytes,
        "out_bytes": session.out_bytes,
        "subscriptions": len(session.received_interest),
        "subscriptions_list": sorted(
            subject.decode("utf-8", "replace") for subject in session.received_interest.iter_subjects()
        ),
        "compression": connection.compression,
    }


def _make_authenticator(options: ServerOptions) -> Authenticator | None:
    """Return the authenticator for servers that dial in, if the section has credentials of its own."""
    leafnode_options = options.effective_leafnodes
    if not leafnode_options.has_credentials:
        return None
    return Authenticator(
        ServerOptions(
            user=leafnode_options.user,
            password=leafnode_options.password,
            users=leafnode_options.users,
            accounts=options.accounts,
            system_account=options.system_account,
        )
    )
