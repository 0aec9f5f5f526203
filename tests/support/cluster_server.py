"""A cluster of three nats-servers in the role of one server, and streams with three replicas unless they say otherwise.

The third target of the conformance tests of client and claims: `HEADRACE_TARGET=cluster` selects it (`make test-cluster`).
Killing or restarting it does so to one node, the one that clients connect to first.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.aio.client

from support.cluster import Cluster

CLUSTER = "cluster"
IS_TARGET = os.environ.get("HEADRACE_TARGET") == CLUSTER
REPLICAS = 3
#: Ports of the nodes that run: tests also start single servers, which refuse replicas.
_ports: set[int] = set()


class ClusterServer:
    """A cluster with the attributes of `conformance.servers.Server` that tests of clients use."""

    kind = CLUSTER
    is_ours = False

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="conformance-cluster-"))
        self.cluster = Cluster(self._folder)
        try:
            self.cluster.__enter__()
        except BaseException:
            self.close()
            raise
        self._node = self.cluster.nodes[0]
        _ports.update(node.port for node in self.cluster.nodes)

    @property
    def port(self) -> int:
        return self._node.port

    @property
    def url(self) -> str:
        return self._node.url

    def log_text(self) -> str:
        return "\n".join(node.log for node in self.cluster.nodes)

    def kill(self) -> None:
        self._node.kill()

    def start(self) -> None:
        self._node.start()
        self.cluster.await_meta_leader(self._node)

    def restart(self, *, crash: bool = False) -> None:
        del crash
        self.kill()
        self.start()

    def close(self) -> None:
        _ports.difference_update(node.port for node in self.cluster.nodes)
        self.cluster.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> ClusterServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def replicated_streams() -> Iterator[None]:
    """Let every stream that a nats-py client creates on a cluster have three replicas, unless its request names a number."""
    publish = nats.aio.client.Client.publish

    async def publish_replicated(
        self: Any, subject: str, payload: bytes = b"", *arguments: Any, **options: Any
    ) -> None:
        if ".STREAM.CREATE." in subject and _is_on_cluster(self):
            payload = replicate(payload)
        await publish(self, subject, payload, *arguments, **options)

    nats.aio.client.Client.publish = publish_replicated  # type: ignore[assignment]
    try:
        yield
    finally:
        nats.aio.client.Client.publish = publish  # type: ignore[method-assign]


def _is_on_cluster(client: nats.aio.client.Client) -> bool:
    return client.connected_url is not None and client.connected_url.port in _ports


def replicate(payload: bytes) -> bytes:
    """Return the request to create a stream with three replicas, if it names no other number."""
    try:
        config = json.loads(payload)
    except ValueError:
        return payload
    if config.get("num_replicas", 1) > 1 or config.get("persist_mode") == "async":
        return payload
    return json.dumps({**config, "num_replicas": REPLICAS}).encode()
