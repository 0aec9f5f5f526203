"""Servers for tests: pytest fixtures, and a server in a thread for code without an event loop.

This package is a pytest plugin that every run with Headrace installed loads, so it imports nothing but pytest until a
test asks for a server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing.account_pool import AccountPool, IsolatedAccount
from headrace.testing.async_fixtures import TIMEOUT_S, choose_client, make_plugin
from headrace.testing.hosted_server import HostedServer

if TYPE_CHECKING:
    from headrace.client import Client, JetStream

__all__ = [
    "AccountPool",
    "HostedServer",
    "IsolatedAccount",
    "headrace_account",
    "headrace_account_factory",
    "headrace_client",
    "headrace_factory",
    "headrace_js",
    "headrace_server",
    "headrace_session",
    "headrace_session_options",
    "headrace_url",
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "headrace(**options): options of the broker that headrace_server starts, e.g. clock='virtual'",
    )
    config.pluginmanager.register(make_plugin(config), "headrace-async-fixtures")


@pytest.fixture
def headrace_factory(tmp_path: Path) -> Iterator[Callable[..., HostedServer]]:
    """`headrace_factory(**options)` starts a broker on a free port; all of them stop at the end of the test."""
    started: list[HostedServer] = []

    def start(**options: Any) -> HostedServer:
        options.setdefault("store_dir", tmp_path / f"headrace-{len(started)}")
        started.append(HostedServer(**options).start())
        return started[-1]

    yield start
    for server in reversed(started):
        server.stop()


@pytest.fixture
def headrace_server(
    request: pytest.FixtureRequest, headrace_factory: Callable[..., HostedServer]
) -> HostedServer:
    """A broker on a free port, for this test alone; `@pytest.mark.headrace(...)` sets its options."""
    marker = request.node.get_closest_marker("headrace")
    return headrace_factory(**(marker.kwargs if marker else {}))


@pytest.fixture
def headrace_url(headrace_server: HostedServer) -> str:
    """The URL of `headrace_server`."""
    return headrace_server.url


@pytest.fixture(scope="session")
def headrace_session_options() -> dict[str, Any]:
    """Options of `headrace_session`; override this fixture in `conftest.py` to set some."""
    return {}


@pytest.fixture(scope="session")
def headrace_session(headrace_session_options: dict[str, Any]) -> Iterator[HostedServer]:
    """A broker that all tests of this process share; with pytest-xdist each worker has its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as folder:
        options = AccountPool.make_options(**{"store_dir": folder, **headrace_session_options})
        with HostedServer(**options) as server:
            yield server


@pytest.fixture(scope="session")
def _headrace_accounts(headrace_session: HostedServer) -> AccountPool:
    return AccountPool(headrace_session)


@pytest.fixture
def headrace_account_factory(_headrace_accounts: AccountPool) -> Iterator[Callable[[], IsolatedAccount]]:
    """`headrace_account_factory()` returns another account of `headrace_session`; all are emptied after the test."""
    acquired: list[IsolatedAccount] = []

    def acquire() -> IsolatedAccount:
        acquired.append(_headrace_accounts.acquire())
        return acquired[-1]

    yield acquire
    for account in acquired:
        _headrace_accounts.release(account)


@pytest.fixture
def headrace_account(headrace_account_factory: Callable[[], IsolatedAccount]) -> IsolatedAccount:
    """An account of `headrace_session` for this test alone; its `url` has the credentials."""
    return headrace_account_factory()


@pytest.fixture
def headrace_client(request: pytest.FixtureRequest, headrace_account: IsolatedAccount) -> Client:
    """A connection to `headrace_account` in the event loop of the test; needs pytest-asyncio or anyio."""
    client: Client = choose_client(request)
    return client


@pytest.fixture
def headrace_js(headrace_client: Client) -> JetStream:
    """The JetStream context of `headrace_client`."""
    return headrace_client.jetstream(timeout=TIMEOUT_S)
