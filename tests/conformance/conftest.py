"""Fixtures of the conformance suite: the same tests run on Headrace and on nats-server.

`server` is shared by a test module (use the unique `name` for streams and subjects), `fresh_server` belongs to one
test, `launch(Setup(...))` starts one with options. Deliberate differences are marked `ours_only(reason)`. With
`HEADRACE_TARGET=cluster` tests of clients run on a cluster of three nats-servers instead; what a cluster does differently
is marked `single_server(reason)`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient

from conformance.client import Client, Wire
from conformance.consumer_client import Reading
from conformance.leafnode_pair import PAIRINGS, Joined, joined
from conformance.servers import KINDS, OURS, Server, Setup
from conformance.sourcing import Copying
from support.cluster_server import CLUSTER, IS_TARGET, ClusterServer, replicated_streams

Launch = Callable[[Setup], Server]
_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, dropped = [], []
    for item in items:
        kind = _kind_of(item)
        if kind not in (None, OURS) and item.get_closest_marker("ours_only"):
            dropped.append(item)
            continue
        kept.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _kind_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("kind") if callspec else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the logs of the servers with a failed test."""
    report = yield
    if report.failed:
        for server in _servers_of(item):
            report.sections.append((f"log of {server.kind} on port {server.port}", server.log_text()[-8000:]))
    return report


def _servers_of(item: pytest.Item) -> list[Server]:
    found: list[Server] = []
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Server):
            found.append(value)
        if isinstance(value, _Launcher):
            found += value.servers
    return found


@pytest.fixture(scope="session", params=(CLUSTER,) if IS_TARGET else KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of server. A cluster is a target of its own, for tests that use clients (`make test-cluster`)."""
    with replicated_streams() if IS_TARGET else nullcontext():
        yield str(request.param)


def start_server(kind: str, setup: Setup | None = None) -> Server:
    """Start a server of a kind; a cluster has the same attributes, as far as tests of clients use them."""
    if kind == CLUSTER:
        if setup is not None and setup != Setup():
            pytest.skip("a cluster with other settings")
        return ClusterServer()  # type: ignore[return-value]
    return Server(kind, setup)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[Server]:
    """A server with JetStream and default options, shared by the tests of a module.

    One stream always exists: nats-server removes its folder of streams after the last one is deleted, and a stream
    that is created at that moment fails.
    """
    with start_server(kind) as running:
        with Client(running.port) as client:
            client.request("$JS.API.STREAM.CREATE.STAYS", b'{"name":"STAYS","subjects":["stays"]}')
        yield running


@pytest.fixture
def fresh_server(kind: str) -> Iterator[Server]:
    with start_server(kind) as running:
        yield running


class _Launcher:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.servers: list[Server] = []

    def __call__(self, setup: Setup) -> Server:
        self.servers.append(start_server(self.kind, setup))
        return self.servers[-1]


@pytest.fixture
def launch(kind: str) -> Iterator[Launch]:
    """Start servers with options; they stop at the end of the test."""
    launcher = _Launcher(kind)
    yield launcher
    for started in launcher.servers:
        started.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connect clients (`connect(server, user="x", ...)`); they are closed at the end of the test."""
    opened: list[Wire] = []

    def open_client(server: Server, **options: object) -> Client:
        opened.append(Client(server.port, **options))
        return opened[-1]  # type: ignore[return-value]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A raw connection to the shared server, before CONNECT."""
    with Wire(server.port) as raw:
        yield raw


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.port) as connected:
        yield connected


@pytest.fixture
async def nc(server: Server) -> AsyncIterator[NatsClient]:
    """An unmodified nats-py client of the shared server."""
    connection = await nats.connect(server.url, allow_reconnect=False, connect_timeout=60)
    yield connection
    await connection.close()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for streams and first tokens of subjects."""
    return f"T{os.getpid()}n{next(_numbers)}"


@pytest.fixture
def make_stream(client: Client, name: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Create a stream called `name` that captures `name.>`, with more configuration as keywords; return its info."""
    created: list[str] = []

    def make(stream: str = name, **config: Any) -> dict[str, Any]:
        base = {"name": stream, "subjects": [f"{stream}.>"]}
        info = client.api(f"STREAM.CREATE.{stream}", {**base, **config})
        assert "error" not in info, info["error"]
        created.append(stream)
        return info

    yield make
    for stream in created:
        client.api(f"STREAM.DELETE.{stream}")


@pytest.fixture
def reading(client: Client, make_stream: Callable[..., dict[str, Any]], name: str) -> Callable[..., Reading]:
    """Create the stream called `name`, with more configuration as keywords, for tests of consumers."""

    def make(**config: Any) -> Reading:
        make_stream(**config)
        return Reading(client, name)

    return make


@pytest.fixture
def ten(reading: Callable[..., Reading]) -> Reading:
    """A stream with ten messages."""
    stream = reading()
    stream.fill(10)
    return stream


@pytest.fixture
def copying(client: Client, name: str) -> Iterator[Copying]:
    """Streams that copy each other; deleted at the end of the test."""
    streams = Copying(client, name)
    yield streams
    streams.close()


@pytest.fixture(scope="module", params=PAIRINGS, ids=lambda pair: f"hub={pair[0]},leaf={pair[1]}")
def pair(request: pytest.FixtureRequest) -> Iterator[Joined]:
    """Two servers joined by a leafnode connection."""
    hub, leaf = request.param
    with joined(hub, leaf) as both:
        yield both
