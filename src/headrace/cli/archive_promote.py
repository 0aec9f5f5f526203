"""`headrace archive promote`: continues the archive of a server with `ack: local` whose disk is gone.

Owns the order of its steps. Invariants: the archive is claimed before the stores can be opened; no server opens them before
their streams go on above what the lost server may have used. A promotion that was interrupted is run again from the
beginning. Must not know how an archive is followed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from headrace.archive.archive_identity import normalize_url
from headrace.archive.archive_verify import summarize
from headrace.archive.follower import Follower, FollowerSettings, Takeover
from headrace.archive.follower_state import FollowerState, read_state, write_state
from headrace.archive.group_format import server_folder
from headrace.archive.leader_record import LeaderRecord, read_leader, watch_for_change
from headrace.archive.sequence_reserve import RESERVE_MIN, find_highest
from headrace.archive.server_leader import LeaderSettings, make_record
from headrace.backup.target import BackupTarget
from headrace.broker.streams.stream_metadata import StreamRecord, config_key
from headrace.cli import output
from headrace.cli.archive_standby import LOCK_FILE
from headrace.clock import SystemClock
from headrace.errors import ArchiveError
from headrace.os_files import lock_exclusive
from headrace.storage import FileDisk, Store, open_store
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import SEQ_MAX

TAKEOVER_AFTER_S = 3.0


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """What was promoted; `reserved` has for each store the sequence above which its streams go on."""

    server: str
    epoch: int
    group: int
    time_ns: int
    reserved: dict[str, int] = field(default_factory=dict)

    def describe(self, directory: Path) -> str:
        """Return what happened, and what to do next."""
        sequences = " and ".join(f"{each:,}" for each in sorted(set(self.reserved.values())))
        return (
            f"{directory} has server {self.server} after group {self.group} ({_format_moment(self.time_ns)}), epoch "
            f"{self.epoch}; its streams go on above sequence {sequences}\n"
            f'start it with the same archive block and store_dir: "{directory}"'
        )


class Promotion:
    """One promotion of the archive of a server into a directory."""

    def __init__(self, target: BackupTarget, url: str, server: int, home: Path) -> None:
        self._url, self._server, self._home = url, server, home
        self._folder = target.open_folder(server_folder(server))
        self._reserved: dict[str, int] = {}

    async def run(self) -> PromotionResult:
        """Promote; the directory is ready for a server on return."""
        state = self._check_home()
        await self._check_base()
        await self._check_leader()
        self._home.mkdir(parents=True, exist_ok=True)
        with self._lock_home():
            if state is None:
                write_state(self._home, FollowerState(server_folder(self._server), normalize_url(self._url)))
            settings = FollowerSettings(
                self._url, self._home, self._server, TAKEOVER_AFTER_S, self._make_record, accepts_loss=True
            )
            follower = Follower(self._folder, settings, _NoteLog())
            try:
                takeover = await follower.run()
                await follower.promote(lambda stores: self._reserve(stores, takeover))
            finally:
                await follower.close()
        self._note_gaps(takeover)
        return PromotionResult(
            server_folder(self._server),
            takeover.record.epoch,
            takeover.group,
            takeover.time_ns,
            self._reserved,
        )

    def _note_gaps(self, takeover: Takeover) -> None:
        """Say what the archive has and the copy lacks."""
        if takeover.record.epoch > takeover.copy_epoch + 1:
            output.print_note(
                f"epoch {takeover.record.epoch - 1} has no base yet: what it had archived is not in {self._home}"
            )
        skipped = {f"{store:016x}" for store in takeover.header.heads} - self._reserved.keys()
        if skipped:
            output.print_note(f"{len(skipped)} accounts are newer than the base and are not restored")

    def _check_home(self) -> FollowerState | None:
        """Return the state that an interrupted promotion has left; raise ArchiveError if there is anything else."""
        state = read_state(self._home)
        if state is None:
            names = {each.name for each in self._home.iterdir()} if self._home.exists() else set()
            if names - {LOCK_FILE}:
                raise ArchiveError(f"{self._home} is not empty: promote into a new or empty directory")
        elif (state.server, state.url) != (server_folder(self._server), normalize_url(self._url)):
            raise ArchiveError(f"{self._home} follows {state.url}: promote into a new or empty directory")
        return state

    async def _check_base(self) -> None:
        """Raise ArchiveError if there is nothing to promote."""
        if not (await summarize(self._folder, self._server)).bases:
            raise ArchiveError(f"{self._folder.name} has no base: there is nothing to promote yet")

    async def _check_leader(self) -> None:
        """Raise ArchiveError if the server is alive, or a standby takes over without a loss."""
        found = await read_leader(self._folder)
        if found is not None and found.ack == "remote":
            raise ArchiveError(
                "the archive has ack: remote, so it lacks nothing: start a server with --standby and an empty store "
                "directory, which restores it and takes over"
            )
        alive = await watch_for_change(self._folder, TAKEOVER_AFTER_S)
        if alive is not None:
            urls = ", ".join(alive.urls) or alive.host
            raise ArchiveError(
                f"server {alive.name or alive.writer} ({urls}) writes the archive now, so its disk is not gone: stop it "
                "first if you want to replace it all the same"
            )

    @contextlib.contextmanager
    def _lock_home(self) -> Iterator[None]:
        """Let no standby and no other promotion use the directory."""
        descriptor = os.open(self._home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                lock_exclusive(descriptor)
            except OSError:
                raise ArchiveError(f"{self._home} is in use by a standby, or by another promotion") from None
            yield
        finally:
            os.close(descriptor)

    def _make_record(self, writer: str, epoch: int) -> LeaderRecord:
        settings = LeaderSettings(takeover_after_s=TAKEOVER_AFTER_S, name="headrace archive promote")
        return make_record(settings, writer, epoch)

    def _reserve(self, stores: dict[str, str], takeover: Takeover) -> None:
        for store, folder in stores.items():
            self._reserved[store] = skip_used_sequences(
                self._home / folder, takeover.header.reserved.get(store, 0)
            )


def skip_used_sequences(folder: Path, reserved: int) -> int:
    """Let the streams of a store go on above `reserved`, which its server did not exceed; return that sequence.

    0: the server was an older version, which did not reserve any. A mirror has the sequences of its upstream.
    """
    disk = FileDisk(folder)
    try:
        store = open_store(disk, SystemClock())
        reserved = reserved or min(find_highest(store) + RESERVE_MIN, SEQ_MAX)
        for log in store.iter_file_logs():
            if not _is_mirror(store, log):
                log.advance(reserved)
        store.close()
        return reserved
    finally:
        disk.close()


def _is_mirror(store: Store, log: FileLog) -> bool:
    value = store.metadata.get(config_key(log.ident))
    return value is not None and msgspec.json.decode(value, type=StreamRecord).config.mirror is not None


async def describe_loss(target: BackupTarget, server: int) -> str:
    """Say what a promotion would lose."""
    found = await summarize(target.open_folder(server_folder(server)), server)
    age_s = max(0.0, (time.time_ns() - found.last_ns) / 1e9)
    return (
        f"the newest group, {found.last}, was sent {age_s:,.0f} s ago ({_format_moment(found.last_ns)}); what the server "
        "acknowledged later is lost. Add --accept-loss to go on without it. If its disk can still be read, start the "
        "server with it instead: nothing is lost"
    )


def _format_moment(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


class _NoteLog:
    """Shows what an operator should know on standard error."""

    def info(self, text: str) -> None:
        output.print_note(text.replace("Standby: ", "", 1))

    warn = info
