"""A client's connection, as seen by what all connections share and by monitoring."""

from __future__ import annotations

from typing import Protocol

from headrace.auth.authenticator import AuthContext
from headrace.broker import Session, SessionTransport
from headrace.net.timer_wheel import Timed
from headrace.net.write_scheduler import PausableReader


class ClientConnection(SessionTransport, Timed, PausableReader, Protocol):
    """A connected client; `start_s` is when it connected, in the event loop's time."""

    session: Session
    client_port: int
    start_s: float

    @property
    def bytes_pending(self) -> int:
        """Bytes that wait to be sent."""

    def auth_context(self) -> AuthContext:
        """Return the properties of the connection that authentication needs."""

    def set_max_payload(self, max_payload: int) -> None:
        """Reject larger messages than this."""

    def fail(self, text: str | None) -> None:
        """End the connection, with an error text unless it is None."""

    def close(self) -> None:
        """Close the connection after pending output has been sent."""

    def abort(self) -> None:
        """Close the connection at once."""
