"""What a standby has on its disk: its state, its copies, the stores of a former leader, and their lost tail.

Owns `<store_dir>/standby` and `<store_dir>/lost`. Invariant: while the state exists, no server has opened the stores beside
it since, so what is there may be removed. Must not know object stores.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from headrace.backup.restore import sync_file, sync_folder
from headrace.errors import ArchiveError
from headrace.storage.format import (
    FRAME_HEADER_BYTES,
    LARGE,
    decode_entries,
    decode_large_entry,
    journal_path,
    segment_path,
)
from headrace.storage.io.disk import Disk
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.journal.scan import scan_journal
from headrace.storage.recovery.recovery import RESTORE_MARKER

FOLDER, LOST_FOLDER = "standby", "lost"
STATE_FILE, FORMER_FOLDER = "state.json", "former"


class FollowerState(msgspec.Struct):
    """Which server the standby follows, and the number of its present copy."""

    server: str
    url: str
    copy: int = 0


def read_state(home: Path) -> FollowerState | None:
    """Return the state of a standby; None if there is none."""
    path = home / FOLDER / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=FollowerState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{path} is damaged: {error}; remove the folder {path.parent}") from error


def is_following(home: Path) -> bool:
    """Return whether a standby was following here: what is in place is not complete."""
    return (home / FOLDER / STATE_FILE).exists()


def write_state(home: Path, state: FollowerState) -> None:
    """Replace the state."""
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{STATE_FILE}.new"
    temporary.write_bytes(msgspec.json.encode(state))
    sync_file(temporary)
    temporary.replace(folder / STATE_FILE)
    sync_folder(folder)
    sync_folder(home)


def remove_state(home: Path) -> None:
    """Remove the state, then the copies: from now on the stores belong to a server."""
    (home / FOLDER / STATE_FILE).unlink(missing_ok=True)
    if (home / FOLDER).exists():
        sync_folder(home / FOLDER)
        shutil.rmtree(home / FOLDER, ignore_errors=True)


@dataclass(slots=True)
class LostTail:
    """Frames of a former leader that are not in the log: per store the first and last one; files that have them."""

    folder: Path
    frames: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many frames."""
        return sum(last - first + 1 for first, last in self.frames.values())


@dataclass(frozen=True, slots=True)
class FormerStores:
    """The stores of a former leader, where no server opens them; files may be taken from them."""

    folder: Path

    def remove(self) -> None:
        """Remove them: their lost tail is in another folder, everything else is in the log."""
        shutil.rmtree(self.folder, ignore_errors=True)


def find_former(home: Path) -> FormerStores | None:
    """Return the stores that an earlier run has set aside."""
    folder = home / FOLDER / FORMER_FOLDER
    return FormerStores(folder) if folder.is_dir() else None


def set_aside(home: Path, stores: Iterable[Path]) -> FormerStores:
    """Move stores to where no server opens them."""
    former = home / FOLDER / FORMER_FOLDER
    for path in stores:
        target = former / path.relative_to(home)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
        sync_folder(target.parent)
        sync_folder(path.parent)
    return FormerStores(former)


def remove_unopened(stores: Iterable[Path]) -> None:
    """Remove what an interrupted promotion has left."""
    for path in stores:
        shutil.rmtree(path)


def has_marker(path: Path) -> bool:
    """Return whether a store was not restored completely; no server has opened it."""
    return (path / RESTORE_MARKER).exists()


def save_lost_tail(home: Path, stores: dict[int, Path], heads: dict[int, int], epoch: int) -> LostTail:
    """Link the journal files with frames above `heads`, and the segments that these refer to, into a folder of their own."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    tail = LostTail(home / LOST_FOLDER / f"{moment}-epoch-{epoch}")
    for store_id, path in stores.items():
        _save_store(path, store_id, heads.get(store_id, 0), tail, path.relative_to(home))
    if tail.frames:
        report = {"epoch": epoch, "frames": tail.frames}
        (tail.folder / "lost.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        sync_folder(tail.folder)
    return tail


def _save_store(path: Path, store_id: int, head: int, tail: LostTail, folder: Path) -> None:
    names, numbers = set(), []
    for scanned in scan_journal(cast("Disk", ReadonlyDisk(path, exclusive=False)), store_id, head):
        for frame in scanned.frames:
            numbers.append(frame.number)
            names.add(journal_path(scanned.file_number))
            start = frame.offset + FRAME_HEADER_BYTES
            for kind, ident, body in decode_entries(scanned.data[start : start + frame.length]):
                if kind == LARGE:
                    names.add(segment_path(ident, decode_large_entry(body)[0]))
    if not numbers:
        return
    for name in names:
        copy = tail.folder / folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if (path / name).exists() and not copy.exists():
            os.link(path / name, copy)
    tail.frames[str(folder)] = (min(numbers), max(numbers))
