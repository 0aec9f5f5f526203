"""A broker for tests: pytest fixtures, and a server in a thread for code without an event loop.

This module is a pytest plugin that every run with Headrace installed loads, so it imports nothing but pytest until a
test asks for a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    import asyncio
    import threading
    from types import TracebackType

    from headrace.durations import Duration
    from headrace.server import Server

__all__ = ["HostedServer", "headrace_factory", "headrace_server", "headrace_url"]

CALL_TIMEOUT_S = 30.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "headrace(**options): options of the broker that headrace_server starts, e.g. clock='virtual'",
    )


class HostedServer:
    """A server in a thread of its own; all methods block and may be called from any other thread.

    `with HostedServer(port=-1) as server: ...`; options as for `headrace.Server`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            raise RuntimeError("the server is not running: call start() first")
        return self._server

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return self.server.port

    def start(self) -> Self:
        import asyncio
        import threading

        from headrace.server import Server

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-server", daemon=True)
        self._thread.start()
        server = Server(**self._options)
        try:
            self._call(server.start())
        except BaseException:
            self._stop_loop()
            raise
        self._server = server
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._call(self._server.stop())
            self._server = None
            self._stop_loop()

    def advance(self, duration: Duration) -> None:
        """Advance the server's time (only with clock="virtual")."""
        self._call(self.server.advance(duration))

    def _call(self, coroutine: Any) -> Any:
        import asyncio

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)

    def _stop_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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
