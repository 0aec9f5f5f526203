"""The object `first` of an archive: which server may begin it.

Owns the object. Invariant: it is created only if absent, and never replaced. A server that begins without data may be
replaced before its first group: the number of a group decides which of two servers begins. One that has data may not, for
the other one would begin with an empty store. Must not know stores.
"""

from __future__ import annotations

import msgspec

from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveDamaged

#: Created only if absent: of servers that find an empty archive, one begins it.
FIRST_KEY = "first"


class FirstServer(msgspec.Struct, frozen=True):
    """The number of the server, in hexadecimal, and whether it has data that the archive lacks."""

    server: str
    has_data: bool = False

    @property
    def server_number(self) -> int:
        """The server's number."""
        return int(self.server, 16)


async def read_first(target: BackupTarget) -> FirstServer | None:
    """Return which server may begin the archive; None if that is open."""
    data = await target.read_any(FIRST_KEY)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=FirstServer)
    except (msgspec.DecodeError, ValueError) as error:
        raise ArchiveDamaged(f"{FIRST_KEY} of {target.name} is damaged: {error}") from error


async def claim_first(target: BackupTarget, first: FirstServer) -> FirstServer:
    """Let this server begin the archive, unless another one may; return the one that does."""
    if await target.create(FIRST_KEY, msgspec.json.encode(first)):
        return first
    return await read_first(target) or first


async def claim_with_data(target: BackupTarget, server: str) -> FirstServer:
    """As `claim_first`, for a server with stores: a standby must not begin this archive with an empty one."""
    return await read_first(target) or await claim_first(target, FirstServer(server, has_data=True))
