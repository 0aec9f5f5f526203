"""The steps of a start that use the object store: the takeover, and the opening base.

Owns how long they may take without an answer. Invariant: the wait for a sign of life of another server is not limited,
since it lasts as long as `takeover_after`. Runs on the archiver's thread. Must not know stores or threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from headrace.archive.archive_identity import ArchiveIdentity
from headrace.archive.archive_verify import find_servers
from headrace.archive.first_server import claim_with_data
from headrace.archive.group_writer import EarlierRuns, GroupWriter
from headrace.archive.server_leader import ServerLeader
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError

#: How long a start waits for the object store.
START_TIMEOUT_S = 30.0
OPENING_RETRY_S = 1.0


async def take_over(
    target: BackupTarget,
    writer: GroupWriter,
    leader: ServerLeader,
    identity: ArchiveIdentity,
    frames: dict[int, int],
    earlier: EarlierRuns,
) -> list[int]:
    """Take the archive over; raise ArchiveError if that is impossible.

    Return the other servers with an archive there if this one begins its own.
    """
    others: list[int] = []
    async with _limit_time("looked for the archive"):
        if not identity.leader:
            await target.prepare()
            await claim_with_data(target, identity.server)
            others = [each for each in await find_servers(target) if each != identity.server_number]
        elif not await target.exists():
            raise ArchiveError("it does not exist, but this server has written it before: is it mounted?")
    folder = target.open_folder(identity.server)
    await leader.check(folder)
    async with _limit_time("looked for the newest group and created the next one"):
        await writer.take_over(set(identity.writers), frames, earlier)
        progress = writer.progress
        await leader.start(folder, identity.writers[-1], lambda: progress.epoch)
    return others


@contextlib.asynccontextmanager
async def _limit_time(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            yield
    except TimeoutError:
        raise ArchiveError(f"no answer within {START_TIMEOUT_S:g} s while the server {what}") from None


async def make_opening_base(writer: GroupWriter, note_error: Callable[[Exception], None]) -> None:
    """Send what is on the disk: recovery shows frames that an earlier process has synced and not archived.

    Errors end the start only if nothing was sent for some time: the first base of a large store takes long.
    """
    sent_bytes, success_s = 0, time.monotonic()
    while True:
        try:
            await writer.make_base()
            return
        except (ArchiveError, asyncio.CancelledError):
            raise
        except Exception as error:
            note_error(error)
            if writer.progress.base_sent_bytes > sent_bytes:
                sent_bytes, success_s = writer.progress.base_sent_bytes, time.monotonic()
            elif time.monotonic() > success_s + START_TIMEOUT_S:
                raise
            await asyncio.sleep(OPENING_RETRY_S)
