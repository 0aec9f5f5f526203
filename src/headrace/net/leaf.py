"""Leafnodes: the door where other servers dial in, and those that this one dials.

Owns the set of connections and what they share. A connection is in one account; which one the user says who dials, or the
remote's configuration.
"""

from __future__ import annotations

import asyncio
import platform
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import API_LEVEL, COMPATIBLE_VERSION
from headrace.broker import Accounts, Identity
from headrace.broker.accounts import GLOBAL
from headrace.broker.leaf import LeafSession
from headrace.broker.leaf_interest import Leaves
from headrace.broker.leaf_owner import Local
from headrace.errors import ProtocolError
from headrace.net.auth import Approach, Authenticator
from headrace.net.auth import Identity as Known
from headrace.net.leaf_connection import LeafConnection
from headrace.net.leaf_options import ANYWHERE, Address, Leafnodes, LeafRemote
from headrace.net.leaf_remote import Dialler
from headrace.net.leaf_tls import dialling_context, listening_context
from headrace.net.logs import SILENT, Log
from headrace.net.options import Options, OptionsError
from headrace.net.outflow import Outflow
from headrace.protocol import frames

if TYPE_CHECKING:
    from headrace.net.listener import Listener

STOP_PATIENCE_S = 2.0
PROTOCOL = 1


class LeafDoor:
    """The leafnode connections of a server."""

    def __init__(
        self,
        accounts: Accounts,
        options: Options,
        *,
        server_id: str,
        server_name: str,
        clients: Listener,
        log: Log = SILENT,
    ) -> None:
        """`clients` is the door for clients, whose users may dial in here too."""
        self.options = options
        self.leaf: Leafnodes = options.leaf
        self.log = log
        self.connections: dict[int, LeafConnection] = {}
        self.port = self.leaf.port
        self.local = Local(
            server_id,
            server_name,
            COMPATIBLE_VERSION,
            options.domain,
            options.jetstream,
            options.max_payload,
        )
        self._accounts = accounts
        self._clients = clients
        self._leaves: dict[str, Leaves] = {}
        self._judge = _own_judge(options)
        self._cids = 0
        self._server: asyncio.Server | None = None
        self._diallers: list[Dialler] = []
        self.tls: ssl.SSLContext | None = None

    # Life

    async def start(self) -> None:
        """Listen and dial; raises OSError when the address is not to be had."""
        leaf = self.leaf
        if leaf.port:
            if leaf.tls is not None:
                self.tls = listening_context(leaf.tls)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: LeafConnection(self, self._known(GLOBAL)), self.host, max(leaf.port, 0)
            )
            self.port = self._server.sockets[0].getsockname()[1]
            self.log.info(f"Listening for leafnode connections on {self.host}:{self.port}")
        for remote in leaf.remotes:
            dialling_context(remote.tls)  # what is wrong with certificates is said at the start
            if remote.account and self._accounts.get(remote.account) is None:
                raise OptionsError(
                    f"a leafnode remote is in account {remote.account!r}, which is not configured"
                )
        self._diallers = [Dialler(self, remote) for remote in leaf.remotes if not remote.disabled]

    async def stop(self) -> None:
        """Take no more, dial no more, say what is left to say, close."""
        if self._server is not None:
            self._server.close()
        for dialler in self._diallers:
            await dialler.stop()
        there = list(self.connections.values())
        for connection in there:
            connection.close()
        if there:
            await asyncio.wait([each.ended for each in there], timeout=STOP_PATIENCE_S)

    @property
    def host(self) -> str:
        return self.leaf.host or self.options.host or "0.0.0.0"

    def pages(self) -> list[dict[str, Any]]:
        """The connections, in the fields of the monitoring page."""
        return [_shown(connection) for connection in self.connections.values() if connection.was_joined]

    # What connections need

    def next_cid(self) -> int:
        self._cids += 1
        return self._cids

    def dismiss(self, connection: LeafConnection) -> None:
        self.connections.pop(connection.session.cid, None)
        self.outflow.forget(connection)

    def pressed(self) -> bool:
        """Whether more waits for the disk than should."""
        return self._clients.pressed()

    @property
    def outflow(self) -> Outflow:
        """What is on its way to all who are connected."""
        return self._clients.outflow

    def leaves(self, account: str) -> Leaves:
        """The connections of an account; ProtocolError when it may have no more."""
        found = self._known(account or GLOBAL)
        if 0 <= self._accounts[found.account].limits.leafs <= len(found.sessions):
            raise ProtocolError("maximum account active leafnode connections exceeded")
        return found

    def _known(self, account: str) -> Leaves:
        there = self._accounts.make(account)
        if account not in self._leaves:
            self._leaves[account] = Leaves(there.hub, account)
        return self._leaves[account]

    def may_want(self, session: LeafSession, count: int) -> bool:
        """Whether somebody who dialled in may want one thing more: the limits of clients hold for it too."""
        most = [self.options.max_subscriptions] if self.options.max_subscriptions else []
        most.append(self._accounts[session.account].limits.subscriptions)
        if isinstance(session.identity, Known):
            most.append(session.identity.subscriptions)
        return all(count < each for each in most if each >= 0)

    def dialling(self, remote: LeafRemote) -> ssl.SSLContext:
        return dialling_context(remote.tls)

    def authenticate(self, fields: Mapping[str, Any], approach: Approach) -> Identity | None:
        """Who may dial in: users of the section if it has some, else those of the server."""
        judge = self._judge or self._clients.authenticator
        identity = judge.check(fields, approach)
        if identity is None or not self.leaf.account or identity.account != GLOBAL:
            return identity
        return Known(identity.user, self.leaf.account, identity.permissions)

    def credentials(self, remote: LeafRemote, address: Address, nonce: str) -> dict[str, str]:
        """Who we are for the other side."""
        found: dict[str, str] = {}
        if remote.credentials or remote.nkey:
            from headrace.net.leaf_credentials import signed_key, signed_token

            path = Path(remote.credentials)
            found |= signed_token(path, nonce) if remote.credentials else signed_key(remote.nkey, nonce)
        if address.user:
            found["user"] = address.user
            if address.password is None:
                found["auth_token"] = address.user
            else:
                found["pass"] = address.password
        return found

    def info(
        self,
        cid: int,
        client_ip: str,
        nonce: str,
        account: str,
        imports: dict[str, list[str]] | None,
        exports: dict[str, list[str]] | None,
    ) -> bytes:
        """The INFO line for somebody who dials in, before and after it is known."""
        options = self.options
        required = self._judge is not None or options.auth_required
        fields: dict[str, Any] = {
            "server_id": self.local.server_id,
            "server_name": self.local.name,
            "version": COMPATIBLE_VERSION,
            "proto": PROTOCOL,
            "go": f"python{platform.python_version()}",
            "host": self.host,
            "port": self.port,
            "headers": True,
            "auth_required": required,
            "tls_required": self.tls is not None,
            "tls_verify": self.leaf.tls is not None and self.leaf.tls.verify,
            "max_payload": options.max_payload,
            "jetstream": options.jetstream,
            "client_id": cid,
            "client_ip": client_ip,
            "nonce": nonce,
            "cluster": self.local.name,
            "domain": options.domain,
            "leafnode_urls": self._urls(),
            "info_on_connect": True,
            "connect_info": bool(account),
            "remote_account": account,
            "import": imports,
            "export": exports,
            "api_lvl": API_LEVEL if options.jetstream else 0,
        }
        kept = {key: value for key, value in fields.items() if value or key == "leafnode_urls"}
        return frames.info(kept)

    def _urls(self) -> list[str]:
        """Where else to dial; all addresses of this machine are none that others could dial."""
        if self.leaf.no_advertise or (self.host in ANYWHERE and not self.leaf.advertise):
            return []
        return [self.leaf.advertise or f"{self.host}:{self.port}"]


def _shown(connection: LeafConnection) -> dict[str, Any]:
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
        "subscriptions": len(session.far),
        "subscriptions_list": sorted(subject.decode("utf-8", "replace") for subject, _ in session.far),
        "compression": "off",
    }


def _own_judge(options: Options) -> Authenticator | None:
    """Who decides about those who dial in, when the section says so itself."""
    leaf = options.leaf
    if not leaf.has_credentials:
        return None
    return Authenticator(
        Options(
            user=leaf.user,
            password=leaf.password,
            users=leaf.users,
            accounts=options.accounts,
            system_account=options.system_account,
        )
    )
