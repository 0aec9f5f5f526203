"""Decides what a server with `--standby` and an archive does: serve, because it was the last one, or follow another one.

Owns the preparation of the store directory. Invariants: a directory whose stores belong to another server is refused; the
stores of a former leader are set aside before anything is restored, and what is not in the log goes to `lost`, never back
into it. Must not know connections or configuration files.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headrace.archive.archive_identity import (
    ArchiveIdentity,
    adopt_identity,
    normalize_url,
    read_identity,
)
from headrace.archive.archive_verify import find_servers
from headrace.archive.first_server import FIRST_KEY, FirstServer, claim_first, claim_with_data, read_first
from headrace.archive.follower_state import (
    FollowerState,
    FormerStores,
    LostTail,
    find_former,
    has_marker,
    read_state,
    remove_unopened,
    save_lost_tail,
    set_aside,
    write_state,
)
from headrace.archive.group_format import Group, server_folder
from headrace.archive.group_log import GroupLog
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveDamaged, ArchiveError, ArchiveNotBegun, StoreError
from headrace.storage.io.disk import Disk
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.recovery.frame_before_open import find_frame_before_open


@dataclass(frozen=True, slots=True)
class StandbyRole:
    """Follow `server`, or serve if it is None. `former` are files to take from, because of `reason`; `lost` was not in the
    log.

    `time_ns` is the time of the newest group, which a server that continues must not go back behind: it may be that of
    another machine, which it has replaced.
    """

    server: int | None
    former: FormerStores | None = None
    lost: LostTail | None = None
    time_ns: int = 0
    reason: str = ""


async def find_role(
    target: BackupTarget, url: str, home: Path, stores: Sequence[Path], *, may_begin: bool = False
) -> StandbyRole:
    """Return what to do with `home`, whose stores are in `stores`, and prepare it.

    Raise ArchiveNotBegun while the server that may begin the archive has not done so. With `may_begin` this one does, if
    the other one had no data.
    """
    state, identity = read_state(home), read_identity(home)
    present = [path for path in stores if (path / "journal").is_dir() or has_marker(path)]
    if state is not None:
        remove_unopened(present)
        _check_url(state.url, url, home)
        return StandbyRole(int(state.server, 16), find_former(home))
    unopened = [path for path in present if has_marker(path)]
    opened = [path for path in present if not has_marker(path)]
    if opened:
        return await _find_role_of_server(target, url, home, identity, opened)
    remove_unopened(unopened)
    server = await _find_server(target, url, home, identity, may_begin=may_begin)
    if server is not None:
        write_state(home, FollowerState(server_folder(server), normalize_url(url)))
    return StandbyRole(server)


def _check_url(found: str, url: str, home: Path) -> None:
    if found != normalize_url(url):
        raise ArchiveError(f"{home} follows {found}, not {url}: use an empty directory")


async def _find_role_of_server(
    target: BackupTarget, url: str, home: Path, identity: ArchiveIdentity | None, stores: list[Path]
) -> StandbyRole:
    """Return the role of a directory that a server has used: it serves if the archive has nothing that it lacks."""
    if identity is None or identity.url != normalize_url(url):
        identity = ArchiveIdentity(secrets.token_hex(8), normalize_url(url), [])
    if not identity.leader:
        await target.prepare()
    elif not await target.exists():
        raise ArchiveError(f"{target.name} does not exist, but this server has written it: is it mounted?")
    servers = await find_servers(target)
    if identity.server_number not in servers:
        if not identity.leader:
            await _begin_with_data(target, home, identity, servers)
        return StandbyRole(None)  # the start decides whether the archive is the right one
    log = GroupLog(target.open_folder(identity.server), identity.server_number)
    last = await log.find_last()
    group = await log.read(last) if last else None
    if group is None:
        return StandbyRole(None)
    frames = await asyncio.to_thread(_read_frames, stores)
    if group.header.writer not in identity.writers:
        foreign = await _find_first_foreign(log, identity, last)
        heads, reason = foreign.header.heads, "another server has taken over"
    else:
        heads, reason = group.header.heads, "the archive has frames that are not on this disk"
        if all(heads.get(store, 0) <= frame for store, (_, frame) in frames.items()):
            return StandbyRole(None, time_ns=group.header.time_ns)
    # What follows the frames that the log has, or the last one before starts that were refused, is nowhere else.
    ends = {store: min(heads.get(store, 0), frame) for store, (_, frame) in frames.items()}
    known = {int(store, 16) for store in identity.stores}
    paths = {store: path for store, (path, _) in frames.items() if store in known}
    lost = await asyncio.to_thread(save_lost_tail, home, paths, ends, identity.epoch)
    write_state(home, FollowerState(identity.server, normalize_url(url)))
    former = await asyncio.to_thread(set_aside, home, stores)
    return StandbyRole(identity.server_number, former, lost, reason=reason)


def _read_frames(stores: list[Path]) -> dict[int, tuple[Path, int]]:
    """Return folder and last frame of each store that can be read; opening the others says what is wrong with them."""
    found = {}
    for path in stores:
        with contextlib.suppress(StoreError):
            store = find_frame_before_open(cast("Disk", ReadonlyDisk(path, exclusive=False)))
            if store is not None:
                found[store[0]] = path, store[1]
    return found


async def _begin_with_data(
    target: BackupTarget, home: Path, identity: ArchiveIdentity, servers: list[int]
) -> None:
    """Begin the archive with the stores of this directory; raise ArchiveError if it is that of another server."""
    other = server_folder(servers[0]) if servers else ""
    if not other:
        first = await read_first(target)
        if first is None:
            adopt_identity(home, identity)
            first = await claim_with_data(target, identity.server)
        other = first.server if first.server != identity.server else ""
    if other:
        raise ArchiveError(
            f"{target.name} is the archive of server {other}, and the data in {home} is not in it: do not empty this "
            "directory if you need the data. To archive it, use a URL that no server uses yet, and start this server before "
            "its standbys. A standby needs an empty directory of its own"
        )


async def _find_first_foreign(log: GroupLog, identity: ArchiveIdentity, last: int) -> Group:
    """Return the first group of another server that is still there: its heads are what that server had."""
    low, high = max(identity.group, (await log.read_floor()).number), last
    while high - low > 1:
        middle = (low + high) // 2
        group = await log.read(middle)
        if group is None or group.header.writer in identity.writers:
            low = middle
        else:
            high = middle
    found = await log.read(high)
    if found is None:
        raise ArchiveDamaged(f"group {high} was removed meanwhile")
    return found


async def _find_server(
    target: BackupTarget, url: str, home: Path, identity: ArchiveIdentity | None, *, may_begin: bool
) -> int | None:
    """Return the server to follow; None if this one begins the archive, or continues to do so for one that is gone."""
    await target.prepare()
    servers = await find_servers(target)
    if len(servers) > 1:
        names = ", ".join(server_folder(each) for each in servers)
        raise ArchiveError(
            f"{target.name} has archives of {len(servers)} servers ({names}): use a prefix of its own for each"
        )
    if servers:
        return servers[0]
    first = await read_first(target)
    if first is None:
        number = identity.server if identity is not None else secrets.token_hex(8)
        adopt_identity(home, ArchiveIdentity(number, normalize_url(url), []))
        identity = read_identity(home)
        first = await claim_first(target, FirstServer(number))
    if identity is not None and identity.server == first.server:
        return None
    if first.has_data:
        raise ArchiveNotBegun(
            f"server {first.server} has data and begins the archive in {target.name}, but has not done so yet: start it. "
            f"If that server is lost, remove the object `{FIRST_KEY}`"
        )
    if not may_begin:
        raise ArchiveNotBegun(f"server {first.server} begins the archive in {target.name}")
    # The server that creates the first group begins it; the other one is fenced, and follows.
    adopt_identity(home, ArchiveIdentity(first.server, normalize_url(url), []))
    return None
