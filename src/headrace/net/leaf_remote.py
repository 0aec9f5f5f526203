"""Dialling another server and staying joined with it: again and again, a little later each time.

Owns the rhythm and the choice of the address. The other side may name more addresses of its cluster; they are tried too.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.errors import ProtocolError
from headrace.net.leaf_connection import LeafConnection
from headrace.net.leaf_options import ANYWHERE, Address, LeafRemote, address_of

if TYPE_CHECKING:
    from headrace.net.leaf import LeafDoor

#: How far the wait between attempts grows, in units of the configured one.
GROWTH_MAX = 8
REPORT_EVERY = 20


class Dialler:
    """One remote."""

    def __init__(self, door: LeafDoor, remote: LeafRemote) -> None:
        self._door = door
        self._remote = remote
        self._addresses = [address_of(url) for url in remote.urls]
        if not remote.no_randomize:
            random.shuffle(self._addresses)
        self._next = 0
        self._connection: LeafConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._stay())

    async def stop(self) -> None:
        """Leave, and do not come back."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _stay(self) -> None:
        failures = 0
        while True:
            address = self._pick()
            connection = await self._dial(address, failures)
            delay_s = 0.0
            if connection is not None:
                await connection.ended
                delay_s = connection.session.delay_s
                failures = 0 if connection.was_joined else failures
            failures += 1
            wait_s = self._door.leaf.reconnect_s * min(2 ** (failures - 1), GROWTH_MAX)
            await asyncio.sleep(max(delay_s, wait_s * random.uniform(0.5, 1.0)))

    def _pick(self) -> Address:
        found = self._addresses + self._discovered()
        self._next = (self._next + 1) % len(found)
        return found[self._next - 1]

    def _discovered(self) -> list[Address]:
        if self._remote.ignore_discovered or self._connection is None:
            return []
        first, known = self._addresses[0], {(each.host, each.port) for each in self._addresses}
        found = []
        for url in self._connection.session.other_urls:
            try:
                address = address_of(url)
            except ValueError:
                continue
            if (address.host, address.port) not in known and address.host not in ANYWHERE:
                found.append(first._replace(host=address.host, port=address.port))
        return found

    async def _dial(self, address: Address, failures: int) -> LeafConnection | None:
        door, remote, loop = self._door, self._remote, asyncio.get_running_loop()
        try:
            connection = LeafConnection(door, door.leaves(remote.account), remote, address)
            async with asyncio.timeout(remote.dial_timeout_s):
                await loop.create_connection(lambda: connection, address.host, address.port)
        # An address that the other side named may be none at all, the account may have enough connections for now.
        except (OSError, TimeoutError, ValueError, OverflowError, ProtocolError) as error:
            if failures % REPORT_EVERY == 0:
                reason = error or "no answer"
                door.log.error(f"Cannot join {address.shown} as leafnode (attempt {failures + 1}): {reason}")
            return None
        self._connection = connection
        return connection
