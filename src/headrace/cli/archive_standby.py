"""`headrace serve --standby` with an archive and `ack: remote`: follows the archive, and takes over when its server is gone.

Owns the wait, and the lock of the directory while it lasts. Invariant: no server opens the stores before this one has
claimed the archive, or was its last server. Must not know what a server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from headrace.archive.archive_identity import normalize_url
from headrace.archive.archive_target import open_archive
from headrace.archive.follower import Follower, FollowerSettings, FollowerStats
from headrace.archive.group_format import server_folder
from headrace.archive.leader_record import KeeperThread, LeaderRecord
from headrace.archive.server_leader import make_record
from headrace.archive.standby_role import StandbyRole, find_role
from headrace.backup.target import BackupTarget
from headrace.cli.standby_handover import StandbyHandover
from headrace.config.options import ServerOptions
from headrace.errors import ArchiveError, ArchiveNotBegun, BackupError
from headrace.monitor.metrics import render_standby
from headrace.monitor.server_archive import make_leader_settings
from headrace.monitor.waiting_monitor import WaitingMonitor
from headrace.net.jetstream_setup import find_stores
from headrace.net.logs import Logger
from headrace.os_files import lock_exclusive

LOCK_FILE = "standby.lock"
LOCK_POLL_S, RETRY_S = 0.1, 1.0
#: A server that begins the archive has this long until it has done so: its start may take that long.
BEGIN_AFTER_S = 30.0


class ArchiveStandby:
    """The wait of one server."""

    def __init__(self, options: ServerOptions, log: Logger) -> None:
        assert options.archive is not None
        self._options = options
        self._log = log
        self._url = options.archive.url
        self._home = Path(options.store_dir)
        self._leader = make_leader_settings(options, options.server_name)
        self._follower: Follower | None = None
        self._error = ""

    async def wait(self, stop: asyncio.Event) -> StandbyHandover | None:
        """Wait until this server may serve; return None if it is stopped before."""
        work = asyncio.ensure_future(self._run())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return None
        return work.result()

    async def _run(self) -> StandbyHandover:
        monitor = WaitingMonitor(
            self._options,
            self._log,
            self._describe,
            self._explain,
            lambda: render_standby(self._read_stats()),
        )
        await monitor.start()
        target = open_archive(self._url)
        try:
            async with self._lock_home():
                role = await self._retry(target)
                if role.server is None:
                    return StandbyHandover(time_floor_ns=role.time_ns)
                self._report_lost(role)
                return await self._follow(target, role)
        finally:
            await target.close()
            await monitor.stop()

    @contextlib.asynccontextmanager
    async def _lock_home(self) -> AsyncIterator[None]:
        """Let no other standby use the directory."""
        self._home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    lock_exclusive(descriptor)
                    break
                except OSError:
                    self._note(f"{self._home} is in use by another standby")
                    await asyncio.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _note(self, error: str) -> None:
        if error != self._error:
            self._log.warn(f"Standby: {error}")
        self._error = error

    async def _retry(self, target: BackupTarget) -> StandbyRole:
        """Return the role; wait while the object store cannot be reached, or the archive is not begun."""
        begin_s: float | None = None
        while True:
            may_begin = begin_s is not None and time.monotonic() >= begin_s
            stores = find_stores(self._home)
            try:
                found = await find_role(target, self._url, self._home, stores, may_begin=may_begin)
                self._error = ""
                return found
            except (ArchiveError, BackupError):
                raise
            except ArchiveNotBegun as error:
                begin_s = begin_s or time.monotonic() + BEGIN_AFTER_S
                self._note(str(error))
                await asyncio.sleep(LOCK_POLL_S)
            except Exception as error:
                self._note(str(error) or type(error).__name__)
                await asyncio.sleep(RETRY_S)

    def _report_lost(self, role: StandbyRole) -> None:
        if role.former is None or role.lost is None:
            return
        self._log.warn(f"Standby: {role.reason}; this server rebuilds its stores from the archive")
        if role.lost.frames:
            self._log.error(
                f"Standby: {role.lost.count} frames that this server had not archived are in {role.lost.folder}: none of "
                "them was acknowledged with ack: remote"
            )

    async def _follow(self, target: BackupTarget, role: StandbyRole) -> StandbyHandover:
        assert role.server is not None
        folder = target.open_folder(server_folder(role.server))
        settings = FollowerSettings(
            normalize_url(self._url),
            self._home,
            role.server,
            self._leader.takeover_after_s,
            self._make_record,
        )
        follower = self._follower = Follower(folder, settings, self._log, role.former)
        try:
            takeover = await follower.run()
            keeper = self._start_keeper(role.server, takeover.record)
            try:
                await follower.promote()
            except BaseException:
                keeper.stop()
                raise
            return StandbyHandover(keeper, takeover.time_ns)
        finally:
            await follower.close()

    def _make_record(self, writer: str, epoch: int) -> LeaderRecord:
        return make_record(self._leader, writer, epoch)

    def _start_keeper(self, server: int, record: LeaderRecord) -> KeeperThread:
        def open_folder() -> tuple[BackupTarget, BackupTarget]:
            target = open_archive(self._url)
            return target, target.open_folder(server_folder(server))

        keeper = KeeperThread(open_folder, record)
        keeper.start()
        return keeper

    # Pages

    def _read_stats(self) -> FollowerStats:
        return self._follower.read_stats() if self._follower is not None else FollowerStats(error=self._error)

    def _describe(self) -> dict[str, Any]:
        stats = self._read_stats()
        return {
            "waiting_for": self._url.partition("?")[0],
            "ready": stats.is_ready,
            "lag_seconds": round(stats.lag_s, 3),
            "epoch": stats.epoch,
            "group": stats.group,
            "leader": stats.leader,
            "leader_age_seconds": round(stats.leader_age_s, 3),
        }

    def _explain(self) -> str:
        stats = self._read_stats()
        error = f": {stats.error}" if stats.error else ""
        if not stats.is_ready:
            return f"standby: it has no copy of the stores yet{error}"
        return f"standby: it follows the archive, {stats.lag_s:.1f} s behind{error}"
