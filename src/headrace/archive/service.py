"""Archives a running server, on a thread of its own with its own event loop.

Owns the thread. Invariants: object stores and files are used on the thread; after ArchiveFenced the stores acknowledge
nothing more; with `ack: remote` nothing is served before a base of this epoch has what is on the disk, and the stores
acknowledge only what is archived. `LoopSource` has the calls to the server's event loop. Must not know accounts,
connections or configuration files.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headrace.archive.archive_identity import (
    ArchiveIdentity,
    add_stores,
    add_writer,
    confirm_writer,
    find_absent_stores,
)
from headrace.archive.archive_settings import ArchiveLog as ArchiveLog
from headrace.archive.archive_settings import ArchiveSettings as ArchiveSettings
from headrace.archive.archive_settings import make_writer_settings
from headrace.archive.archive_stats import ArchiveStats
from headrace.archive.archive_target import open_archive
from headrace.archive.group_format import server_folder
from headrace.archive.group_writer import EarlierRuns, GroupWriter
from headrace.archive.leader_record import LeaderLease
from headrace.archive.loop_source import LoopSource, PinMaker
from headrace.archive.server_leader import ServerLeader
from headrace.archive.service_start import make_opening_base, take_over
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError, ArchiveFenced
from headrace.storage import Store

#: How long a stop waits for the last frames.
STOP_TIMEOUT_S = 5.0
BASE_RETRY_S = 10.0
#: How often the archiver looks whether a base is due, if `group_delay` is shorter.
BASE_POLL_S = 0.25
RETRY_MAX_S = 5.0
#: What is too old is dropped this often.
TRIM_INTERVAL_S = 3600.0
TRIM_RETRY_S = 60.0
#: A start has other work first: the first trim reads all bases.
FIRST_TRIM_S = 60.0
#: With `ack: remote`, a server without new messages looks this often whether another one has taken over.
FENCE_CHECK_S = 1.0
DRAIN_POLL_S = 0.005
_SECOND_NS = 1_000_000_000


class ArchiveService:
    """The archive of a server, from its start to its stop. `on_fenced` is called on the server's loop."""

    def __init__(
        self,
        settings: ArchiveSettings,
        stores: Callable[[], Sequence[tuple[str, Store]]],
        log: ArchiveLog,
        on_fenced: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._source = LoopSource(stores, self._record_stores)
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._on_fenced = on_fenced
        self._identity: ArchiveIdentity
        self._writer: GroupWriter | None = None
        self._thread: threading.Thread | None = None
        self._started: Future[None] = Future()
        self._is_stopping = self._has_failed = False
        self._cancel: Callable[[], None] | None = None
        self._wake: Callable[[], None] | None = None  # ends the pause between two groups, from any thread
        self._is_due = asyncio.Event()  # on the thread
        self._start_ns = time.time_ns()
        self._error = self._base_error = ""
        self._others: list[int] = []  # servers with an archive there, when this one began its own
        self._leader = ServerLeader(settings.leader, self._report_failure)

    async def start(self) -> None:
        """Take the archive over; raise ArchiveError if that is impossible. Nothing may be acknowledged before."""
        self._source.get_positions()
        identity = self._identity = add_writer(self._settings.folder, self._settings.url)
        earlier = self._find_earlier_runs(identity)
        frames = self._source.get_frames_before_open()
        target = open_archive(self._settings.url)
        settings = make_writer_settings(self._settings, identity)

        async def work() -> None:
            self._cancel, self._wake = self._make_cancel(), self._make_wake()
            is_complete = False
            try:
                folder = target.open_folder(server_folder(settings.server))
                self._writer = GroupWriter(folder, self._source, settings, time.time_ns, self._note_error)
                self._others = await take_over(target, self._writer, self._leader, identity, frames, earlier)
                self._record_progress(self._writer)
                await self._source.confirm_opens()
                if self._settings.is_remote:
                    assert self._source.pins is not None
                    await make_opening_base(self._writer, self._note_error)
                    self._record_progress(self._writer)
                    await self._close_gates(self._writer)
                else:
                    await self._source.limit_sequences(self._writer.reserve.confirmed)
                self._started.set_result(None)
                await self._run(self._writer)
                is_complete = True
            finally:
                await self._leader.stop(is_released=is_complete)
                await target.close()

        self._thread = threading.Thread(target=self._run_thread, args=(work,), name="archive", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(self._started)
        self._report_start(target)

    def _report_start(self, target: BackupTarget) -> None:
        progress = self._writer.progress if self._writer is not None else None
        assert progress is not None
        name = target.open_folder(self._identity.server).name
        ack = "remote" if self._settings.is_remote else "local"
        self._log.info(f"Archive: {name}, epoch {progress.epoch}, ack: {ack}")
        if target.warning:
            self._log.warn(f"Archive: {target.warning}")
        if self._others and self._source.is_empty:
            names = ", ".join(map(server_folder, self._others))
            self._log.warn(
                f"Archive: this server is new and empty, but {target.name} has the archive of {names}. If that is a server "
                "whose disk was lost or is not mounted, stop this one and restore or promote that archive"
            )

    def _find_earlier_runs(self, identity: ArchiveIdentity) -> EarlierRuns:
        absent = find_absent_stores(self._settings.folder, identity, self._source.get_folders())
        group = max(identity.group, 1 if identity.leader else 0)
        highest = {} if self._settings.is_remote else self._source.find_highest_sequences()
        return EarlierRuns(identity.epoch, group, frozenset(absent), highest)

    @property
    def lease(self) -> LeaderLease | None:
        """The time until which this server may send anything; None if no standby takes over from it."""
        return self._leader.lease

    def set_pins(self, pins: PinMaker) -> None:
        """Set what pins the stores: bases are made from now on."""
        self._source.pins = pins

    def _make_cancel(self) -> Callable[[], None]:
        """Return what ends the work of this thread, from another one."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(task.cancel)

        return cancel

    async def _close_gates(self, writer: GroupWriter) -> None:
        """Commit only what is archived from now on; return when all that was committed before is archived."""
        assert self._wake is not None
        await self._source.close_gates(self._wake)
        while await writer.send_group():
            pass

    def _make_wake(self) -> Callable[[], None]:
        """Return what ends the pause between two groups, from another thread."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._is_due.set)

        return wake

    def _record_progress(self, writer: GroupWriter) -> None:
        epoch, group = writer.progress.epoch, writer.progress.group
        self._identity = confirm_writer(self._settings.folder, self._identity, epoch, group)

    def _record_stores(self, folders: dict[int, Path]) -> None:
        self._identity = add_stores(self._settings.folder, self._identity, folders)

    def _run_thread(self, work: Callable[[], Any]) -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            text = str(error) or type(error).__name__
            if not self._started.done():
                self._started.set_exception(
                    error
                    if isinstance(error, ArchiveFenced)
                    else ArchiveError(f"cannot use the archive {self._settings.url}: {text}")
                )
                return
            if isinstance(error, asyncio.CancelledError):
                return
            self._report_failure(error)

    def _report_failure(self, error: BaseException) -> None:
        """Tell the server's loop why the work ends."""
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        """Handle the end of the work: fenced, or an error that it cannot continue after."""
        if self._has_failed:
            return
        self._has_failed = True
        self._error = str(error) or type(error).__name__
        is_fenced = isinstance(error, ArchiveFenced)
        if is_fenced or self._settings.is_remote:
            what = "fenced" if is_fenced else "archiving has stopped"
            reason = f"{what}: {self._error}; this server stops and acknowledges nothing more"
            self._source.stop_service(reason)
            self._on_fenced(reason)
        else:
            self._log.warn(f"Archiving has stopped: {self._error}; restart the server")

    async def _run(self, writer: GroupWriter) -> None:
        groups = asyncio.create_task(self._send_groups(writer))
        bases = asyncio.create_task(self._make_bases(writer))
        try:
            await asyncio.wait((groups, bases), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (groups, bases):
                task.cancel()
            results = await asyncio.gather(groups, bases, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _send_groups(self, writer: GroupWriter) -> None:
        """Send what is durable, group by group; after the server's stop until nothing is left."""
        retry_s = self._settings.group_delay_s
        is_idle = False
        while True:
            is_last = self._is_stopping
            self._is_due.clear()
            try:
                if is_idle:
                    await self._check_fence(writer)
                has_more = await writer.send_group()
                self._error, retry_s = "", self._settings.group_delay_s
            except ArchiveFenced as error:
                self._report_failure(error)  # at once: the other task may take long to end
                raise
            except (ArchiveError, asyncio.CancelledError):
                raise
            except Exception as error:
                self._note_error(error)
                has_more = False
                await asyncio.sleep(retry_s)  # also with much to send: the error may last
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            if is_last and not has_more:
                self._record_progress(writer)
                return
            if not self._is_stopping:
                is_idle = await self._pause(writer, has_more)

    async def _check_fence(self, writer: GroupWriter) -> None:
        try:
            await writer.check_fence()
        except TimeoutError:  # what is due is sent all the same: its create decides, too
            self._note_error(TimeoutError("no answer to the request that looks for another server"))

    async def _pause(self, writer: GroupWriter, has_more: bool) -> bool:
        """Wait until the next group is due; return whether that took long because nothing happens."""
        if not self._settings.is_remote:
            if self._count_pending(writer)[1] < self._settings.group_bytes:
                await asyncio.sleep(self._settings.group_delay_s)
            return False
        if has_more:
            return False  # `read_positions` may have more
        try:
            async with asyncio.timeout(FENCE_CHECK_S):
                await self._is_due.wait()
        except TimeoutError:
            return True
        return False

    async def _make_bases(self, writer: GroupWriter) -> None:
        """Make a base whenever one is due, and drop what is too old from time to time; also without new messages."""
        trim_s = time.monotonic() + min(FIRST_TRIM_S, TRIM_INTERVAL_S)
        while True:
            is_trim_due = time.monotonic() >= trim_s
            if (writer.needs_base or is_trim_due) and self._source.pins is not None:
                what = "no base could be made"
                try:
                    if writer.needs_base:
                        await writer.make_base()
                    self._record_progress(writer)
                    if is_trim_due:
                        trim_s = time.monotonic() + TRIM_RETRY_S
                        what = "what is too old could not be removed"
                        await writer.trim()
                        trim_s = time.monotonic() + min(TRIM_INTERVAL_S, self._settings.keep_ns / _SECOND_NS)
                    self._base_error = ""
                except ArchiveFenced as error:
                    self._report_failure(error)
                    raise
                except (ArchiveError, asyncio.CancelledError):
                    raise
                except Exception as error:
                    self._note_error(error)
                    self._base_error = f"{what}: {self._error}"
                    await asyncio.sleep(BASE_RETRY_S)
            await asyncio.sleep(max(self._settings.group_delay_s, BASE_POLL_S))

    def _note_error(self, error: Exception) -> None:
        if not self._error:
            text = str(error) or type(error).__name__
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._log.warn, f"The archive is not available: {text}")
        self._error = str(error) or type(error).__name__

    def _count_pending(self, writer: GroupWriter) -> tuple[int, int]:
        """Return frames and journal bytes that are not archived; bytes of a file that is partly archived count as all."""
        archived = writer.progress.archived
        frames = size = 0
        for each in self._source.positions:
            missing = each.frame - archived.get(each.store_id, each.frame)
            frames += missing
            if missing:
                size += sum(length for _, last, length in each.files if last > archived[each.store_id])
        return frames, size

    def read_stats(self) -> ArchiveStats:
        """Return current figures; call it on the server's loop."""
        writer = self._writer
        assert writer is not None
        self._source.get_positions()
        frames, size = self._count_pending(writer)
        progress = writer.progress
        complete_ns = progress.complete_ns or self._start_ns
        is_behind = frames > 0 or not progress.is_covered
        return ArchiveStats(
            lag_groups=-(-size // self._settings.group_bytes),
            lag_bytes=size,
            lag_s=(time.time_ns() - complete_ns) / _SECOND_NS if is_behind else 0.0,
            epoch=progress.epoch,
            group=progress.group,
            floor=progress.floor,
            bases=progress.bases,
            bytes=progress.bytes,
            error=self._error or self._base_error,
            max_lag_s=self._settings.max_lag_s,
            base_age_s=(time.time_ns() - (progress.base_ns or self._start_ns)) / _SECOND_NS,
            has_stopped=self._has_failed,
            is_remote=self._settings.is_remote,
            is_waiting=self._source.is_waiting,
            confirm_latency=self._source.confirm_latency,
        )

    def close_limits(self) -> None:
        """With `ack: local`, before the stores are closed: what would have to wait for the archive is never acknowledged."""
        self._source.close_limits()

    async def drain(self, stop_serving: Callable[[], None]) -> None:
        """Wait until all that was accepted is archived, then let frames pass.

        `stop_serving` must end what accepts changes, and commit those that it has accepted. What is not archived within a
        few seconds is never acknowledged: the next start sends it.
        """
        end_s = self._loop.time() + STOP_TIMEOUT_S
        stop_serving()
        while not self._source.is_drained and self._loop.time() < end_s:
            await asyncio.sleep(DRAIN_POLL_S)
            stop_serving()
        if not self._source.is_drained:
            self._source.stop_service(
                "the archive has not confirmed the last frames before the server stopped"
            )
        self._source.open_gates()

    async def stop(self) -> None:
        """Send what is durable, as far as that is possible within a few seconds, and end the thread."""
        self._is_stopping = True
        if self._wake is not None:
            self._wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
            if self._thread.is_alive() and self._cancel is not None:
                self._cancel()  # the next start makes a base of what is left
