"""Asynchronous fixtures that run in the event loop of the test, with pytest-asyncio in both modes and with anyio.

A fixture belongs to one of these plugins, and to one event loop. So there is one per plugin and loop scope, and the
public fixture chooses by the test that requests it. Imports pytest-asyncio only if pytest has loaded it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.testing.account_pool import IsolatedAccount

#: How long connections and requests of the fixtures may take; generous, because machines that run tests are busy.
TIMEOUT_S = 20.0
_LOOP_SCOPES: tuple[Any, ...] = ("function", "class", "module", "package", "session")
_NO_PLUGIN = (
    "headrace_client needs a plugin for asynchronous tests: install pytest-asyncio or anyio, and mark the test with "
    "@pytest.mark.asyncio or @pytest.mark.anyio"
)


async def _connect(headrace_account: IsolatedAccount) -> AsyncIterator[Client]:
    from headrace.client import connect

    client = await connect(headrace_account.url, connect_timeout=TIMEOUT_S)
    yield client
    await client.close()


def _reject_old_plugin() -> None:
    pytest.fail("headrace_client needs pytest-asyncio 0.24 or later; upgrade it", pytrace=False)


def make_plugin(config: pytest.Config) -> ModuleType:
    """Return a plugin with a fixture for each event loop that a test may run in."""
    plugin = ModuleType("headrace_async_fixtures")  # pytest finds fixtures in modules and classes only
    vars(plugin)["_headrace_client_anyio"] = pytest.fixture(_copy(_connect))
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        if "loop_scope" in inspect.signature(pytest_asyncio.fixture).parameters:
            for scope in _LOOP_SCOPES:
                fixture = pytest_asyncio.fixture(_copy(_connect), loop_scope=scope)
                vars(plugin)[f"_headrace_client_{scope}"] = fixture
        else:  # a project that does not use these fixtures may have an old version
            vars(plugin)["_headrace_client_function"] = pytest.fixture(_copy(_reject_old_plugin))
    return plugin


def choose_client(request: pytest.FixtureRequest) -> Any:
    """Return the client of the event loop that the test runs in."""
    if "anyio_backend" in request.fixturenames:
        if request.getfixturevalue("anyio_backend_name") != "asyncio":
            pytest.skip("nats-py runs on asyncio only")
        return request.getfixturevalue("_headrace_client_anyio")
    if not request.config.pluginmanager.hasplugin("asyncio"):
        pytest.fail(_NO_PLUGIN, pytrace=False)
    return request.getfixturevalue(f"_headrace_client_{_get_loop_scope(request)}")


def _get_loop_scope(request: pytest.FixtureRequest) -> str:
    marker = request.node.get_closest_marker("asyncio")
    options = marker.kwargs if marker is not None else {}
    default = "function"
    with contextlib.suppress(ValueError):  # unknown before pytest-asyncio 0.26
        default = request.config.getini("asyncio_default_test_loop_scope") or default
    return str(options.get("loop_scope") or options.get("scope") or default)


def _copy(function: Any) -> Any:
    """Return another function with the same code: plugins mark the functions of their fixtures."""
    copied = FunctionType(function.__code__, function.__globals__, function.__name__)
    return functools.update_wrapper(copied, function)
