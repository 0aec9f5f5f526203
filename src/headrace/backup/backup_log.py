"""The log of a target: numbered records of backups and prunes, each created only if its number is free.

Owns which backups count and which objects are dead. Invariants: numbers have no gaps, and a record is never changed or
removed; so a run that creates record n has seen all before it. An object that a prune names stays dead: no later
record names it. Listing finds the newest record sooner, but never decides: a create does. Must not know files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from headrace.backup.object_users import ObjectUsers
from headrace.backup.records import (
    DONE_PREFIX,
    LOG_PREFIX,
    BackupIndex,
    BackupRecord,
    LogRecord,
    ObjectRef,
    PruneRecord,
    decode_index,
    decode_names,
    decode_record,
    done_key,
    encode_record,
    log_key,
    parse_log_key,
)
from headrace.backup.request_repeater import RequestRepeater
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged, BackupError

#: Records that are read at the same time.
CONCURRENCY = 8


class BackupLog:
    """The records of a target that matter: those after the newest floor.

    `floor` is the highest number of a backup that was dropped with all before it. `dead` has the names of objects that a
    prune removes, as far as it may still be running; `damaged` the records that cannot be read, and why. Until
    `is_complete`, the log has only the records from one number on: enough for a new backup, not for a prune.
    """

    def __init__(self, target: BackupTarget, *, is_lenient: bool = False) -> None:
        self._target = target
        self._is_lenient = is_lenient
        self.records: dict[int, LogRecord] = {}
        self.last = self.floor = 0
        self.is_complete = False
        self.dead: set[str] = set()
        self.damaged: dict[int, str] = {}
        self.users = ObjectUsers()
        self._requests = RequestRepeater()
        self._first = 1  # the first record that was read
        self._dead: dict[int, list[str]] = {}  # by prune
        self._thinned: set[int] = set()  # backups above the floor that were dropped
        self._done: set[int] = set()

    @classmethod
    async def load(cls, target: BackupTarget, *, is_lenient: bool = False) -> BackupLog:
        """Read the records from the newest one back to the floor.

        With `is_lenient` a damaged record does not prevent the use of others: to restore, not to make backups.
        """
        log = cls(target, is_lenient=is_lenient)
        if await target.exists():
            numbers = [parse_log_key(info.key) async for info in target.list(LOG_PREFIX)]
            log.last = max(numbers, default=0)
            log._first = log.last + 1
            await log.read_earlier()
            await log.read_newer()
        log.is_complete = True
        return log

    @classmethod
    async def open_at(cls, target: BackupTarget, number: int) -> BackupLog:
        """Read a record and those after it, in few requests; raise BackupDamaged if there is none with this number."""
        log = cls(target, is_lenient=True)
        log._first, log.last = number, number - 1
        await log.read_newer()
        if log.last < number:
            raise BackupDamaged(f"record {log_key(number)} of {target.name} is missing")
        return log

    def list_backups(self) -> list[tuple[int, BackupRecord]]:
        """Return the backups that count, oldest first."""
        found = sorted(self.records.items())
        return [
            (n, each)
            for n, each in found
            if isinstance(each, BackupRecord) and n > self.floor and n not in self._thinned
        ]

    def list_unfinished_prunes(self) -> list[tuple[int, PruneRecord]]:
        """Return the prunes whose objects may still exist."""
        found = sorted(self.records.items())
        return [(n, each) for n, each in found if isinstance(each, PruneRecord) and n not in self._done]

    def find(self, name: str) -> tuple[int, BackupRecord]:
        """Return the backup with this ID, or the newest one for `latest`."""
        backups = self.list_backups()
        if not backups:
            raise BackupError(f"{self._target.name} has no backup")
        if name == "latest":
            return backups[-1]
        found = [each for each in backups if each[1].id == name]
        if not found:
            raise BackupError(
                f"{self._target.name} has no backup {name}; run `headrace backup ls` for the list"
            )
        return found[0]

    async def read_index(self, record: BackupRecord) -> BackupIndex:
        """Return the files of a backup."""
        return decode_index(await self._read_object(record.index))

    async def _read_object(self, ref: ObjectRef) -> bytes:
        return await self._requests.run(lambda: self._target.read(ref))

    async def read_newer(self) -> None:
        """Read the records that were created since."""
        added = []
        while (data := await self._read_record(self.last + 1)) is not None:
            self.last += 1
            self._decode(self.last, data)
            added.append(self.last)
        await self._read_dead(added)

    async def read_earlier(self) -> None:
        """Read the records before the first one that was read, back to the floor."""
        while self._first - 1 > self.floor:
            end = self._first
            start = max(end - CONCURRENCY, self.floor + 1)
            found = await asyncio.gather(*map(self._read_record, range(start, end)))
            for number, data in zip(range(end - 1, start - 1, -1), reversed(found), strict=True):
                if number > self.floor:
                    self._decode(number, data)
            self._first = start
        done = self._target.list(DONE_PREFIX, done_key(self.floor))
        self._done |= {int(info.key.removeprefix(DONE_PREFIX), 16) async for info in done}
        self.is_complete = True
        await self._read_dead(number for number, _ in self.list_unfinished_prunes())

    async def _read_record(self, number: int) -> bytes | None:
        return await self._requests.run(lambda: self._target.read_any(log_key(number)))

    def _decode(self, number: int, data: bytes | None) -> None:
        try:
            if data is None:
                raise BackupDamaged(f"record {log_key(number)} of {self._target.name} is missing")
            self._add(number, decode_record(data, log_key(number)))
        except BackupDamaged as error:
            self._note_damage(number, error)

    def _note_damage(self, number: int, error: BackupDamaged) -> None:
        if not self._is_lenient:
            raise BackupDamaged(f"{error}: use another target for new backups") from error
        self.damaged[number] = str(error)

    def _add(self, number: int, record: LogRecord) -> None:
        self.records[number] = record
        if isinstance(record, PruneRecord):
            self.floor = max(self.floor, record.floor)
            self._thinned.update(record.thinned)

    async def _read_dead(self, numbers: Iterable[int]) -> None:
        """Read what prunes among these records remove."""
        for number in [each for each in numbers if each not in self._dead]:
            record = self.records.get(number)
            if not isinstance(record, PruneRecord):
                continue
            try:
                self._dead[number] = decode_names(await self._read_object(record.removed))
            except BackupDamaged as error:
                self._note_damage(number, error)
                continue
            self.dead.update(self._dead[number])

    def forget_dropped(self) -> None:
        """Drop the records up to the floor from memory; not while a backup is made, which needs their dead objects."""
        self.records = {number: each for number, each in self.records.items() if number > self.floor}
        self.damaged = {number: text for number, text in self.damaged.items() if number > self.floor}
        self._thinned = {number for number in self._thinned if number > self.floor}
        for number in [each for each in self._dead if each <= self.floor or each in self._done]:
            del self._dead[number]
        self._done = {number for number in self._done if number > self.floor}
        self.dead = {name for names in self._dead.values() for name in names}

    async def append(self, make: Callable[[], Awaitable[LogRecord]]) -> LogRecord:
        """Create the next record; if another run was faster, read its record and let `make` decide again."""
        while True:
            record = await make()
            number, data = self.last + 1, encode_record(record)
            if await self._create(log_key(number), data):
                self.last = number
                self._add(number, record)
                await self._read_dead([self.last])
                return record
            await self.read_newer()

    async def _create(self, key: str, data: bytes) -> bool:
        return await self._requests.run(lambda: self._target.create(key, data))

    async def mark_done(self, number: int) -> None:
        """Record that everything that a prune removes is gone."""
        await self._create(done_key(number), b"")
        self._done.add(number)

    async def is_done(self, number: int) -> bool:
        """Return whether another run has finished this prune."""
        if number not in self._done and await self._target.read_any(done_key(number)) is not None:
            self._done.add(number)
        return number in self._done
