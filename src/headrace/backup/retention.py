"""Drops old backups and removes objects that no other backup names.

Owns which objects may be removed. Invariant: a prune is a record of the log before it removes anything; from then on no
run names an object that it lists (see `BackupLog`), so nothing that a backup needs is ever removed, whatever runs beside
it or stalls. Objects that no backup ever named are removed when they are a day old: a run may still be sending them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

from headrace.backup.backup_log import BackupLog
from headrace.backup.records import (
    OBJECTS_PREFIX,
    BackupRecord,
    LogRecord,
    ObjectRef,
    PruneRecord,
    compute_digest,
    decode_names,
    encode_names,
)
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged

ORPHAN_AGE_NS = 24 * 3600 * 1_000_000_000
_DELETE_BATCH = 500


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did, or would do: IDs of dropped backups, number and size of removed objects."""

    dropped: list[str]
    objects: int
    bytes: int


class BackupRetention:
    """Keeps the newest `keep` backups of a target, and all from record `oldest` on, also those that others add meanwhile.

    Those in `thinned` go all the same.
    """

    def __init__(
        self,
        target: BackupTarget,
        log: BackupLog,
        keep: int,
        orphan_age_ns: int = ORPHAN_AGE_NS,
        oldest: int | None = None,
        thinned: Collection[int] = (),
    ) -> None:
        assert keep >= 1
        self._target = target
        self._log = log
        self._min_keep = keep
        self._oldest = oldest
        self._thinned = frozenset(thinned)
        self._orphan_age_ns = orphan_age_ns

    @property
    def _keep(self) -> int:
        if self._oldest is None:
            return self._min_keep
        count = sum(number >= self._oldest for number, _ in self._log.list_backups())
        return max(self._min_keep, count)

    async def run(self) -> PruneResult:
        """Drop the older backups and remove what only they name; finish earlier prunes first."""
        await self._finish_earlier()
        result, removed = await self._plan()
        planned = self._log.last
        if not removed and not result.dropped:
            return result

        async def make() -> LogRecord:
            nonlocal result, removed, planned
            if self._log.last != planned:  # another run was faster
                await self._finish_earlier()
                result, removed = await self._plan()
                planned = self._log.last
            names = encode_names(sorted(removed))
            ref = ObjectRef(compute_digest(names), len(names), secrets.token_hex(6))
            await self._target.create(ref.key, names)
            backups = self._log.list_backups()
            floor = backups[-self._keep - 1][0] if len(backups) > self._keep else self._log.floor
            thinned = [number for number, _ in self._split()[0] if number > floor]
            return PruneRecord(secrets.token_hex(8), time.time_ns(), floor, ref, thinned)

        record = await self._log.append(make)
        assert isinstance(record, PruneRecord)
        await self._remove(self._log.last, record)
        await self._target.remove_partial_uploads(time.time_ns() - self._orphan_age_ns)
        return result

    async def plan(self) -> PruneResult:
        """Return what `run` would drop and remove now; change nothing."""
        return (await self._plan())[0]

    async def _finish_earlier(self) -> None:
        """Remove what unfinished prunes list: later runs no longer read a list below the new floor."""
        for number, record in self._log.list_unfinished_prunes():
            await self._remove(number, record)

    async def _plan(self) -> tuple[PruneResult, dict[str, int]]:
        """Return what would be dropped, and the objects to remove with their sizes."""
        dropped, remaining = self._split()
        removed: dict[str, int] = {}
        for number, record in dropped:
            removed[record.index.key] = record.index.length
            try:
                index = await self._log.read_index(record)
            except BackupDamaged:
                continue  # what only it names is removed by its age
            removed |= {ref.key: ref.length for ref in index.list_objects()}
            self._log.users.remove(number, record, index)
        await self._log.users.update(remaining, self._log.read_index)
        needed = {
            record.removed.key for record in self._log.records.values() if isinstance(record, PruneRecord)
        }
        oldest_ns = time.time_ns() - self._orphan_age_ns
        async for info in self._target.list(OBJECTS_PREFIX):
            if info.modified_ns < oldest_ns:
                removed[info.key] = info.size
        users = self._log.users
        removed = {key: size for key, size in removed.items() if key not in needed and key not in users}
        return PruneResult([record.id for _, record in dropped], len(removed), sum(removed.values())), removed

    def _split(self) -> tuple[list[tuple[int, BackupRecord]], list[tuple[int, BackupRecord]]]:
        """Return the backups to drop, and those that remain."""
        backups = self._log.list_backups()
        remaining = {n: each for n, each in backups[-self._keep :] if n not in self._thinned}
        return [(n, each) for n, each in backups if n not in remaining], list(remaining.items())

    async def _remove(self, number: int, record: PruneRecord) -> None:
        keys = decode_names(await self._target.read(record.removed))
        for start in range(0, len(keys), _DELETE_BATCH):
            if await self._log.is_done(number):
                return
            await self._target.delete(keys[start : start + _DELETE_BATCH])
        await self._log.mark_done(number)
