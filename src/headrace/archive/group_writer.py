"""Writes the archive of a running server: groups of frames, bases, and the removal of what is older than `keep`.

Owns epoch and number of the newest group. Invariants: one group is in flight; a frame counts as archived only when the
group that has it was created and is above the floor; a base counts when all its objects are there; groups are dropped
only if a newer complete base does not need them. Must not know threads, or how a server is put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from headrace._native import crc32
from headrace.archive.archive_bases import ArchiveBases
from headrace.archive.archive_progress import ArchiveProgress
from headrace.archive.group_format import BASE_FOLDER as BASE_FOLDER
from headrace.archive.group_format import Group, GroupHeader, encode_group
from headrace.archive.group_log import GroupLog
from headrace.archive.journal_tail import FileExtent, JournalRun, JournalTail, Piece, StorePosition
from headrace.archive.sequence_reserve import SequenceReserve
from headrace.archive.takeover_checks import NO_EARLIER_RUNS as NO_EARLIER_RUNS
from headrace.archive.takeover_checks import EarlierRuns as EarlierRuns
from headrace.archive.takeover_checks import check_last, check_length
from headrace.backup.create import CONCURRENCY, ArchivePoint
from headrace.backup.needed_files import find_needed_files
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.target import NO_LIMIT, BackupTarget
from headrace.errors import ArchiveDamaged, ArchiveError, ArchiveFenced, BackupError
from headrace.storage.format import is_large_block

#: A group is written in parts of at most this size.
PART_BYTES = 8 << 20
#: A base is made after this many bytes of groups.
BASE_BYTES = 1 << 30
#: Large chunks of a base that are sent at a time beside groups; with more, each group would take several times as long.
LARGE_CHUNKS_MAX = 1
#: Attempts to read the newest group at a start.
ATTEMPTS_MAX = 50
#: Timeout of one attempt to create an object. It doubles with each attempt: a large one needs more on a slow network.
CREATE_TIMEOUT_S = 10.0
CREATE_TIMEOUT_MAX_S = 300.0
#: Numbers in a header may become longer.
HEADER_ROOM_BYTES = 1024


class ArchiveSource(Protocol):
    """The stores of a running server."""

    async def read_positions(self) -> list[StorePosition]:
        """Return where the stores are now; from the first call on, nothing newer is reused before it is archived."""

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        """Return bytes of a file of a store."""

    async def set_archived(self, frames: dict[int, int]) -> None:
        """Allow the stores to reuse files up to these frames; a pin that begins after it has them."""

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        """Allow the streams of each store to show sequences up to these."""

    async def pin(self) -> list[SourceStore]:
        """Pin all stores at one moment."""

    async def unpin(self) -> None:
        """Release the pin."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Identity of the writer, and the limits of the configuration."""

    server: int
    writer: str
    name: str = ""
    group_bytes: int = 4 << 20
    base_bytes: int = BASE_BYTES
    base_interval_ns: int = 3600 * 1_000_000_000
    keep_ns: int = 7 * 86400 * 1_000_000_000


class GroupWriter:
    """One epoch of an archive: from `take_over` to the end of the process, or until another server takes over.

    `on_error` is called for an error after which a request is repeated.
    """

    def __init__(
        self,
        target: BackupTarget,
        source: ArchiveSource,
        settings: WriterSettings,
        now_ns: Callable[[], int],
        on_error: Callable[[Exception], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._target = target
        self._log = GroupLog(target, settings.server)
        self._bases = ArchiveBases(target, settings.name)
        self._source = source
        self._settings = settings
        self._now_ns = now_ns
        self._tails: dict[int, JournalTail] = {}
        self._heads: dict[int, int] = {}  # the last archived frame of each store, also of earlier epochs
        self._begun: set[int] = set()  # stores with an archived frame in this epoch
        self.reserve = SequenceReserve(now_ns)
        self._prev_crc = 0
        self._complete_group = 0  # the last one whose frames a pin of the stores has
        self._base = (0, 0)
        self._covered: set[int] = set()  # stores that a base of this epoch has
        self._base_ns = self._newest_ns = 0
        self._bytes_since_base = 0
        self._announces_base = False
        self._on_error = on_error
        self._sleep = sleep
        self.progress = ArchiveProgress()

    async def take_over(
        self,
        known_writers: set[str],
        local_frames: dict[int, int],
        earlier: EarlierRuns = NO_EARLIER_RUNS,
    ) -> None:
        """Create the opening group of a new epoch, after a check that no other server has written since."""
        while True:
            last, group = await self._find_newest()
            check_length(self._target.name, last, group.header if group is not None else None, earlier)
            if group is not None:
                check_last(group.header, known_writers, local_frames, earlier.absent)
            await self._continue(group, earlier)
            self.progress.group = last
            data = encode_group(self._make_header(1, 1, {}, self._heads))
            try:
                await self._log.create(last + 1, data)
            except ArchiveFenced:
                found = await self._log.read(last + 1)
                if found is not None and found.header.writer in known_writers:
                    continue  # the last group of this server's previous process arrived late
                raise
            self._on_created(data)
            self.reserve.confirm()
            self._complete_group = self.progress.group
            return

    async def _find_newest(self) -> tuple[int, Group | None]:
        """Return number and content of the newest group."""
        for _ in range(ATTEMPTS_MAX):
            last = await self._log.find_last()
            group = await self._log.read(last) if last else None
            if group is not None or not last:
                return last, group
            await self._sleep(0.1)  # removed meanwhile: the floor has risen
        raise ArchiveDamaged(f"{self._target.name} has no group above its floor {last}")

    async def _continue(self, group: Group | None, earlier: EarlierRuns) -> None:
        """Continue after the newest group."""
        header = group.header if group is not None else None
        self._prev_crc = group.crc if group is not None else 0
        self._newest_ns = header.time_ns if header is not None else 0
        self._base = header.base if header is not None else (0, 0)
        heads = header.heads if header is not None else {}
        self._heads = {store: frame for store, frame in heads.items() if store not in earlier.absent}
        self.reserve.begin(header.reserved if header is not None else {}, earlier.highest)
        self.progress.floor = (await self._log.read_floor()).number
        epochs = [header.epoch] if header is not None else await self._bases.read_epochs()
        self.progress.epoch = max(earlier.epoch, *epochs, 0) + 1

    def _make_header(
        self, part: int, parts: int, runs: dict[int, JournalRun], heads: dict[int, int]
    ) -> GroupHeader:
        return GroupHeader(
            server=self._settings.server,
            epoch=self.progress.epoch,
            writer=self._settings.writer,
            number=self.progress.group + 1,
            part=part,
            parts=parts,
            time_ns=self._read_log_time_ns(),
            frames={store: (run.first, run.last) for store, run in runs.items()},
            heads=heads,
            base=self._base,
            floor=self.progress.floor,
            prev_crc=self._prev_crc,
            body_length=0,
            body_crc=0,
            reserved=self.reserve.header,
            idle={
                store: tail.archived
                for store, tail in self._tails.items()
                if store not in self._begun | runs.keys()
            },
        )

    def _read_log_time_ns(self) -> int:
        """Return the time, but never one before that of the newest group: the clock of its server may be ahead."""
        self._newest_ns = max(self._now_ns(), self._newest_ns)
        return self._newest_ns

    def _on_created(self, data: bytes) -> None:
        self._prev_crc = crc32(data)
        self.progress.group += 1
        self.progress.groups += 1
        self.progress.bytes += len(data)

    # Groups

    async def send_group(self) -> bool:
        """Archive the next durable frames; return whether there were any. Repeat it after an error of the store."""
        moment_ns = self._now_ns()
        positions = await self._attach()
        runs = self._collect(positions)
        if self.reserve.update(positions) or runs or self._announces_base:
            announces, self._announces_base = self._announces_base, False
            try:
                await self._send(runs)
            except BaseException:
                self._announces_base = announces
                raise
            await self._source.set_archived(self.archived)
            if self.reserve.confirm():
                await self._source.set_reserved(self.reserve.confirmed)
            self._complete_group = self.progress.group
        behind = [each for each in positions if self._tails[each.store_id].archived < each.frame]
        self.progress.is_covered = {each.store_id for each in positions} <= self._covered
        if not behind and self.progress.is_covered:
            self.progress.complete_ns = moment_ns
        return bool(runs)

    async def _attach(self) -> list[StorePosition]:
        """Return where the stores are; a new one is followed from here on, what it has already is for the next base."""
        positions = await self._source.read_positions()
        for position in positions:
            if position.store_id not in self._tails:
                self._tails[position.store_id] = JournalTail(position.store_id, position.frame)
        self.progress.archived = self.archived
        return positions

    @property
    def archived(self) -> dict[int, int]:
        """The last archived frame of each store."""
        return {store: tail.archived for store, tail in self._tails.items()}

    def _collect(self, positions: list[StorePosition]) -> dict[int, JournalRun]:
        runs: dict[int, JournalRun] = {}
        left = self._settings.group_bytes
        for position in positions:
            store = position.store_id

            def read(path: str, offset: int, length: int, store: int = store) -> bytes:
                return self._source.read(store, path, offset, length)

            run = self._tails[store].collect(position, read, left) if left > 0 else None
            if run is not None:
                runs[store] = run
                left -= run.size
        return runs

    async def _send(self, runs: dict[int, JournalRun]) -> None:
        """Create the objects of a group, one after the other; then its frames are archived."""
        pieces = [(store, piece) for store, run in runs.items() for piece in run.pieces]
        size = sum(run.size for run in runs.values())
        heads = self._heads | {store: run.last for store, run in runs.items()}
        part_bytes = self._find_part_bytes(runs, heads)
        parts = max(1, -(-size // part_bytes))
        for part in range(parts):
            body = self._read_part(pieces, part * part_bytes, min((part + 1) * part_bytes, size))
            data = encode_group(self._make_header(part + 1, parts, runs, heads), *body)
            await self._create(data)
        for store, run in runs.items():
            self._tails[store].advance(run)
        self._heads = heads
        self._begun |= runs.keys()
        self._bytes_since_base += size
        self.progress.archived = self.archived

    def _find_part_bytes(self, runs: dict[int, JournalRun], heads: dict[int, int]) -> int:
        """Return the size of the bodies of parts: with a header, an object must not be too large for the store."""
        if self._target.object_bytes_max >= NO_LIMIT:
            return PART_BYTES
        header_bytes = len(encode_group(self._make_header(1, 1, runs, heads))) + HEADER_ROOM_BYTES
        room_bytes = self._target.object_bytes_max - header_bytes
        if room_bytes < HEADER_ROOM_BYTES:
            raise ArchiveError(
                f"the header of a group has {header_bytes} bytes, too many for {self._target.name}: raise max_payload"
            )
        return min(PART_BYTES, room_bytes)

    async def _create(self, data: bytes) -> None:
        """Create the next object; retry with the same bytes until the outcome is known."""
        delay_s, timeout_s = 0.1, CREATE_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._log.create(self.progress.group + 1, data)
                self._on_created(data)
                return
            except ArchiveError:
                raise
            except Exception as error:
                if isinstance(error, TimeoutError):
                    error = TimeoutError(
                        f"no answer within {timeout_s:g} s to the request that creates a group"
                    )
                    timeout_s = min(timeout_s * 2, CREATE_TIMEOUT_MAX_S)
                self._on_error(error)
                await self._sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)

    def _read_part(self, pieces: list[tuple[int, Piece]], start: int, end: int) -> list[bytes | memoryview]:
        """Return bytes `start` to `end` of a body, in pieces; large messages are read now."""
        body: list[bytes | memoryview] = []
        at = 0
        for store, piece in pieces:
            length = piece.length if isinstance(piece, FileExtent) else len(piece)
            low, high = max(start - at, 0), min(end - at, length)
            if low < high:
                body.append(self._read_piece(store, piece, low, high))
            at += length
        return body

    def _read_piece(self, store: int, piece: Piece, low: int, high: int) -> bytes | memoryview:
        if isinstance(piece, memoryview):
            return piece[low:high]
        if low:  # a later part: the block was checked with the first one
            return self._source.read(store, piece.path, piece.offset + low, high - low)
        data = self._source.read(store, piece.path, piece.offset, piece.length)
        if len(data) != piece.length or not is_large_block(data, piece.seed, piece.offset, piece.seq):
            raise ArchiveError(
                f"the large message {piece.seq} in {piece.path} is missing or damaged: run `headrace fsck`"
            )
        return data[:high]

    # Bases

    @property
    def needs_base(self) -> bool:
        """Whether a store has no base in this epoch, or enough was archived since the last one."""
        if not set(self._tails) <= self._covered or not self._covered:
            return True
        is_old = self._now_ns() - self._base_ns >= self._settings.base_interval_ns
        return self._bytes_since_base >= self._settings.base_bytes or (is_old and self._bytes_since_base > 0)

    async def make_base(self) -> None:
        """Make a base of all stores, then drop what is older than `keep`. Repeat it after an error."""
        # Frames after those of this group are in later ones; the pin has all that is durable, so at least these.
        await self._attach()
        known, group, sent = set(self._tails), self._complete_group, self._bytes_since_base
        stores = await self._source.pin()
        try:
            # Not before the pin: a base has nothing that is newer than its moment.
            begun_ns, moment_ns = self._now_ns(), self._read_log_time_ns()
            await self.check_fence()
            needed = [await asyncio.to_thread(find_needed_files, store) for store in stores]
            if not {each.store_id for each in needed} <= known:
                raise BackupError("an account was added while its server was pinned: try again")
            point = ArchivePoint(moment_ns, self.progress.epoch, group)
            number = await self._bases.make(needed, point, self._base[0], self._large_chunks_max)
        finally:
            self.progress.base_sent_bytes = self._bases.sent_bytes
            await self._source.unpin()
        self._base = (number, group)
        self._covered = {each.store_id for each in needed}
        self._base_ns = begun_ns
        self._bytes_since_base -= sent
        self._announces_base = True
        self.progress.base_group, self.progress.base_ns = group, begun_ns
        self.progress.bases += 1

    @property
    def _large_chunks_max(self) -> int:
        """The first base of an epoch is quick: nothing is covered before it is complete."""
        return LARGE_CHUNKS_MAX if self._covered else CONCURRENCY

    async def check_fence(self) -> None:
        """Raise ArchiveFenced if another server has taken over; a group that is not sent yet would notice it later."""
        async with asyncio.timeout(CREATE_TIMEOUT_S):
            await self._log.check_next(self.progress.group + 1, self._settings.writer)

    async def trim(self) -> None:
        """Drop bases and groups that no restore to a moment inside `keep` needs."""
        await self.check_fence()  # a server that was suspended must not trim the archive of its successor
        now_ns, last = self._now_ns(), self.progress.group
        oldest_ns = now_ns - self._settings.keep_ns
        floor = await self._bases.trim(self._base[0], oldest_ns, now_ns, self._log, last)
        self.progress.floor = max(self.progress.floor, floor)
