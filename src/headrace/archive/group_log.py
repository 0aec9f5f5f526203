"""The log of an archive: numbered groups, each created only if its number is free.

Owns what a refused create means, the floor, and where the log ends. Invariants: numbers above the floor have no gaps; the
floor only rises;
`create` returns only if the object has exactly these bytes and its number is above the floor. A list may prove that a
group exists, never that there is none. Must not know stores or frames.
"""

from __future__ import annotations

import msgspec

from headrace.archive.group_format import (
    BASE_FOLDER,
    LOG_PREFIX,
    Group,
    decode_group,
    log_key,
    parse_log_key,
)
from headrace.backup.backup_log import BackupLog
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectStoreError
from headrace.errors import ArchiveDamaged, ArchiveFenced, BackupError

FLOOR_KEY = "log/floor"
_DELETE_BATCH = 500
#: Attempts to raise the floor.
ATTEMPTS_MAX = 20


class LogFloor(msgspec.Struct, frozen=True):
    """Groups up to `number` were dropped; those up to `deleted` are gone."""

    number: int = 0
    deleted: int = 0


class GroupLog:
    """The log of one server, below its folder."""

    def __init__(self, target: BackupTarget, server: int) -> None:
        self._target = target
        self.server = server

    async def read(self, number: int) -> Group | None:
        """Return a group; None if there is none with this number."""
        data = await self._target.read_any(log_key(number))
        return None if data is None else decode_group(data, self.server, number)

    async def create(self, number: int, data: bytes) -> None:
        """Create a group; raise ArchiveFenced if other bytes have this number, or it was dropped.

        After any other error the outcome is unknown: call again with the same bytes.
        """
        try:
            is_created = await self._target.create(log_key(number), data)
        except BackupError:  # refused, and there is no such group: NATS never uses a number again
            await self._check_floor(number)
            raise
        if not is_created:
            raise self._make_fenced(number)
        # A number that was removed is free again: a server that was suspended for long could create it.
        await self._check_floor(number)

    async def check_next(self, number: int, writer: str) -> None:
        """Raise ArchiveFenced if another writer has created this group, also if it was dropped since."""
        group = await self.read(number)
        if group is None:
            await self._check_floor(number)
        elif group.header.writer != writer:
            raise self._make_fenced(number)

    def _make_fenced(self, number: int) -> ArchiveFenced:
        return ArchiveFenced(f"group {number} of {self._target.name} was written by another server")

    async def _check_floor(self, number: int) -> None:
        floor = await self.read_floor()
        if number <= floor.number:
            raise ArchiveFenced(
                f"group {number} of {self._target.name} is below the floor {floor.number}: another server writes it now"
            )

    async def read_floor(self) -> LogFloor:
        """Return the floor; 0 if nothing was ever dropped."""
        data = await self._target.read_any(FLOOR_KEY)
        return LogFloor() if data is None else self._decode_floor(data)

    def _decode_floor(self, data: bytes) -> LogFloor:
        try:
            return msgspec.json.decode(data, type=LogFloor)
        except (msgspec.DecodeError, ValueError) as error:
            raise ArchiveDamaged(f"{FLOOR_KEY} of {self._target.name} is damaged: {error}") from error

    async def trim(self, number: int) -> int:
        """Drop all groups up to `number`: the floor is written before the first of them is removed."""
        floor = await self._raise_floor(number, 0)
        if floor.number == floor.deleted:
            return 0
        for start in range(floor.deleted + 1, floor.number + 1, _DELETE_BATCH):
            end = min(start + _DELETE_BATCH, floor.number + 1)
            await self._target.delete([log_key(each) for each in range(start, end)])
        await self._raise_floor(floor.number, floor.number)
        return floor.number - floor.deleted

    async def _raise_floor(self, number: int, deleted: int) -> LogFloor:
        """Raise the floor to at least these numbers; return it.

        It is replaced only if nobody else has done so since it was read: a trimmer that was suspended in between must not
        lower it, because a dropped number above it could be created again, and acknowledged.
        """
        for _ in range(ATTEMPTS_MAX):
            found = await self._target.read_version(FLOOR_KEY)
            data, version = found if found is not None else (b"", "")
            floor = self._decode_floor(data) if data else LogFloor()
            raised = LogFloor(max(number, floor.number), max(deleted, floor.deleted))
            if raised == floor:
                return floor
            if await self._target.replace_version(FLOOR_KEY, msgspec.json.encode(raised), version):
                return raised
        raise ObjectStoreError(
            f"{FLOOR_KEY} of {self._target.name} cannot be replaced: other processes keep replacing it"
        )

    async def find_last(self) -> int:
        """Return the number of the newest group; raise ArchiveDamaged if one before it is missing."""
        last, highest = await self.find_end()
        if last < highest:
            raise ArchiveDamaged(
                f"group {last + 1} of {self._target.name} is missing: group {highest} exists"
            )
        return last

    async def find_end(self) -> tuple[int, int]:
        """Return the last number before a gap, and the highest number that a list proves: the same without a gap.

        A trimmer that was suspended may have lowered the floor; groups up to those of the bases may be gone.
        """
        low = (await self.read_floor()).number
        last = await self._probe(low)
        highest = await self._find_highest(last)
        while highest > last:
            floor = (await self.read_floor()).number
            if floor == low and not await self._target.has_key(log_key(last + 1)):
                bases = await BackupLog.load(self._target.open_folder(BASE_FOLDER), is_lenient=True)
                floor = max((record.group for _, record in bases.list_backups()), default=0)
                if floor <= last:
                    return last, highest
            low = floor  # a writer or a trimmer has continued since, or the floor is too low
            last = await self._probe(max(low, last))
            highest = await self._find_highest(last)
        return last, last

    async def _find_highest(self, last: int) -> int:
        """Return the highest number that a list shows; `last` if it shows none above it."""
        found = [parse_log_key(info.key) async for info in self._target.list(LOG_PREFIX, log_key(last))]
        return max([last, *found])

    async def _probe(self, low: int) -> int:
        """Return the last number of those that follow `low` without a gap, in few requests."""
        step = 1
        while await self._target.has_key(log_key(low + step)):
            low += step
            step *= 2
        high = low + step  # absent
        while high - low > 1:
            middle = (low + high) // 2
            if await self._target.has_key(log_key(middle)):
                low = middle
            else:
                high = middle
        return low
