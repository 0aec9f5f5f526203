"""Interfaces of a leafnode session: what it knows of its own server, and what it needs from its transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.broker.routing.session import SessionIdentity


@dataclass(frozen=True, slots=True)
class LeafnodeLocalInfo:
    """What this server says of itself."""

    server_id: str
    name: str
    version: str
    domain: str = ""
    jetstream: bool = False
    max_payload: int = 1024 * 1024


class LeafnodeTransport(Protocol):
    """What carries a session, a connection as a rule."""

    client_ip: str

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        """Who a CONNECT proves to be; None is a violation."""

    def leafnodes(self, account: str) -> LeafnodeSet:
        """The leafnode connections of an account; ProtocolError when it may have no more."""

    def start_tls(self, *, requested: bool) -> None:
        """Set up TLS, where the other side asked for it or we insist on it, then `send_connect`."""

    def credentials(self, nonce: str) -> dict[str, str]:
        """What a CONNECT says of who we are."""

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        """The INFO line for somebody who is known now, and what it may hear and say."""

    def may_subscribe(self, count: int) -> bool:
        """Whether the other side may want one thing more than these many."""

    def on_established(self) -> None:
        """Both sides know each other."""

    def on_remote_error(self, text: str) -> None:
        """The other side sent an error; the connection is ending."""

    def fail(self, text: str | None) -> None:
        """End the connection, saying why unless there is nothing to say."""
