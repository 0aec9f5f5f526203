"""What the clients of one address share: the type of connection, TLS, and the INFO template."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from headrace.config.options import OptionsError
from headrace.net.info import InfoTemplate


@dataclass(slots=True)
class ListenerProfile:
    """What the clients of one address share."""

    connection_type: str
    info_template: InfoTemplate
    tls: ssl.SSLContext | None = None
    #: Map users by the names in their certificates.
    map_users: bool = False
    #: The user of clients without credentials, if this listener has its own.
    no_auth_user: str = ""


def format_address(host: str, port: int) -> str:
    """Format a host and port as part of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"


def make_bind_error(host: str, port: int, flag: str, error: OSError) -> OptionsError:
    """Return the error for an address that cannot be bound, with what to do."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return OptionsError(
        f"cannot listen on {format_address(host, port)}: {reason}; choose another port with {flag}"
    )
