"""Puts the archive of a server together: its options, its stores, its log, and what happens if it is fenced.

Owns nothing else. `headrace.archive` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.config.archive_options import REMOTE
from headrace.errors import ArchiveError
from headrace.monitor.server_pins import ServerPins
from headrace.monitor.waiting_monitor import WaitingMonitor

if TYPE_CHECKING:
    from headrace.archive.archive_stats import ArchiveStats
    from headrace.archive.server_leader import LeaderSettings
    from headrace.archive.service import ArchiveService
    from headrace.config.options import ServerOptions
    from headrace.monitor.monitored_server import MonitoredServer
    from headrace.net.logs import Logger

_STARTING = "starting: the server takes its archive over; with ack: remote it first makes a base"


class ServerArchive:
    """The archive of a server; `failure` is why it stopped the server, or ""."""

    def __init__(self, server: MonitoredServer, log: Logger) -> None:
        self._server = server
        self._log = log
        self._service: ArchiveService | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self.failure = ""
        self.pins = ServerPins(server)

    async def start(self) -> Self:
        """Take the archive over and start to write it."""
        options = self._server.options
        archive = options.archive
        assert archive is not None
        try:
            from headrace.archive.follower_state import is_following
            from headrace.archive.service import ArchiveService, ArchiveSettings
        except ModuleNotFoundError as error:
            raise ArchiveError(
                f"an archive requires the package {error.name}: pip install 'headrace[claims]'"
            ) from error
        settings = ArchiveSettings(
            url=archive.url,
            folder=Path(options.store_dir),
            server_name=self._server.server_name,
            group_bytes=archive.group_bytes,
            group_delay_s=archive.group_delay_s,
            max_lag_s=archive.max_lag_s,
            keep_ns=int(archive.keep_s * 1e9),
            is_remote=archive.ack == REMOTE,
            leader=make_leader_settings(options, self._server.server_name),
        )
        if is_following(Path(options.store_dir)):
            raise ArchiveError(
                f"{options.store_dir} has the copy of a standby, not the stores of a server: start with --standby, or "
                "if `headrace archive promote` was interrupted, run it again"
            )
        accounts = self._server.accounts
        self._service = ArchiveService(
            settings,
            lambda: [(each.account, each.store) for each in accounts.jetstreams()],
            self._log,
            self._on_fenced,
        )
        self._service.set_pins(self.pins)
        await self._start_service(self._service)
        return self

    async def _start_service(self, service: ArchiveService) -> None:
        """Start it, and say so on the monitoring port: the store may be out of reach, or the first base large."""
        monitor = WaitingMonitor(
            self._server.options, self._log, lambda: {"starting": True}, lambda: _STARTING, is_standby=False
        )
        await monitor.start()
        try:
            await service.start()
        finally:
            await monitor.stop()

    def may_send(self) -> bool:
        """Return whether this server may still send anything: a standby may have taken over."""
        lease = self._service.lease if self._service is not None else None
        return lease is None or not lease.has_ended

    @property
    def has_lease(self) -> bool:
        """Whether `may_send` can ever be False."""
        return self._service is not None and self._service.lease is not None

    def read_stats(self) -> ArchiveStats | None:
        """Return how far the archive is behind."""
        return self._service.read_stats() if self._service is not None else None

    async def drain(self) -> None:
        """With `ack: remote`, stop JetStream, and wait until what it accepted is archived and its replies are sent."""
        archive = self._server.options.archive
        if self._service is None or archive is None:
            return
        if archive.ack == REMOTE:
            await self._service.drain(self._stop_jetstreams)
        else:
            self._service.close_limits()

    def _drop_clients(self) -> None:
        """Close all connections. An error that clients do not know would keep them from reconnecting elsewhere."""
        with contextlib.suppress(RuntimeError):  # it has not accepted any yet
            listener = self._server.listener
            listener.announce_lame_duck()
            for connection in list(listener.connections.values()):
                self._log.warn(f"cid {connection.session.cid}: closed: {self.failure}")
                connection.close()

    def _stop_jetstreams(self) -> None:
        for jetstream in self._server.accounts.jetstreams():
            jetstream.stop()

    async def stop(self) -> None:
        """Send what is durable, and end."""
        if self._service is not None:
            await self._service.stop()

    def _on_fenced(self, reason: str) -> None:
        """Stop the server at once: another one writes the archive now, or this one cannot."""
        self.failure = reason
        self._log.error(f"Archive: {reason}")
        self._stop_jetstreams()
        self._drop_clients()
        self._stop_task = asyncio.get_running_loop().create_task(self._server.stop())


def make_leader_settings(options: ServerOptions, name: str) -> LeaderSettings:
    """Return how a server with these options takes part in takeovers."""
    from headrace.archive.server_leader import LeaderSettings

    archive = options.archive
    assert archive is not None
    port = options.port if options.port > 0 else ""
    url = options.client_advertise or f"{options.host}:{port}"
    return LeaderSettings(
        ack=archive.ack,
        takeover_after_s=archive.takeover_after_s,
        name=name,
        urls=(url,) if port else (),
        is_lease_kept=archive.ack == REMOTE and options.standby,
        may_replace=options.take_over,
    )
