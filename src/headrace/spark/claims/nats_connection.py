"""nats-py connections for the claim operations of tasks: registering, confirming, collecting.

Owns the conversion from an address in the options to such a connection. Must not know Spark.
"""

from __future__ import annotations

import ssl
from typing import Any

from nats.aio.client import Client as Connection
from nats.errors import Error as NatsError

from headrace.claims import lenient_parsing
from headrace.reader.blocking_connection import ConnectionFailed, ServerAddress


async def connect(address: ServerAddress) -> Connection:
    """Connect to the address; raise `ConnectionFailed` if that is not possible."""
    options: dict[str, Any] = {
        "connect_timeout": max(round(address.timeout_s), 1),
        "max_reconnect_attempts": 3,
        "allow_reconnect": True,
        "error_cb": _ignore_error,
    }
    if address.user:
        options |= {"user": address.user, "password": address.password}
    if address.token:
        options["token"] = address.token
    if address.creds:
        options["user_credentials"] = address.creds
    if address.tls_ca or address.tls_cert:
        context = ssl.create_default_context(cafile=address.tls_ca or None)
        if address.tls_cert:
            context.load_cert_chain(address.tls_cert, address.tls_key or None)
        options["tls"] = context
    try:
        return await lenient_parsing.connect(list(address.servers), **options)
    except (NatsError, OSError) as error:
        raise ConnectionFailed(
            f"no server can be reached ({address.redacted_servers}: {error}); check option `servers`"
        ) from error


async def _ignore_error(_: Exception) -> None:
    """Ignore the error: the call that fails reports it."""
