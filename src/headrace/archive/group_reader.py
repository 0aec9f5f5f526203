"""Reads the log of an archive group by group, from one number on.

Owns the position. Invariant: it returns only complete groups, each with all its parts, and every object continues the one
before it. An object that is not there yet ends nothing: the next call asks for it again. Must not know stores.
"""

from __future__ import annotations

from headrace.archive.group_format import Group, GroupHeader
from headrace.archive.group_log import GroupLog
from headrace.errors import ArchiveDamaged


class GroupReader:
    """The log after group `number`, whose checksum is `crc` if it is known."""

    def __init__(self, log: GroupLog, number: int, crc: int | None) -> None:
        self._log = log
        self.number = number
        self.crc = crc
        self.header: GroupHeader | None = None  # of the newest object that was read
        self._parts: list[Group] = []

    async def read_next(self) -> bool:
        """Read the next object; return whether there was one."""
        group = await self._log.read(self.number + 1)
        if group is None:
            return False
        header = group.header
        if self.crc is not None and header.prev_crc != self.crc:
            raise ArchiveDamaged(f"group {header.number} does not continue the group before it")
        if header.part == 1:
            self._parts = []  # a group that its writer could not complete was begun again
        self._parts.append(group)
        if header.part != len(self._parts):
            raise ArchiveDamaged(f"group {header.number} is part {header.part} of one that begins earlier")
        self.number, self.crc, self.header = header.number, group.crc, header
        return True

    def take_body(self) -> bytes | None:
        """Return the body of the group that was completed by the newest object; None if parts are missing."""
        if not self._parts or not self._parts[-1].header.is_last_part:
            return None
        parts, self._parts = self._parts, []
        return b"".join(part.body for part in parts)
