"""How a part of the server's own process connects to it as a client."""

from __future__ import annotations

import secrets
import ssl
from typing import Any

from headrace.net.auth import INSIDER
from headrace.net.doors import address
from headrace.net.listener import Listener
from headrace.net.options import LOOPBACK_HOST, is_loopback


def way_in(listener: Listener) -> dict[str, Any]:
    """What to connect with; a secret that is made now and never written lets it in."""
    options = listener.options
    secret = listener.authenticator.inside_secret = secrets.token_hex(32)
    host = options.host if is_loopback(options.host) else LOOPBACK_HOST
    scheme = "tls" if options.tls_enabled else "nats"
    way = {"servers": f"{scheme}://{address(host, listener.port)}", "user": INSIDER, "password": secret}
    if not options.tls_enabled:
        return way
    # It is this very server that answers: its name need not be in the certificate.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if options.tls_verify:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return {**way, "tls": context, "tls_handshake_first": options.tls_handshake_first}
