"""The leader object of an archive: which server writes it now, and a counter that shows that it is alive.

Owns the object and its renewal. It is advice on when to take over and when to stop; only the numbers of groups decide
who may write. Invariant: a lease that is valid was renewed less than `takeover_after` ago, counted from before the
request, so it ends before a standby that saw this renewal may take over. Must not know groups or stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError, ArchiveFenced

LEADER_KEY = "leader"
#: The object is replaced this often: Google Cloud Storage allows one write per second to an object.
RENEWAL_S = 1.0
#: Renewals within `takeover_after`, also if it is short, and the attempts that may take all of their time within it: one
#: that fails or is slow does not end the lease.
RENEWALS_MIN, ATTEMPTS_MIN = 3, 4
ATTEMPT_TIMEOUT_S = 5.0
#: A start watches the object of another server; it ends if the object cannot be read for so long.
READ_TIMEOUT_S, WATCH_TIMEOUT_S = 10.0, 30.0


class LeaderRecord(msgspec.Struct, frozen=True):
    """The server that writes the archive. `is_released`: it has stopped and sent everything."""

    writer: str
    epoch: int
    counter: int
    ack: str = "local"
    takeover_after_s: float = 0.0
    urls: list[str] = []
    name: str = ""
    host: str = ""
    pid: int = 0
    is_released: bool = False

    @property
    def version(self) -> tuple[str, int, int]:
        """What changes with each renewal."""
        return self.writer, self.epoch, self.counter


async def read_leader(target: BackupTarget) -> LeaderRecord | None:
    """Return the record in a server's folder; None if there is none that can be read."""
    data = await target.read_any(LEADER_KEY)
    return None if data is None else _decode(data)


def _decode(data: bytes) -> LeaderRecord | None:
    try:
        return msgspec.json.decode(data, type=LeaderRecord)
    except (msgspec.DecodeError, ValueError):
        return None


def is_newer(data: bytes, record: LeaderRecord) -> bool:
    """Return whether an object is that of another server with a newer epoch."""
    found = _decode(data)
    return found is not None and found.writer != record.writer and found.epoch > record.epoch


async def replace_leader(target: BackupTarget, seen: LeaderRecord, record: LeaderRecord) -> bool:
    """Replace the object if it is still the one that was seen; return whether that succeeded.

    The server that wrote it cannot renew it afterwards, so its lease ends, and has ended if it was observed for long enough.
    """
    found = await target.read_version(LEADER_KEY)
    data, version = found if found is not None else (b"", "")
    present = _decode(data)
    if present is not None and present.version != seen.version:
        return False
    return await target.replace_version(LEADER_KEY, msgspec.json.encode(record), version)


def describe_host() -> str:
    """Return a name of this machine since its last boot, so that a process ID on it can be tested."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{platform.node()} {boot}".strip()


def is_gone(record: LeaderRecord) -> bool:
    """Return whether the process that wrote the record has ended: it says so, or it ran here and is not there any more."""
    if record.is_released:
        return True
    if not record.pid or record.host != describe_host():
        return False
    if record.pid == os.getpid():
        return True  # in a container, the next process has the same number
    try:
        os.kill(record.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class LeaderWatch:
    """Observes the object from outside: how long it has not changed, by this machine's monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.record: LeaderRecord | None = None
        self._changed_s = clock()

    def observe(self, record: LeaderRecord | None) -> None:
        """Note what was read; an object that is new or has changed is alive now."""
        if record is not None and (self.record is None or record.version != self.record.version):
            self._changed_s = self._clock()
        self.record = record if record is not None else self.record

    def restart(self) -> None:
        """Count from now on: something else showed that a leader is alive."""
        self._changed_s = self._clock()

    @property
    def unchanged_s(self) -> float:
        """Seconds since the last change."""
        return self._clock() - self._changed_s


async def watch_for_change(target: BackupTarget, takeover_after_s: float) -> LeaderRecord | None:
    """Return the record of another process that is alive; None if it has not changed for `takeover_after_s`."""
    watch, first = LeaderWatch(), await _read_in_time(target)
    if first is None or is_gone(first):
        return None
    watch.observe(first)
    wait_s, read_s = max(takeover_after_s, first.takeover_after_s), time.monotonic()
    is_current = True
    while watch.unchanged_s < wait_s or not is_current:
        await asyncio.sleep(min(RENEWAL_S, takeover_after_s) / 4)
        try:
            record = await _read_in_time(target)
            is_current, read_s = True, time.monotonic()
        except Exception:
            if time.monotonic() > read_s + WATCH_TIMEOUT_S:
                raise
            is_current = False
            continue
        if record is not None and record.version != first.version:
            return None if record.is_released else record
    return None


async def _read_in_time(target: BackupTarget) -> LeaderRecord | None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await read_leader(target)
    except TimeoutError:
        raise ArchiveError(
            f"no answer within {READ_TIMEOUT_S:g} s to the request that looks for another server"
        ) from None


@dataclass(slots=True)
class LeaderLease:
    """The time until which this server may send anything to clients; it serves none before the first renewal."""

    takeover_after_s: float
    clock: Callable[[], float] = time.monotonic
    deadline_s: float = field(default=float("inf"))

    def extend(self, asked_s: float) -> None:
        """Note a renewal whose request began at this time."""
        if not self.has_ended:  # a lease that has ended stays so: clients were dropped
            self.deadline_s = asked_s + self.takeover_after_s

    @property
    def has_ended(self) -> bool:
        """Whether a standby may have taken over."""
        return self.clock() >= self.deadline_s


class LeaderKeeper:
    """Renews the object of one server until it is stopped. `get_epoch` returns the epoch to write."""

    def __init__(
        self,
        target: BackupTarget,
        record: LeaderRecord,
        get_epoch: Callable[[], int],
        lease: LeaderLease | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._clock = clock
        self._record = record
        self._get_epoch = get_epoch
        self._lease = lease
        self.error = ""

    async def run(self) -> None:
        """Renew the object, until this is cancelled."""
        while True:
            started_s = self._clock()
            try:
                await self._renew_in_time()
            except Exception as error:
                self.error = str(error) or type(error).__name__
                await self._sleep_until(started_s + self._interval_s / ATTEMPTS_MIN)
            else:
                await self._sleep_until(started_s + self._interval_s)

    async def begin(self) -> None:
        """Renew the object for the first time; raise ArchiveFenced if it is that of a newer epoch."""
        while True:
            started_s = self._clock()
            try:
                await self._renew_in_time()
                return
            except ArchiveFenced:
                raise
            except Exception as error:
                self.error = str(error) or type(error).__name__
                await self._sleep_until(started_s + self._interval_s / ATTEMPTS_MIN)

    async def _sleep_until(self, time_s: float) -> None:
        await asyncio.sleep(max(0.0, time_s - self._clock()))

    @property
    def _interval_s(self) -> float:
        return min(RENEWAL_S, (self._record.takeover_after_s or RENEWAL_S) / RENEWALS_MIN)

    async def _renew_in_time(self) -> None:
        """Renew the object; a request without an answer must leave time for others within `takeover_after`."""
        takeover_after_s = self._record.takeover_after_s
        timeout_s = min(ATTEMPT_TIMEOUT_S, (takeover_after_s or RENEWAL_S * ATTEMPTS_MIN) / ATTEMPTS_MIN)
        try:
            async with asyncio.timeout(timeout_s):
                await self.renew()
        except TimeoutError:
            raise ArchiveError(f"no answer within {timeout_s:g} s") from None
        self.error = ""

    async def renew(self, *, is_released: bool = False) -> None:
        """Replace the object, unless a server with a newer epoch has written it."""
        asked_s = self._clock()
        self._record = msgspec.structs.replace(
            self._record,
            epoch=self._get_epoch(),
            counter=self._record.counter + 1,
            is_released=is_released,
        )
        found = await self._target.read_version(LEADER_KEY)
        if found is not None and is_newer(found[0], self._record):
            raise ArchiveFenced("the leader object is that of a newer epoch")
        version = found[1] if found is not None else ""
        if not await self._target.replace_version(LEADER_KEY, msgspec.json.encode(self._record), version):
            raise ArchiveError("the leader object was replaced meanwhile")
        if self._lease is not None and not is_released:
            self._lease.extend(asked_s)


class KeeperThread:
    """Renews the leader object on a thread of its own, while the event loop opens the stores."""

    def __init__(
        self, open_folder: Callable[[], tuple[BackupTarget, BackupTarget]], record: LeaderRecord
    ) -> None:
        self._open_folder = open_folder
        self._record = record
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Start to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Stop soon; another one renews the object now."""
        self._stop.set()

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # a standby may then take over, which is safe
            asyncio.run(self._renew())

    async def _renew(self) -> None:
        target, folder = self._open_folder()
        keeper = LeaderKeeper(folder, self._record, lambda: self._record.epoch)
        task = asyncio.create_task(keeper.run())
        try:
            await asyncio.to_thread(self._stop.wait)
        finally:
            task.cancel()
            await target.close()
