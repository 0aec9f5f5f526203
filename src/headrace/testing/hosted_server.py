"""A server in a thread, for tests and programs without an event loop.

Imports the server only when one is started, because every pytest run with Headrace installed loads this package.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import asyncio
    import threading
    from types import TracebackType

    from headrace.durations import Duration
    from headrace.server import Server

CALL_TIMEOUT_S = 30.0
T = TypeVar("T")


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

        if self._server is not None:
            raise RuntimeError("the server is running: call stop() first, or restart()")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-server", daemon=True)
        self._thread.start()
        try:
            server = Server(**self._options)
            self.run(server.start())
        except BaseException:
            self._stop_loop()
            raise
        self._server = server
        return self

    def stop(self) -> None:
        """Stop the server and its thread; no effect if it is not running."""
        if self._server is not None:
            self.run(self._server.stop())
            self._server = None
            self._stop_loop()

    def restart(self) -> None:
        """Stop the server and start it again on the same port: clients reconnect, streams on disk are still there."""
        if self._options.get("clock") == "virtual":
            raise RuntimeError("a server with a virtual clock cannot restart: its time would go back")
        options = replace(self.server.options, port=self.port)
        self.stop()
        self._options = {
            "options": options,
            **({"log": self._options["log"]} if "log" in self._options else {}),
        }
        self.start()

    def advance(self, duration: Duration) -> None:
        """Advance the server's time (only with clock="virtual").

        Waits without a limit: a day has thousands of heartbeats for each watcher.
        """
        self._wait_for(self.server.advance(duration), None)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop, and wait for its result."""
        return self._wait_for(coroutine, CALL_TIMEOUT_S)

    def _wait_for(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        import asyncio

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

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
