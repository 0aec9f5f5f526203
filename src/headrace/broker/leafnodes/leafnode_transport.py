"""What a leafnode session needs from its transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.broker.routing.session import SessionIdentity


class LeafnodeTransport(Protocol):
    """The transport of a session, usually a connection."""

    client_ip: str

    @property
    def compression(self) -> str:
        """The mode of compression, as the monitoring pages show it."""

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        """Authenticate a CONNECT; None is an authorization violation."""

    def leafnodes(self, account: str) -> LeafnodeSet:
        """Return the leafnode connections of an account; raise ProtocolError if it may have no more."""

    def start_tls(self, *, requested: bool) -> None:
        """Set up TLS, if the other side requested it or we require it, then call `send_connect`."""

    def negotiate_compression(self, offered: str) -> bool:
        """Select the compression by the other side's INFO; return whether everything after our INFO is compressed."""

    def on_pong(self) -> None:
        """Called when the other side answered a ping."""

    def credentials(self, nonce: str) -> dict[str, str]:
        """Return the credentials for CONNECT."""

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        """Return the INFO line for an authenticated server, with its permissions."""

    def may_subscribe(self, count: int) -> bool:
        """Whether the other side may add one more subscription to `count`."""

    def on_established(self) -> None:
        """Called when the handshake is complete."""

    def on_remote_error(self, text: str) -> None:
        """Called when the other side sent an error; the connection is ending."""

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless it is None."""
