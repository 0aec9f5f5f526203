"""Fixtures for claims: both servers, every store, and a clock that can be moved.

`server` runs on nats-server and on Headrace. Moving the clock moves the program's time, and the server's if it is
virtual (Headrace); on nats-server `ClaimsHarness.fire` makes timers expire at once.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from claims.claims_harness import TIMEOUT_S, ClaimsHarness, run_nats_server
from claims.object_stores import Azurite, GcsEmulator, Weed
from conformance.servers import NATS_SERVER, OURS
from headrace.claims import ClaimConfig, open_store
from headrace.testing import HostedServer
from support.cluster_server import CLUSTER, IS_TARGET, ClusterServer, replicated_streams

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a real store on one worker, because one process serves them all."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        used = {
            *getattr(item, "fixturenames", ()),
            *(value for value in parameters if isinstance(value, str)),
        }
        for group, names in {"weed": {"s3", "weed"}, "azurite": {"azure", "azurite"}, "gcs": {"gcs"}}.items():
            if used & names:
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def nats_server_url() -> Iterator[str]:
    with run_nats_server() as url:
        yield url


@pytest.fixture(scope="session")
def virtual_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedServer]:
    """A Headrace server with virtual time, shared by tests that use different names."""
    with HostedServer(store_dir=tmp_path_factory.mktemp("broker"), clock="virtual") as server:
        yield server


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    with ClusterServer() as running, replicated_streams():
        yield running.url


@pytest.fixture(params=[CLUSTER] if IS_TARGET else [NATS_SERVER, OURS])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClaimsHarness]:
    """A harness with a connection, a folder store and a clock; time is virtual on Headrace."""
    is_ours = request.param == OURS
    server = request.getfixturevalue("virtual_server") if is_ours else None
    shared = "cluster_url" if request.param == CLUSTER else "nats_server_url"
    url = server.url if server else request.getfixturevalue(shared)
    connection = await nats.connect(url, allow_reconnect=False, connect_timeout=TIMEOUT_S)
    made = ClaimsHarness(connection, url, server, tmp_path / "objects", f"N{os.getpid()}x{next(_numbers)}")
    yield made
    await made.close()
    await connection.close()


@pytest.fixture(scope="session")
def weed() -> Iterator[Weed]:
    running = Weed()
    yield running
    running.close()


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    running = Azurite()
    yield running
    running.close()


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsEmulator]:
    running = GcsEmulator()
    yield running
    running.close()


#: The store for Google is an emulator behind our own gateway: see gcs_xml_gateway.
STORES = [
    "memory",
    "folder",
    "folder-without-xattrs",
    "s3",
    "azure",
    "gcs",
]


@pytest.fixture
def settings_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Return a function that makes backend and settings of a store by its name in STORES."""

    def make(name: str) -> dict[str, Any]:
        if name == "memory":
            return {"backend": "memory"}
        if name.startswith("folder"):
            return {"backend": "folder", "store": {"path": str(tmp_path / "store")}}
        fixture = {"s3": "weed", "azure": "azurite", "gcs": "gcs"}[name]
        return {"backend": name, "store": request.getfixturevalue(fixture).settings}

    return make


@pytest.fixture(params=STORES)
async def store(
    request: pytest.FixtureRequest, settings_of: Callable[[str], dict[str, Any]], tmp_path: Path
) -> AsyncIterator[Any]:
    """An empty bucket of every kind of store."""
    from headrace.claims.stores import FolderStore

    bucket = f"claims-{uuid.uuid4().hex[:12]}"
    if request.param == "folder-without-xattrs":
        made: Any = FolderStore(tmp_path / "store", bucket, xattrs=False)
    else:
        made = open_store(ClaimConfig("ns", bucket=bucket, **settings_of(request.param)))
    await made.ensure_bucket()
    yield made
    await made.close()
