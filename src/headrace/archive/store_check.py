"""Tests whether an object store does what an archive relies on, before it is used.

Owns the tests. It writes only below a folder of its own, which it removes. Must not know servers.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError

WRITERS, ROUNDS = 8, 20
#: A larger difference between the clocks makes `restore --at` misleading.
CLOCK_DIFFERENCE_MAX_S = 60.0


async def check_store(target: BackupTarget) -> dict[str, object]:
    """Return what was measured; raise ArchiveError if the store cannot be used, with the reason."""
    await target.prepare()
    name = f"check-{secrets.token_hex(6)}"
    folder = target.open_folder(name)
    keys: list[str] = []
    try:
        started = time.perf_counter()
        keys += [f"race/{number:016x}" for number in range(ROUNDS)]
        # At the same time: some stores let the losers of a race wait for a second.
        await asyncio.gather(*(_race(folder, key) for key in keys))
        seconds = time.perf_counter() - started
        await _check_reads(folder, keys)
        difference_s = await _check_clock(folder, keys)
        return {
            "rounds": ROUNDS,
            "writers": WRITERS,
            "seconds": round(seconds, 2),
            "clock_difference_s": round(difference_s, 1),
        }
    finally:
        await folder.delete([*keys, "floor"])


async def _race(folder: BackupTarget, key: str) -> None:
    """Let several writers create one key: exactly one may succeed, and its bytes must be there."""
    values = [f"{writer} {secrets.token_hex(8)}".encode() for writer in range(WRITERS)]
    won = await asyncio.gather(*(folder.create(key, value) for value in values))
    if sum(won) != 1:
        raise ArchiveError(
            f"{sum(won)} of {WRITERS} writers created the same object: the store does not support put-if-absent"
        )
    if await folder.read_any(key) != values[won.index(True)]:
        raise ArchiveError("an object does not have the bytes of the writer that created it")


async def _check_reads(folder: BackupTarget, keys: list[str]) -> None:
    """Check reads and lists after writes, replaced objects, and missing ones."""
    listed = {info.key async for info in folder.list("race/")}
    if missing := set(keys) - listed:
        raise ArchiveError(f"a list lacks {len(missing)} objects that were just written")
    for text in (b"1", b"2"):
        await folder.replace("floor", text)
        if await folder.read_any("floor") != text:
            raise ArchiveError("a read after a replacement returns an older object")
    await _check_replacement(folder)
    await folder.delete(["floor"])
    if await folder.read_any("floor") is not None:
        raise ArchiveError("an object can be read after it was deleted")


async def _check_replacement(folder: BackupTarget) -> None:
    """Replace an object twice on the condition that it is what was read: the second time it is not."""
    found = await folder.read_version("floor")
    if found is None:
        raise ArchiveError("an object that was just read is missing")
    if not await folder.replace_version("floor", b"3", found[1]):
        raise ArchiveError("an object that did not change cannot be replaced conditionally (If-Match)")
    if await folder.replace_version("floor", b"4", found[1]) or await folder.read_any("floor") != b"3":
        raise ArchiveError("an object that has changed was replaced: the store ignores conditions (If-Match)")


async def _check_clock(folder: BackupTarget, keys: list[str]) -> float:
    """Return how far the store's clock is ahead."""
    keys.append("clock/now")
    now_ns = time.time_ns()
    await folder.create(keys[-1], b"")
    written = [info.modified_ns async for info in folder.list("clock/")]
    difference_s = (written[0] - now_ns) / 1e9
    if abs(difference_s) > CLOCK_DIFFERENCE_MAX_S:
        raise ArchiveError(f"the clocks of the store and of this machine differ by {difference_s:.0f} s")
    return difference_s
