"""Credentials for code in the server's own process that connects to it as a client. See ADR 32."""

from __future__ import annotations

import secrets
import ssl
from typing import Any

from headrace.auth.authenticator import INTERNAL_USER
from headrace.config.open_listeners import is_loopback
from headrace.config.options import LOOPBACK_HOST
from headrace.net.listener import Listener
from headrace.net.listener_profile import format_address


def make_internal_credentials(listener: Listener) -> dict[str, Any]:
    """Return options to connect with; they contain a secret that is created now and never stored."""
    options = listener.options
    secret = listener.registry.authenticator.internal_secret = secrets.token_hex(32)
    host = options.host if is_loopback(options.host) else LOOPBACK_HOST
    scheme = "tls" if options.tls_enabled else "nats"
    credentials = {
        "servers": f"{scheme}://{format_address(host, listener.port)}",
        "user": INTERNAL_USER,
        "password": secret,
    }
    if not options.tls_enabled:
        return credentials
    # The client connects to its own server: the name need not be in the certificate.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if options.tls_verify:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return {**credentials, "tls": context, "tls_handshake_first": options.tls_handshake_first}
