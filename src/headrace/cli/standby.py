"""`headrace serve --standby`: waits while another server has the store directory open.

Owns the wait. Invariant: it writes nothing; the store's lock decides which server opens the store, so a wrong guess here
costs one more attempt. The monitoring port responds meanwhile: `/healthz` with 503, `/varz` with `standby`. Must not
know what a server does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.config.options import ServerOptions
from headrace.monitor.waiting_monitor import WaitingMonitor
from headrace.net.jetstream_setup import find_stores
from headrace.net.logs import Logger
from headrace.os_files import is_locked

#: How often the locks are examined.
POLL_S = 0.1


class Standby:
    """The wait of one server."""

    def __init__(self, options: ServerOptions, log: Logger) -> None:
        self._options = options
        self._log = log
        self._waiting_for = ""

    async def wait(self, stop: asyncio.Event) -> bool:
        """Wait until no other server uses the directory; return False if this one is stopped before."""
        self._waiting_for = self._find_locked_store()
        if not self._waiting_for:
            return True
        self._log.info(f"Standby: {self._waiting_for} is in use by another server; waiting for its lock")
        monitor = WaitingMonitor(self._options, self._log, self._describe, self._explain)
        await monitor.start()
        try:
            while found := self._find_locked_store():
                self._waiting_for = found
                try:
                    await asyncio.wait_for(stop.wait(), POLL_S)
                    return False
                except TimeoutError:
                    continue
        finally:
            await monitor.stop()
        self._log.info(f"Standby: the lock of {self._waiting_for} is free; taking over")
        return True

    def _find_locked_store(self) -> str:
        stores = find_stores(Path(self._options.store_dir))
        return next((str(path) for path in stores if is_locked(path / "lock")), "")

    def _describe(self) -> dict[str, str]:
        return {"waiting_for": self._waiting_for}

    def _explain(self) -> str:
        return f"standby: {self._waiting_for} is in use by another server"
