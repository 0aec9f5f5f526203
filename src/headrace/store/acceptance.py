"""What happens when a person accepts a loss: the only place where damaged data is ever let go of.

Owns `lost/`: everything taken out of a store is kept there, with an account of what it was. Invariant:
evidence is in `lost/` before the store forgets it. Must not know how damage is found.
"""

from __future__ import annotations

import msgspec

from headrace.errors import Corrupt, Full
from headrace.store.disk import Disk, FileDisk
from headrace.store.filelog import FileLog
from headrace.store.format import stream_folder
from headrace.store.fsck import Findings, WallClock, inspect
from headrace.store.store import Store

FOLDER = "lost"
ACCOUNT = "account.json"
_EVERYTHING = ("journal", "checkpoints", "streams")


def accept(directory: str, findings: Findings) -> None:
    """Lets go of all that `findings` calls damaged, so that the store opens without a complaint."""
    disk = FileDisk(directory)
    try:
        place = _new_place(disk)
        _write_account(disk, place, findings)
        try:
            store = Store.open(disk, WallClock())
        except Corrupt:
            _move_aside(disk, [folder for folder in _EVERYTHING if disk.exists(folder)], place)
        else:
            _let_go(store, place, findings)
    finally:
        disk.close()


def _let_go(store: Store, place: str, findings: Findings) -> None:
    """The store forgets what is damaged, says so in its next checkpoint, and is closed."""
    disk, report = store.disk, store.report()
    folders = [stream_folder(entry.ident) for entry in store.checkpoints.offline]
    files = _evidence(store)
    for path in files:
        _copy(disk, path, place)
    for each in report.damage:
        _hold(disk, each.file, place)
    for log in store.file_logs():
        _drop_rows(store, log, place)
    store.facts.put(f"loss/{place}".encode(), msgspec.json.encode(findings.damage))
    store.accept_loss()
    report.offline.clear()
    store.close()
    if not store.has_final_checkpoint:
        raise Full("there is no space to note what is accepted; free some space and run this again")
    disk.run([("unlink", path) for path in files if disk.exists(path)])
    _move_aside(disk, [folder for folder in folders if disk.exists(folder)], place)


def _drop_rows(store: Store, log: FileLog, place: str) -> None:
    """What cannot be read is removed, and the rest of its segment is written anew without the damaged place."""
    bad = list(inspect(store.disk, log))
    for each in bad:
        _hold(store.disk, each.segment.path, place)
        log.remove_many(each.seqs)
    for segment in {each.segment.path: each.segment for each in bad}.values():
        if segment in log.sealed:
            store.compactor.rewrite(log, segment)
    store.disk.drain()


def _evidence(store: Store) -> list[str]:
    """Damaged files that are no segments; those stay in use as far as they are good."""
    paths = dict.fromkeys([*store.checkpoints.kept, *(each.file for each in store.report().damage)])
    return [path for path in paths if path and not path.startswith("streams/") and store.disk.exists(path)]


def _new_place(disk: Disk) -> str:
    """A folder of its own for each acceptance."""
    number = 1
    while disk.exists(f"{FOLDER}/{number}"):
        number += 1
    if not disk.exists(FOLDER):
        disk.run([("mkdir", FOLDER), ("syncdir", "")])
    place = f"{FOLDER}/{number}"
    disk.run([("mkdir", place), ("syncdir", FOLDER)])
    return place


def _write_account(disk: Disk, place: str, findings: Findings) -> None:
    path = f"{place}/{ACCOUNT}"
    data = msgspec.json.format(msgspec.json.encode(findings))
    disk.run([("create", path, 0), ("write", path, 0, data), ("sync", path), ("syncdir", place)])


def _flat(path: str) -> str:
    return path.replace("/", "+")


def _copy(disk: Disk, path: str, place: str) -> None:
    """Bytes of their own: files of the journal are overwritten when they are used again."""
    new, size = f"{place}/{_flat(path)}", disk.size(path)
    disk.run([("create", new, 0), ("copy", path, 0, new, 0, size), ("sync", new), ("syncdir", place)])


def _hold(disk: Disk, path: str, place: str) -> None:
    """A second name for a segment, which is never overwritten; it may be dropped once its rows are."""
    new = f"{place}/{_flat(path)}"
    if path.startswith("streams/") and disk.exists(path) and not disk.exists(new):
        disk.run([("link", path, new), ("syncdir", place)])


def _move_aside(disk: Disk, paths: list[str], place: str) -> None:
    for path in paths:
        disk.run([("rename", path, f"{place}/{_flat(path)}")])
    disk.run([("syncdir", place), ("syncdir", "")])
