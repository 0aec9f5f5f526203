"""What clients who come the same way share: the kind of connection, TLS, and what they are told first."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headrace.net.info import Card


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
