"""Makes a backup: sends what the target lacks, then an index, then the record that makes it count.

Owns the order of these steps. Invariants: a record is created only when all objects that its index names are in the
target and no prune has named one of them; an interrupted run leaves objects only, which a later run uses or a prune
removes. Memory is bounded by the number of concurrent chunks. Must not know how the source was opened.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headrace import __version__
from headrace.backup.backup_log import BackupLog
from headrace.backup.needed_files import NeededFile, NeededFiles
from headrace.backup.pinned_stores import StoreFiles
from headrace.backup.records import (
    CHUNK_BYTES,
    OBJECTS_PREFIX,
    BackupIndex,
    BackupRecord,
    FileEntry,
    LogRecord,
    ObjectRef,
    StoreEntry,
    compute_digest,
    encode_index,
    parse_object_key,
)
from headrace.backup.request_repeater import RequestRepeater
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged, BackupError

CONCURRENCY = 8
#: Chunks of at least this size are large: a request with one keeps others waiting.
LARGE_CHUNK_BYTES = 1 << 20

Progress = Callable[[int], None]
#: Objects by SHA-256 and length.
SentObjects = dict[tuple[str, int], ObjectRef]


@dataclass(frozen=True, slots=True)
class ArchivePoint:
    """Where a base of an archive is in its log: the groups of `epoch` after `group` continue it."""

    moment_ns: int = 0
    epoch: int = 0
    group: int = 0


NO_POINT = ArchivePoint()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk to send or to find: bytes `offset` to `offset + length` of a file."""

    files: StoreFiles
    file: NeededFile
    offset: int
    length: int


class BackupRun:
    """One run. With `full` it uses nothing that the target has.

    `sent` has the objects that earlier runs of this process have sent; without it, they are found by a list.
    """

    def __init__(
        self,
        target: BackupTarget,
        log: BackupLog,
        *,
        server: str = "",
        messages: int = 0,
        full: bool = False,
        progress: Progress = lambda done: None,
        point: ArchivePoint = NO_POINT,
        sent: SentObjects | None = None,
    ) -> None:
        self._target = target
        self._point = point
        self._log = log
        self._server, self._messages = server, messages
        self._full = full
        self._progress = progress
        self._run = secrets.token_hex(6)
        self._known: dict[tuple[str, int], ObjectRef] = {}  # objects that a backup names
        self._may_list = sent is None
        self._orphans: SentObjects = sent if sent is not None else {}  # objects of interrupted runs
        self._requests = RequestRepeater()
        self._last = log.last
        self._parents: dict[tuple[int, str], FileEntry] = {}
        self._lineages: dict[int, str] = {}  # of the stores in the newest backup
        self._sending: dict[str, asyncio.Future[ObjectRef]] = {}
        self._large_chunks = asyncio.Semaphore(CONCURRENCY)
        self.sent_bytes = 0

    async def run(self, stores: list[NeededFiles], large_chunks_max: int = CONCURRENCY) -> BackupRecord:
        """Make a backup of these stores; at most `large_chunks_max` large chunks are sent at a time."""
        self._large_chunks = asyncio.Semaphore(large_chunks_max)
        index = await self._read_newest_index()
        if index is not None:
            if self._point is NO_POINT:  # an archive has a folder for each server
                _check_server(self._target, index, stores)
            if not self._full:
                self._use_index(index)
        if not self._full and (self._may_list or (self._log.is_complete and not self._log.list_backups())):
            await self._find_orphans()
        entries = [await self._send_store(each) for each in stores]
        record = await self._log.append(lambda: self._make_record(stores, entries))
        assert isinstance(record, BackupRecord)
        return record

    async def _read_newest_index(self) -> BackupIndex | None:
        """Return what the newest backup has, if its objects can be used.

        After a record that cannot be read they cannot: it may be a prune that removes them.
        """
        backups = self._log.list_backups()
        if not backups or backups[-1][0] < max(self._log.damaged, default=0):
            return None
        try:
            return await self._log.read_index(backups[-1][1])
        except BackupDamaged:
            if self._point is NO_POINT:
                raise
            return None  # a server must start: it sends everything

    def _use_index(self, index: BackupIndex) -> None:
        """Use the objects of the newest backup."""
        self._known = {(ref.sha256, ref.length): ref for ref in index.list_objects()}
        for store in index.stores:
            self._lineages[store.store_id] = store.lineage
            self._parents |= {(store.store_id, file.path): file for file in store.files}

    async def _find_orphans(self) -> None:
        """Find the objects that interrupted runs have sent; those of older backups are among them."""
        async for info in self._target.list(OBJECTS_PREFIX):
            ref = parse_object_key(info.key, info.size)
            if ref is not None and info.key not in self._log.dead:
                self._orphans[ref.sha256, ref.length] = ref

    async def _send_store(self, needed: NeededFiles) -> StoreEntry:
        store = needed.store
        chunks = [
            _Chunk(store.files, file, offset, min(CHUNK_BYTES, file.length - offset))
            for file in needed.files
            for offset in range(0, file.length, CHUNK_BYTES)
        ]
        refs: list[ObjectRef | None] = [self._find_stable(needed, chunk) for chunk in chunks]
        for chunk in (chunk for chunk, ref in zip(chunks, refs, strict=True) if ref is not None):
            self._progress(chunk.length)
        missing = [number for number, ref in enumerate(refs) if ref is None]
        found = await self._send_all([chunks[number] for number in missing])
        for number, ref in zip(missing, found, strict=True):
            refs[number] = ref
        by_file: dict[str, list[ObjectRef]] = {file.path: [] for file in needed.files}
        for chunk, each in zip(chunks, refs, strict=True):
            assert each is not None
            by_file[chunk.file.path].append(each)
        return StoreEntry(
            account=store.account,
            folder=store.folder,
            store_id=needed.store_id,
            lineage=store.lineage,
            checkpoint=needed.checkpoint,
            frame=needed.frame,
            files=[
                FileEntry(each.path, each.length, each.stable, by_file[each.path]) for each in needed.files
            ],
        )

    def _find_stable(self, needed: NeededFiles, chunk: _Chunk) -> ObjectRef | None:
        """Return the object of a chunk that the newest backup has and that cannot have changed since.

        The store must descend from that backup: a disk that was rolled back may have other bytes at the same place.
        """
        if self._lineages.get(needed.store_id) not in needed.store.ancestors:
            return None
        parent = self._parents.get((needed.store_id, chunk.file.path))
        end = chunk.offset + chunk.length
        if parent is None or end > min(parent.stable, chunk.file.stable):
            return None
        number = chunk.offset // CHUNK_BYTES
        ref = parent.chunks[number] if number < len(parent.chunks) else None
        return ref if ref is not None and ref.length == chunk.length else None

    async def _send_all(self, chunks: list[_Chunk]) -> list[ObjectRef]:
        """Send chunks, some at a time; the first error ends all."""
        refs: dict[int, ObjectRef] = {}
        numbers = iter(range(len(chunks)))

        async def work() -> None:
            for number in numbers:
                refs[number] = await self._send(chunks[number])
                self._progress(chunks[number].length)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONCURRENCY, len(chunks))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [refs[number] for number in range(len(chunks))]

    async def _send(self, chunk: _Chunk) -> ObjectRef:
        if chunk.length < LARGE_CHUNK_BYTES:
            return await self._read_and_send(chunk)
        async with self._large_chunks:
            return await self._read_and_send(chunk)

    async def _read_and_send(self, chunk: _Chunk) -> ObjectRef:
        data, digest = await asyncio.to_thread(_read_chunk, chunk)
        return await self._send_bytes(data, digest)

    async def _send_bytes(self, data: bytes, digest: str) -> ObjectRef:
        """Send bytes unless the target has them; equal bytes of two files are sent once."""
        known = self._known.get((digest, len(data)))
        if known is not None and known.key not in self._log.dead:
            return known
        sending = self._sending.get(digest)
        if sending is not None:
            return await asyncio.shield(sending)
        sending = self._sending[digest] = asyncio.get_running_loop().create_future()
        try:
            ref = await self._upload(data, digest)
        except BaseException as error:
            del self._sending[digest]
            if not isinstance(error, Exception):
                sending.cancel()
                raise
            sending.set_exception(error)
            sending.exception()  # others may not wait for it
            raise
        sending.set_result(ref)
        return ref

    async def _upload(self, data: bytes, digest: str) -> ObjectRef:
        orphan = self._orphans.get((digest, len(data)))
        if orphan is not None and orphan.key not in self._log.dead and await self._has(orphan):
            return orphan
        ref = ObjectRef(digest, len(data), self._run)
        if not await self._requests.run(lambda: self._target.create(ref.key, data)):
            raise BackupError(f"{self._target.name} has another object with the name {ref.key}")
        self._orphans[digest, len(data)] = ref
        self.sent_bytes += len(data)
        return ref

    async def _has(self, ref: ObjectRef) -> bool:
        return await self._requests.run(lambda: self._target.has(ref))

    async def _make_record(self, stores: list[NeededFiles], entries: list[StoreEntry]) -> LogRecord:
        """Replace the objects that a prune has removed meanwhile, then send the index."""
        if max(self._log.damaged, default=0) > self._last:
            raise BackupDamaged("a record that was created meanwhile cannot be read: try again")
        for number, (needed, entry) in enumerate(zip(stores, entries, strict=True)):
            entries[number] = await self._replace_dead(needed, entry)
        data = encode_index(BackupIndex(entries))
        # The index has a name of its own in each attempt: an earlier one may be dead.
        self._run = secrets.token_hex(6)
        index = ObjectRef(compute_digest(data), len(data), self._run)
        await self._requests.run(lambda: self._target.create(index.key, data))
        now_ns = time.time_ns()
        moment = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
        return BackupRecord(
            id=f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}",
            created_ns=now_ns,
            server=self._server,
            writer=__version__,
            index=index,
            files=sum(len(each.files) for each in entries),
            bytes=sum(file.length for each in entries for file in each.files),
            sent_bytes=self.sent_bytes,
            streams=sum(each.streams for each in stores),
            messages=self._messages,
            moment_ns=self._point.moment_ns,
            epoch=self._point.epoch,
            group=self._point.group,
        )

    async def _replace_dead(self, needed: NeededFiles, entry: StoreEntry) -> StoreEntry:
        dead = self._log.dead
        if not any(ref.key in dead for file in entry.files for ref in file.chunks):
            return entry
        self._run = secrets.token_hex(6)
        self._sending.clear()
        files = []
        for file, source in zip(entry.files, needed.files, strict=True):
            refs = list(file.chunks)
            for number, ref in enumerate(refs):
                if ref.key in dead:
                    chunk = _Chunk(needed.store.files, source, number * CHUNK_BYTES, ref.length)
                    refs[number] = await self._send(chunk)
            files.append(FileEntry(file.path, file.length, file.stable, refs))
        return msgspec.structs.replace(entry, files=files)


def _check_server(target: BackupTarget, index: BackupIndex, stores: list[NeededFiles]) -> None:
    """Refuse a target of another server: the retention of one would drop the backups of the other."""
    if not {store.store_id for store in index.stores} & {each.store_id for each in stores}:
        raise BackupError(f"{target.name} has backups of another server: use one target for each server")


def count_bytes(stores: list[NeededFiles]) -> int:
    """Return the size of a backup."""
    return sum(file.length for each in stores for file in each.files)


def _read_chunk(chunk: _Chunk) -> tuple[bytes, str]:
    data = chunk.files.read(chunk.file.source, chunk.offset, chunk.length)
    if len(data) != chunk.length:
        raise BackupError(f"{chunk.file.source} is shorter than its checkpoint says: run `headrace fsck`")
    return data, compute_digest(data)
