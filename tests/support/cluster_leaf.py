"""A Headrace that is connected to a cluster of nats-servers as a leafnode: the setup of a move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from conformance.servers import OURS, Server, Setup
from headrace.client import connect
from headrace.errors import HeadraceError
from headrace.migrate.inventory import can_reach
from headrace.migrate.jetstream_server import JetStreamServer
from support.cluster import Cluster

HUB, LEAF = "HUB", "LOCAL"
_DEADLINE_S = 120.0


class Pair(NamedTuple):
    """Headrace and the cluster that it is a leafnode of."""

    ours: Server
    cluster: Cluster

    def await_connected(self) -> None:
        """Wait until each side reaches the JetStream of the other, through every node."""
        asyncio.run(self._await_connected())

    async def _await_connected(self) -> None:
        nodes = [node for node in self.cluster.nodes if node.is_running]
        for url, domain in [(self.ours.url, HUB), *((node.url, LEAF) for node in nodes)]:
            deadline_s = time.monotonic() + _DEADLINE_S
            while not await _reaches(url, domain):
                assert time.monotonic() < deadline_s, f"{url} does not reach {domain}"
                await asyncio.sleep(0.1)


async def _reaches(url: str, domain: str) -> bool:
    try:
        async with await connect(url, allow_reconnect=False, connect_timeout=2) as connection:
            return await can_reach(JetStreamServer(connection, url, timeout_s=1.0), domain)
    except (HeadraceError, OSError):
        return False


@contextmanager
def start_pair(folder: Path, size: int = 3) -> Iterator[Pair]:
    """Start a cluster and a Headrace that dials all its nodes; wait until they are connected."""
    with Cluster(folder / "cluster", size, HUB) as cluster:
        urls = ", ".join(f"'nats-leaf://127.0.0.1:{node.leaf_port}'" for node in cluster.nodes)
        config = (
            f"jetstream {{ domain: {LEAF} }}\n"
            f"leafnodes {{ reconnect: '250ms', remotes: [ {{ urls: [{urls}] }} ] }}\n"
        )
        with Server(OURS, Setup(settings={"server_name": "ours"}, config=config)) as ours:
            pair = Pair(ours, cluster)
            pair.await_connected()
            yield pair
