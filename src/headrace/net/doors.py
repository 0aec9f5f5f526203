"""What clients who come the same way share: the kind of connection, TLS, and what they are told first."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from headrace.net.info import Card
from headrace.net.options import OptionsError


@dataclass(slots=True)
class Door:
    """One address that clients connect to."""

    kind: str
    card: Card
    tls: ssl.SSLContext | None = None
    #: Users are found by what their certificates name.
    map_users: bool = False
    #: The user that strangers are taken for, where this door has its own.
    stranger: str = ""


def address(host: str, port: int) -> str:
    """Where a door is, as part of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"


def not_to_be_had(host: str, port: int, flag: str, error: OSError) -> OptionsError:
    """Why a door cannot be opened, and what to do."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return OptionsError(f"cannot listen on {address(host, port)}: {reason}; choose another port with {flag}")
