"""Runs collectors inside a server: `headrace serve --claims FILE`.

It uses one connection of its own to the server it is part of, and one collector per namespace. Any failure (the store,
the server's disk, a configuration that others published) is logged and retried: a collector never ends a broker, and
stops with it at once. It knows nothing of the broker except its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from nats.aio.client import Client as Connection
from prometheus_client import generate_latest

from headrace.claims.background_tasks import cancel_and_wait, run_until_cancelled
from headrace.claims.claims import Claims
from headrace.claims.config import ClaimConfig
from headrace.claims.lenient_parsing import connect
from headrace.claims.metrics import Metrics

_RETRY_S_MAX = 30.0
Warn = Callable[[str], None]


class CollectorService:
    """Collectors of some namespaces; `options` are those of `nats.connect`."""

    def __init__(self, configs: Sequence[ClaimConfig], warn: Warn, **options: Any) -> None:
        self.metrics = Metrics()
        self._configs = configs
        self._warn = warn
        self._options = options
        self._task: asyncio.Task[None] | None = None
        self._retry_s = 1.0

    def start(self) -> None:
        """Start without waiting: nothing here may keep a server from starting."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop in the middle of any work: all of it can be repeated."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)

    def export_metrics(self) -> bytes:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self.metrics.registry)

    async def _run(self) -> None:
        connection = await self._connect()
        try:
            await run_until_cancelled(
                *(self._collect_forever(connection, config) for config in self._configs)
            )
        finally:
            # Not flushed: the server may be gone already, and unsent acks only cause a redelivery.
            await connection.close()

    async def _connect(self) -> Connection:
        while True:
            try:
                return await connect(
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.5,
                    error_cb=self._on_error,
                    name="claims collector",
                    **self._options,
                )
            except Exception as error:
                await self._warn_and_wait("cannot connect", error)

    async def _collect_forever(self, connection: Connection, config: ClaimConfig) -> None:
        """Collect; retry after any failure."""
        while True:
            try:
                async with Claims(connection, config, metrics=self.metrics) as claims:
                    await claims.set_up()
                    self._retry_s = 1.0
                    await claims.collector.watch()
            except Exception as error:
                await self._warn_and_wait(config.namespace, error)

    async def _warn_and_wait(self, about: str, error: Exception) -> None:
        self._warn(f"Claims collector ({about}): {error or type(error).__name__}; retrying")
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(self._retry_s * 2, _RETRY_S_MAX)

    async def _on_error(self, error: Exception) -> None:
        """Ignore the error: nats-py would print a traceback for each, and important ones surface in our own calls."""
