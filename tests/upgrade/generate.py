"""Writes the data directories of the upgrade test, and what the version that wrote them says about them.

It runs under the old version, here commit 0254295 (checked out and built elsewhere), from the root of this repository:

    PYTHONPATH=<old checkout>/src:tests python -m upgrade.generate tests/upgrade/fixtures [NAME...]

Inputs are fixed, so a second run writes the same messages; times, store identities and pin names differ, and the facts
are taken again. What is to expire does so within a second and has a deadline of decades beside it: both outcomes hold
on any later day. Directories are made first, closed (cleanly, or by SIGKILL) and packed; then a copy of each is opened
again by the old version, and `outcome.py` takes the facts. One was changed by hand: since then a server removes expired
pins when it starts, so `pinned-killed` has none afterwards.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from . import scenes
from .outcome import fold, outcome, unpack
from .scenes import ACCOUNTS
from .world import World


def only(paths: Any) -> Path:
    found = sorted(paths)
    assert found, "nothing to damage"
    return found[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def tear(store: Path) -> None:
    """Append the beginning of a frame to the journal, as a crash in the middle of a write leaves it."""
    for path in (store / "journal").glob("*.jnl"):
        data = bytearray(path.read_bytes())
        starts = [match.start() for match in re.finditer(b"HRfr", data) if match.start() % 512 == 0]
        if not starts:
            continue
        at = starts[-1]
        length = int.from_bytes(data[at + 32 : at + 36], "little")
        after = at + (48 + length + 511) // 512 * 512
        head = bytearray(data[at : at + 48])
        number = int.from_bytes(head[24:32], "little") + 1
        head[24:32] = number.to_bytes(8, "little")
        head[32:36] = (4000).to_bytes(4, "little")
        data[after : after + 48] = head
        data[after + 48 : after + 548] = b"unfinished" * 50
        path.write_bytes(data[: len(data)])


def rot_block(store: Path) -> None:
    flip(only((store / "streams").rglob("*.seg")), 100_000)


def rot_columns(store: Path) -> None:
    flip(only((store / "streams").rglob("*.col")), 200)


def lose_caches(store: Path) -> None:
    for path in [*(store / "streams").rglob("*.col"), *(store / "streams").rglob("subjects.*")]:
        path.unlink()


def rot_copy(store: Path) -> None:
    for path in (store / "checkpoints").glob("*.a"):
        flip(path, path.stat().st_size - 60)


def lose_checkpoints(store: Path) -> None:
    for path in (store / "checkpoints").iterdir():
        path.unlink()


Make = Callable[[World], Awaitable[None]]
#: Name -> how it is filled, whether it ends by SIGKILL, what damages it afterwards, whether there is a loss to
#: accept.
DIRECTORIES: dict[str, tuple[Make, bool, Callable[[Path], None] | None, bool]] = {
    "streams": (scenes.streams, False, None, False),
    "streams-killed": (scenes.streams, True, None, False),
    "due-killed": (scenes.due, True, None, False),
    "consumers": (scenes.consumers, False, None, False),
    "consumers-killed": (scenes.consumers, True, None, False),
    "batches": (scenes.batches, False, None, False),
    "batches-killed": (scenes.batches, True, None, False),
    "copies": (scenes.copies, False, None, False),
    "copies-killed": (scenes.copies, True, None, False),
    "held-killed": (scenes.held, True, None, False),
    "buckets-killed": (scenes.buckets, True, None, False),
    "claims": (scenes.claims, False, None, False),
    "accounts-killed": (scenes.accounts, True, None, False),
    "compacted": (scenes.compacted, False, None, False),
    "pinned-killed": (scenes.pinned, True, None, False),
    "torn-tail": (scenes.rows, True, tear, False),
    "rotten-block": (scenes.rows, True, rot_block, True),
    "rotten-columns": (scenes.rows, True, rot_columns, False),
    "missing-caches": (scenes.rows, True, lose_caches, False),
    "rotten-copy": (scenes.rows, False, rot_copy, False),
    "no-checkpoint": (scenes.rows, False, lose_checkpoints, False),
}


async def make(name: str, folder: Path) -> dict[str, Any]:
    """Create one directory; return its plan."""
    fill, kill, damage, accept = DIRECTORIES[name]
    folder.mkdir()
    world = World(folder)
    if fill is scenes.accounts:
        (folder / "server.conf").write_text(ACCOUNTS)
        world.plan.update(config="server.conf", users=["a", "b", "c"])
    await world.start()
    await fill(world)
    await world.stop(kill)
    if damage is not None:
        damage(folder / "headrace")
    world.plan["accept"] = accept
    return world.plan


def pack(folder: Path, archive: Path) -> None:
    """Pack a sparse archive: most of a journal is zeros."""
    words = ["tar", "--sparse", "--hole-detection=raw", "--sort=name", "--owner=0", "--group=0", "--numeric-owner",
             "--xattrs", "-C", str(folder.parent), "-cf", "-", folder.name]  # fmt: skip
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    archive.write_bytes(lzma.compress(done.stdout, preset=9 | lzma.PRESET_EXTREME))


async def main(target: Path, names: list[str]) -> None:
    root = Path(tempfile.mkdtemp())
    plans = {name: await make(name, root / name) for name in names}
    for name in names:
        pack(root / name, target / f"{name}.tar.xz")
    shutil.rmtree(root)
    await asyncio.sleep(7)  # longer than the TTLs that must expire
    for name in names:
        scratch = Path(tempfile.mkdtemp())
        unpack(target / f"{name}.tar.xz", scratch)
        facts = await outcome(scratch / name, plans[name])
        shutil.rmtree(scratch)
        expected = {"plan": plans[name], "outcome": fold(facts)}
        (target / f"{name}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        print(name, os.path.getsize(target / f"{name}.tar.xz"), os.path.getsize(target / f"{name}.json"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:] or list(DIRECTORIES)))
