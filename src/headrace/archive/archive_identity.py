"""The identity of a server in its archive: a small file in its store directory, which no backup and no restore copies.

Owns the file. Invariants: the name of a writer is in it, synced, before the writer creates anything in the archive; so a
group of an unknown writer was written by another server. A store is in it before a group has its frames; so a store that
is missing later is noticed. Must not know object stores.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.errors import ArchiveError
from headrace.os_files import sync_data

FILE_NAME = "headrace-archive.json"
#: Number of earlier writers whose requests may still arrive; the one that took the archive over last stays in addition.
WRITERS_MAX = 100


class ArchiveIdentity(msgspec.Struct, frozen=True):
    """The server's number in the archive at `url`, and its writers, the newest last.

    `leader` is the last one that took the archive over: most of the others may be starts that failed. `stores` has the
    folders of the archived stores below the store directory, by their identities in hexadecimal. `epoch` and `group` were
    the newest ones when they were last recorded; the archive has at least these.
    """

    server: str
    url: str
    writers: list[str]
    leader: str = ""
    stores: dict[str, str] = {}
    epoch: int = 0
    group: int = 0

    @property
    def server_number(self) -> int:
        """The server's number."""
        return int(self.server, 16)


def add_writer(folder: Path, url: str) -> ArchiveIdentity:
    """Add a writer for this process; a directory without an identity, or with that of another archive, gets a new one."""
    found = read_identity(folder)
    url = normalize_url(url)
    if found is None or found.url != url:
        found = ArchiveIdentity(secrets.token_hex(8), url, [])
    writers = [*found.writers, secrets.token_hex(8)][-WRITERS_MAX:]
    if found.leader and found.leader not in writers:
        writers.insert(0, found.leader)
    identity = msgspec.structs.replace(found, writers=writers)
    _write(folder, identity)
    return identity


def normalize_url(url: str) -> str:
    """Return what identifies an archive: parameters, and the addresses of a NATS cluster, are only how to reach it."""
    url = url.partition("?")[0]
    return f"nats:///{url.rpartition('/')[2]}" if url.startswith("nats://") else url


def confirm_writer(
    folder: Path, identity: ArchiveIdentity, epoch: int = 0, group: int = 0
) -> ArchiveIdentity:
    """Record that the newest writer has taken the archive over, and how far it is."""
    identity = msgspec.structs.replace(
        identity,
        leader=identity.writers[-1],
        epoch=max(epoch, identity.epoch),
        group=max(group, identity.group),
    )
    _write(folder, identity)
    return identity


def adopt_identity(folder: Path, identity: ArchiveIdentity) -> None:
    """Make a directory that of this server: a standby is about to take its archive over.

    The writer is in it before it creates anything; earlier writers were other processes, with other disks.
    """
    _write(folder, identity)


def add_stores(folder: Path, identity: ArchiveIdentity, stores: Mapping[int, Path]) -> ArchiveIdentity:
    """Record the stores that are archived, with their folders; those that are gone are left out."""
    found = {f"{store:016x}": os.path.relpath(path, folder) for store, path in stores.items()}
    known = {each: path for each, path in identity.stores.items() if _is_store(folder / path)}
    if identity.stores != (known | found):
        identity = msgspec.structs.replace(identity, stores=known | found)
        _write(folder, identity)
    return identity


def find_absent_stores(folder: Path, identity: ArchiveIdentity, stores: Mapping[int, Path]) -> set[int]:
    """Return the archived stores that are not open, because their accounts were removed.

    Raise ArchiveError if a store is not there although its account is, or if none is there.
    """
    remedy = (
        "nothing was changed; mount the disk, or restore the archive with `headrace archive restore URL DIR`, or remove "
        f"{FILE_NAME} from the store directory to begin a new archive with what is here"
    )
    absent = {int(each, 16): path for each, path in identity.stores.items() if int(each, 16) not in stores}
    used = {os.path.relpath(path, folder) for path in stores.values()}
    for store, path in absent.items():
        if path in used:
            raise ArchiveError(
                f"the archive has store {store:016x} of {path}, but {folder / path} has another one: {remedy}"
            )
    found = [path for path in identity.stores.values() if path in used or _is_store(folder / path)]
    if absent and not found:
        raise ArchiveError(f"no store of the archive is in {folder}: {remedy}")
    return set(absent)


def _is_store(path: Path) -> bool:
    return (path / "journal").is_dir()


def _write(folder: Path, identity: ArchiveIdentity) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE_NAME}.new"
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(identity)))
        file.flush()
        sync_data(file.fileno())
    temporary.replace(folder / FILE_NAME)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_identity(folder: Path) -> ArchiveIdentity | None:
    """Return the identity of a store directory; None if it was never archived."""
    path = folder / FILE_NAME
    try:
        identity = msgspec.json.decode(path.read_bytes(), type=ArchiveIdentity)
        int(identity.server, 16)
        return identity
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: {error}; remove it to begin a new archive") from error
