"""Follows the archive of a running server into a folder, and takes it over when that server is gone.

Owns the copies below `<store_dir>/standby`, and the claim of the next epoch. Invariants: it takes over only after it has
read every group up to the end of the log, by creating the group after it; so of several standbys exactly one wins, and
nothing that the leader acknowledged is missing. It applies effects only: nothing expires, no timer runs. Must not know
servers, connections or configuration files. See ADR 95.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.archive.archive_identity import ArchiveIdentity, adopt_identity, normalize_url
from headrace.archive.copy_builder import CopyBuilder
from headrace.archive.file_reuse import FileReuse
from headrace.archive.follower_state import (
    FOLDER,
    FollowerState,
    FormerStores,
    read_state,
    remove_state,
    write_state,
)
from headrace.archive.group_format import GroupHeader, encode_group
from headrace.archive.group_log import GroupLog
from headrace.archive.leader_record import LeaderRecord, LeaderWatch, read_leader, replace_leader
from headrace.archive.replica import Replica, open_replica
from headrace.backup.target import BackupTarget
from headrace.errors import (
    ArchiveCopyError,
    ArchiveDamaged,
    ArchiveError,
    ArchiveFenced,
    BackupDamaged,
)

#: Pause at the end of the log: at first, and without news.
POLL_MIN_S, POLL_MAX_S = 0.02, 0.25
#: What was applied is synced this often.
SYNC_S, SYNC_BYTES = 2.0, 64 << 20
RETRY_S = 1.0
#: A request that takes longer is repeated, or fails and is reported.
REQUEST_TIMEOUT_S = 10.0


class FollowerLog(Protocol):
    """Where the follower reports what an operator should know."""

    def info(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FollowerStats:
    """How far a standby is: `lag_s` counts since it last was at the end of the log."""

    epoch: int = 0
    group: int = 0
    base_group: int = 0
    lag_s: float = 0.0
    leader: str = ""
    leader_age_s: float = 0.0
    is_ready: bool = False  # it has a copy, and could take over
    error: str = ""


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a standby has taken over: the claim of its epoch, and the newest time that it has seen.

    `header` is that of the newest group, `copy_epoch` the newest epoch whose groups the copy has.
    """

    record: LeaderRecord
    group: int
    time_ns: int
    header: GroupHeader
    copy_epoch: int


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Where the copy is made, and when this standby takes over. `writer` is random for each claim.

    `accepts_loss`: also from a leader with `ack: local`, which may have acknowledged what the archive lacks.
    """

    url: str
    home: Path
    server: int
    takeover_after_s: float
    make_record: Callable[[str, int], LeaderRecord]
    accepts_loss: bool = False


class Follower:
    """One standby of one server; `target` is the server's folder in the archive."""

    def __init__(
        self,
        target: BackupTarget,
        settings: FollowerSettings,
        log: FollowerLog,
        former: FormerStores | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._settings = settings
        self._log = log
        self._former = former
        self._clock = clock
        self._groups = GroupLog(target, settings.server)
        self._folder = settings.home / FOLDER
        self._state = FollowerState(f"{settings.server:016x}", settings.url)
        self._watch = LeaderWatch(clock)
        self._replica: Replica | None = None
        self._builder = CopyBuilder(target, settings.server, clock)
        self._claims: set[str] = set()  # writers of this standby that the leader object has named
        self._announced = 0  # the newest base that a group names
        self._end_s = self._synced_s = clock()
        self._error = ""

    # Following

    async def run(self) -> Takeover:
        """Follow until this standby has taken over."""
        await asyncio.to_thread(self._open)
        pause_s = POLL_MIN_S
        while True:
            try:
                has_more = await self._follow()
                if not has_more and self._may_take_over():
                    takeover = await self._take_over()
                    if takeover is not None:
                        return takeover
                self._error = ""
            except ArchiveCopyError as error:
                self._note_error(error)
                await self._builder.stop()  # it needs room, too
                self._replica = None
                await asyncio.to_thread(self._open)
                await asyncio.sleep(RETRY_S)
                continue
            except (ArchiveDamaged, BackupDamaged) as error:
                self._note_error(error)
                await self._start_over()
                await asyncio.sleep(RETRY_S)
                continue
            except ArchiveError:
                raise
            except Exception as error:
                self._note_error(error)
                await asyncio.sleep(RETRY_S)
                continue
            pause_s = POLL_MIN_S if has_more else min(pause_s * 1.5, POLL_MAX_S)
            if not has_more:
                await asyncio.sleep(pause_s)

    def _open(self) -> None:
        """Continue the copy of an earlier run, if there is one."""
        state = read_state(self._settings.home)
        if state is not None and state.server == self._state.server:
            self._state = state
            self._replica = open_replica(self._target, self._settings.server, self._find_folder(state.copy))
        if self._replica is None:
            self._log.info(f"Standby: restoring the newest base of {self._target.name}")
        else:
            self._log.info(f"Standby: following {self._target.name} from group {self._replica.reader.number}")

    def _find_folder(self, copy: int) -> Path:
        return self._folder / f"{copy:08x}"

    def _note_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._error:
            self._log.warn(f"Standby: {text}")
        self._error = text

    async def _follow(self) -> bool:
        """Read what is new: groups, the leader's object, bases; return whether there may be more groups."""
        await self._finish_build()
        replica = self._replica
        if replica is None:
            await self._observe_leader()
            await self._start_build()
            return False
        if self._announced > replica.position.base:
            await self._start_build(self._announced)
        epoch = replica.reader.header.epoch if replica.reader.header is not None else 0
        if await replica.advance():
            header = replica.reader.header
            assert header is not None
            if header.epoch != epoch and epoch:
                self._watch.restart()  # another server has just taken over
            self._announced = header.base[0]
            if replica.unsynced_bytes > SYNC_BYTES:
                await replica.sync()
            return True
        self._end_s = self._clock()
        await self._observe_leader()
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            floor = await self._groups.read_floor()
        if replica.reader.number < floor.number:
            self._log.warn(f"Standby: groups up to {floor.number} were removed; restoring a newer base")
            await self._start_over()
        elif self._end_s >= self._synced_s + SYNC_S:
            await replica.sync()
            self._synced_s = self._end_s
        return False

    async def _observe_leader(self) -> None:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            self._watch.observe(await read_leader(self._target))

    async def _start_over(self) -> None:
        """Drop the copy, and restore the newest base."""
        await self._builder.stop()
        self._replica = None
        remove = [path for path in self._folder.glob("*") if path.is_dir()]
        for path in remove:
            await asyncio.to_thread(shutil.rmtree, path, True)

    # Newer bases

    async def _start_build(self, announced: int = 0) -> None:
        """Restore a newer base beside the copy, so that a takeover replays little."""
        if not self._builder.may_start:
            return
        present = self._replica
        number = await self._builder.choose_base(announced)
        if not number or (
            present is not None and number <= present.position.base and not present.is_outdated
        ):
            self._announced = 0  # it cannot be restored: the next one is announced later
            return
        self._builder.start(
            number, self._find_folder(self._state.copy + 1), present, self._make_reuse(present)
        )

    def _make_reuse(self, present: Replica | None) -> FileReuse | None:
        if present is not None:
            return FileReuse(present.folder, present.entries)
        return FileReuse(self._former.folder) if self._former is not None else None

    async def _finish_build(self) -> None:
        """Continue with the newer copy if it was completed, otherwise with the present one."""
        present = self._replica
        if not self._builder.is_done:
            return
        try:
            self._replica = await self._builder.finish(present)
        except Exception as error:
            if present is None and type(error) is ArchiveError:
                raise  # a newer version wrote it, for example
            self._note_error(error)
            return
        self._state.copy += 1
        await asyncio.to_thread(write_state, self._settings.home, self._state)
        self._synced_s = self._clock()
        if present is not None:
            await asyncio.to_thread(shutil.rmtree, present.folder, True)
        else:
            self._log.info(f"Standby: ready to take over; following {self._target.name}")
        if self._former is not None:
            former, self._former = self._former, None
            await asyncio.to_thread(former.remove)

    # Taking over

    def _may_take_over(self) -> bool:
        """Return whether the leader is gone; one with `ack: local` may acknowledge without the archive."""
        record = self._watch.record or LeaderRecord("", 0, 0)
        if self._replica is None or not (record.ack == "remote" or self._settings.accepts_loss):
            return False
        if record.writer in self._claims:
            return True  # an attempt of this standby, which came too early or got no answer
        wait_s = max(self._settings.takeover_after_s, record.takeover_after_s)
        return record.is_released or self._watch.unchanged_s >= wait_s

    async def _take_over(self) -> Takeover | None:
        """Claim the next epoch at the end of the log; None if another server was faster, or the leader is alive."""
        replica = self._replica
        assert replica is not None
        while await replica.advance():
            pass
        header = replica.reader.header
        if header is None:  # nothing was read since the copy was opened
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                group = await self._groups.read(replica.reader.number)
            header = group.header if group is not None else None
        if header is None:
            raise ArchiveDamaged(f"group {replica.reader.number} of {self._target.name} is missing")
        if replica.is_outdated:
            # If this base was dropped meanwhile, the build fails, and the newest one is restored.
            await self._start_build(header.base[0])
            return None
        await self._builder.stop()
        await replica.sync()
        record = self._settings.make_record(secrets.token_hex(8), header.epoch + 1)
        if not (await self._replace_leader(record) and await self._claim(replica, header, record)):
            return None
        self._log.info(f"Standby: taking over with epoch {record.epoch}, after group {replica.reader.number}")
        return Takeover(record, header.number, header.time_ns, header, replica.position.epoch)

    async def _replace_leader(self, record: LeaderRecord) -> bool:
        """Make the leader object that of this standby if it has not changed: then the leader cannot renew its lease."""
        self._claims.add(record.writer)
        seen = self._watch.record or record
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await replace_leader(self._target, seen, record)

    async def _claim(self, replica: Replica, header: GroupHeader, record: LeaderRecord) -> bool:
        """Create the opening group of the next epoch; return whether this standby won."""
        heads = replica.heads
        number = replica.reader.number + 1
        data = encode_group(_make_opening(header, record, number, heads, replica.reader.crc or 0))
        self._adopt_identity(replica, record, header)
        while True:
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self._groups.create(number, data)
                return True
            except ArchiveFenced:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    found = await self._groups.read(number)
                if found is None or found.header.epoch != header.epoch:
                    self._log.info(f"Standby: another server has taken over with group {number}")
                    self._watch.restart()
                return False  # a late group of the leader: read it, and try again
            except ArchiveError:
                raise
            except Exception as error:
                self._note_error(error)
                await asyncio.sleep(RETRY_S / 4)

    def _adopt_identity(self, replica: Replica, record: LeaderRecord, header: GroupHeader) -> None:
        stores = {f"{each.store_id:016x}": each.folder for each in replica.entries}
        writer = record.writer
        url = normalize_url(self._settings.url)
        # Not recorded yet: this claim may fail, and what was read of others cannot be missing.
        identity = ArchiveIdentity(
            self._state.server, url, [writer], writer, stores, header.epoch, header.number
        )
        adopt_identity(self._settings.home, identity)

    async def promote(self, prepare: Callable[[dict[str, str]], object] = dict) -> None:
        """Move the copy to where a server opens it, and prepare the stores there; after `run`."""
        assert self._replica is not None
        stores = await asyncio.to_thread(self._replica.promote, self._settings.home)
        await asyncio.to_thread(prepare, stores)
        await asyncio.to_thread(remove_state, self._settings.home)

    async def close(self) -> None:
        """Stop; the copy can be continued later, from its newest sync."""
        await self._builder.stop(is_kept=True)

    def read_stats(self) -> FollowerStats:
        """Return how far this standby is."""
        replica, record = self._replica, self._watch.record
        return FollowerStats(
            epoch=replica.position.epoch if replica is not None else 0,
            group=replica.reader.number if replica is not None else 0,
            base_group=replica.position.base if replica is not None else 0,
            lag_s=self._clock() - self._end_s,
            leader=record.name if record is not None else "",
            leader_age_s=self._watch.unchanged_s,
            is_ready=replica is not None,
            error=self._error or self._builder.error,
        )


def _make_opening(
    header: GroupHeader, record: LeaderRecord, number: int, heads: dict[int, int], crc: int
) -> GroupHeader:
    return GroupHeader(
        server=header.server,
        epoch=record.epoch,
        writer=record.writer,
        number=number,
        part=1,
        parts=1,
        time_ns=max(time.time_ns(), header.time_ns),
        frames={},
        heads=heads,
        base=header.base,
        floor=header.floor,
        prev_crc=crc,
        body_length=0,
        body_crc=0,
        reserved=header.reserved,
    )
