"""Dials another server and keeps the connection up, with increasing delays between attempts.

Owns the delays and the choice of the address. The other side may name more addresses of its cluster; they are tried too,
unless a password would be sent there and no certificate proves that it is the right server.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.config.leafnode_options import (
    WILDCARD_HOSTS,
    LeafnodeAddress,
    LeafnodeRemote,
    parse_leafnode_url,
)
from headrace.errors import ProtocolError
from headrace.net.leafnode.leafnode_connection import LeafnodeConnection

if TYPE_CHECKING:
    from headrace.net.leafnode.leafnode_listener import LeafnodeListener

#: The maximum delay between attempts, as a multiple of the configured one.
BACKOFF_MAX = 8
LOG_EVERY = 20


class LeafnodeDialer:
    """Keeps one remote connected."""

    def __init__(self, listener: LeafnodeListener, remote: LeafnodeRemote) -> None:
        self._listener = listener
        self._remote = remote
        self._addresses = [parse_leafnode_url(url) for url in remote.urls]
        if not remote.no_randomize:
            random.shuffle(self._addresses)
        self._next_index = 0
        self._connection: LeafnodeConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def stop(self) -> None:
        """Disconnect and do not dial again."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            address = self._next_address()
            connection = await self._dial(address, failures)
            delay_s = 0.0
            if connection is not None:
                await connection.closed
                delay_s = connection.session.reconnect_delay_s
                failures = 0 if connection.was_established else failures
            failures += 1
            wait_s = self._listener.leafnode_options.reconnect_s * min(2 ** (failures - 1), BACKOFF_MAX)
            await asyncio.sleep(max(delay_s, wait_s * random.uniform(0.5, 1.0)))

    def _next_address(self) -> LeafnodeAddress:
        addresses = self._addresses + self._get_discovered()
        self._next_index = (self._next_index + 1) % len(addresses)
        return addresses[self._next_index - 1]

    def _get_discovered(self) -> list[LeafnodeAddress]:
        if self._remote.ignore_discovered or self._connection is None or not self._may_send_elsewhere():
            return []
        first, known_addresses = self._addresses[0], {(each.host, each.port) for each in self._addresses}
        addresses = []
        for url in self._connection.session.advertised_urls:
            try:
                address = parse_leafnode_url(url)
            except ValueError:
                continue
            if (address.host, address.port) not in known_addresses and address.host not in WILDCARD_HOSTS:
                addresses.append(first._replace(host=address.host, port=address.port))
        return addresses

    def _may_send_elsewhere(self) -> bool:
        """Whether the credentials may be sent to an address that the other side names."""
        if not any(address.user for address in self._addresses):
            return True  # none, or a signature
        tls = self._remote.tls
        encrypted = tls is not None or all(address.tls for address in self._addresses)
        return encrypted and not (tls is not None and tls.insecure)

    async def _dial(self, address: LeafnodeAddress, failures: int) -> LeafnodeConnection | None:
        listener, remote, loop = self._listener, self._remote, asyncio.get_running_loop()
        try:
            connection = LeafnodeConnection(listener, listener.get_leafnodes(remote.account), remote, address)
            async with asyncio.timeout(remote.dial_timeout_s):
                await loop.create_connection(lambda: connection, address.host, address.port)
        # A discovered address may be invalid, and the account may have reached its limit of connections.
        except (OSError, TimeoutError, ValueError, OverflowError, ProtocolError) as error:
            if failures % LOG_EVERY == 0:
                reason = error or "no answer"
                listener.log.error(
                    f"Cannot connect to {address.host_port} as leafnode (attempt {failures + 1}): {reason}"
                )
            return None
        self._connection = connection
        return connection
