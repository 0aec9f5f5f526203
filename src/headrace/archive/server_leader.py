"""The leader object of a running server: the check before a start, the renewals, and the lease.

Owns when a start is refused because another server is alive, and when this one must stop because a standby may have taken
over. Runs on the archiver's thread; the lease is read on the server's loop, too. Must not know groups or stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from headrace.archive.leader_record import (
    LeaderKeeper,
    LeaderLease,
    LeaderRecord,
    describe_host,
    watch_for_change,
)
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveFenced

LEASE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """How a server takes part in takeovers. `is_lease_kept`: it stops when it could not renew the object in time."""

    ack: str = "local"
    takeover_after_s: float = 3.0
    name: str = ""
    urls: tuple[str, ...] = ()
    is_lease_kept: bool = False
    may_replace: bool = False


def make_record(settings: LeaderSettings, writer: str, epoch: int) -> LeaderRecord:
    """Return the record of this process."""
    return LeaderRecord(
        writer,
        epoch,
        0,
        settings.ack,
        settings.takeover_after_s,
        list(settings.urls),
        settings.name,
        describe_host(),
        os.getpid(),
    )


class ServerLeader:
    """The object of one server. `on_end` is called once on the archiver's thread if the lease ends."""

    def __init__(self, settings: LeaderSettings, on_end: Callable[[ArchiveFenced], None]) -> None:
        self._settings = settings
        self._on_end = on_end
        self.lease = LeaderLease(settings.takeover_after_s) if settings.is_lease_kept else None
        self._keeper: LeaderKeeper | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def check(self, target: BackupTarget) -> None:
        """Raise ArchiveFenced if another server is alive, unless it may be replaced."""
        if self._settings.may_replace:
            return
        found = await watch_for_change(target, self._settings.takeover_after_s)
        if found is not None:
            urls = ", ".join(found.urls) or found.host
            raise ArchiveFenced(
                f"server {found.name or found.writer} ({urls}) writes the archive now: stop that server first, or start "
                "this one with --standby to follow it, or with --take_over to replace it"
            )

    async def start(self, target: BackupTarget, writer: str, get_epoch: Callable[[], int]) -> None:
        """Write the object, and begin to renew it. The lease begins with the first renewal, so that is awaited."""
        record = make_record(self._settings, writer, get_epoch())
        self._keeper = LeaderKeeper(target, record, get_epoch, self.lease)
        if self.lease is not None:
            await self._keeper.begin()
        self._tasks.append(asyncio.create_task(self._keeper.run()))
        if self.lease is not None:
            self._tasks.append(asyncio.create_task(self._watch_lease(self.lease)))

    async def _watch_lease(self, lease: LeaderLease) -> None:
        while True:
            if lease.has_ended:
                break
            await asyncio.sleep(LEASE_POLL_S)
        reason = f" ({self._keeper.error})" if self._keeper is not None and self._keeper.error else ""
        self._on_end(
            ArchiveFenced(
                f"the leader object was not renewed for {lease.takeover_after_s:g} s{reason}: a standby may have taken over"
            )
        )

    async def stop(self, *, is_released: bool) -> None:
        """Stop renewing the object. With `is_released` a standby need not wait: everything was sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if is_released and self._keeper is not None:
            with contextlib.suppress(Exception):  # a standby waits longer then
                async with asyncio.timeout(self._settings.takeover_after_s):
                    await self._keeper.renew(is_released=True)
