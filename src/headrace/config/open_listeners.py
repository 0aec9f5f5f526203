"""Listeners that would accept clients from other machines without authentication.

Owns the rule that an open broker is a decision (ADR 2): every address for clients is checked by itself, with the TLS
settings and users that apply there. It must not know the files or sockets.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config.options import ServerOptions


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than `localhost` may resolve to any address."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def find_open_listener(o: ServerOptions) -> str:
    """Return an error text for the first listener that is open to other machines, "" if there is none."""
    if o.allow_remote_without_auth:
        return ""
    return _check_clients(o) or _check_websocket(o) or _check_leafnodes(o)


def is_client_listener_open(o: ServerOptions) -> bool:
    """Whether clients on other machines need neither credentials nor a certificate."""
    # With `allow_non_tls` a client may leave out TLS, and then nobody asks for its certificate.
    certificate_required = o.tls_files.verify and not o.allow_non_tls
    return not (is_loopback(o.host) or o.has_credentials or certificate_required)


def _check_clients(o: ServerOptions) -> str:
    if not is_client_listener_open(o):
        return ""
    return (
        f"refusing to listen on {o.host or 'all addresses'!r} without authentication: every client in the network "
        "could read and write all data. Use --user and --pass, --auth or --tlsverify (without allow_non_tls); "
        "or --allow_insecure to allow it"
    )


def _check_websocket(o: ServerOptions) -> str:
    """Check the WebSocket listener: client certificates that the other listener verifies prove nothing here."""
    websocket = o.websocket
    host = websocket.host or o.host
    certificate_required = bool(websocket.tls.cert) and websocket.tls.verify
    if not websocket.port or is_loopback(host) or o.has_credentials or certificate_required:
        return ""
    return (
        f"refusing to accept WebSocket clients on {host or 'all addresses'!r} without authentication: "
        "configure users or websocket { tls { verify: true } }, or use --allow_insecure to allow it"
    )


def _check_leafnodes(o: ServerOptions) -> str:
    leafnodes = o.effective_leafnodes
    host = leafnodes.host or o.host
    certificate_required = leafnodes.tls is not None and leafnodes.tls.verify
    has_auth = leafnodes.has_credentials or o.has_credentials or certificate_required
    if not leafnodes.port or is_loopback(host) or has_auth:
        return ""
    return (
        f"refusing to accept leafnode connections on {host or 'all addresses'!r} without authentication: "
        "configure leafnodes { authorization { user, password } }, or use --allow_insecure to allow it"
    )
