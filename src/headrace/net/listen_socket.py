"""Listening on an address, and the address of a peer.

Owns the rule that a wildcard address (`0.0.0.0`, `::` or none) means IPv4 and IPv6, as in nats-server. Both use one
socket, so a free port is free for both; a peer that uses IPv4 is shown with its IPv4 address.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

from headrace.config.leafnode_options import WILDCARD_HOSTS

BACKLOG = 100
_MAPPED_IPV4 = "::ffff:"
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def start_listening(
    make_protocol: Callable[[], Any],
    host: str,
    port: int,
    *,
    backlog: int = BACKLOG,
    **options: Any,
) -> asyncio.Server:
    """Listen on an address, any free port if `port` is negative; raise OSError if it is not available."""
    loop = asyncio.get_running_loop()
    dual_stack = open_dual_stack_socket(max(port, 0), backlog) if host in WILDCARD_HOSTS else None
    if dual_stack is not None:
        return await loop.create_server(make_protocol, sock=dual_stack, backlog=backlog, **options)
    return await loop.create_server(
        make_protocol, host or "0.0.0.0", max(port, 0), backlog=backlog, **options
    )


def open_dual_stack_socket(port: int, backlog: int = BACKLOG) -> socket.socket | None:
    """Open a socket for all addresses; return None if this system has only IPv4."""
    if not socket.has_dualstack_ipv6():
        return None
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    except OSError as error:
        if error.errno in _NO_IPV6:
            return None
        raise


def get_peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Return the address and port of the other side."""
    host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
    return host.removeprefix(_MAPPED_IPV4) if "." in host else host, port
