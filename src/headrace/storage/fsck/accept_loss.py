"""Removes damaged data from a store after a person has accepted the loss. No other module does that.

Owns `lost/`: everything removed from a store is kept there, with a description. Invariant: the evidence is in `lost/`
before the store drops it. Must not know how damage is found.
"""

from __future__ import annotations

import msgspec

from headrace.clock import SystemClock
from headrace.errors import CorruptData, StoreFull
from headrace.storage.format import stream_folder
from headrace.storage.fsck.check import FsckReport, find_damage
from headrace.storage.io.disk import Disk, FileDisk
from headrace.storage.log.file_log import FileLog
from headrace.storage.recovery.recovery import open_store
from headrace.storage.store import Store

FOLDER = "lost"
ACCOUNT_FILE = "account.json"
_STORE_FOLDERS = ("journal", "checkpoints", "streams")


def accept_data_loss(directory: str, findings: FsckReport) -> None:
    """Drop everything that `findings` reports as damaged, so that the store opens without errors."""
    disk = FileDisk(directory)
    try:
        target = _create_target(disk)
        _write_findings(disk, target, findings)
        try:
            store = open_store(disk, SystemClock())
        except CorruptData:
            _move_aside(disk, [folder for folder in _STORE_FOLDERS if disk.exists(folder)], target)
        else:
            _drop_damage(store, target, findings)
    finally:
        disk.close()


def _drop_damage(store: Store, target: str, findings: FsckReport) -> None:
    """Drop the damaged data from the store, record that in its next checkpoint, and close it."""
    disk, report = store.disk, store.report()
    folders = [stream_folder(entry.ident) for entry in store.checkpointer.offline_streams]
    files = _find_evidence(store)
    for path in files:
        _copy_evidence(disk, path, target)
    for each in report.damage:
        _link_evidence(disk, each.file, target)
    for log in store.iter_file_logs():
        _drop_rows(store, log, target)
    store.metadata.put(f"loss/{target}".encode(), msgspec.json.encode(findings.damage))
    store.accept_loss()
    report.offline_streams.clear()
    store.close()
    if not store.has_final_checkpoint:
        raise StoreFull("there is no space to record the accepted loss; free some space and run this again")
    disk.run([("unlink", path) for path in files if disk.exists(path)])
    _move_aside(disk, [folder for folder in folders if disk.exists(folder)], target)


def _drop_rows(store: Store, log: FileLog, target: str) -> None:
    """Remove the unreadable messages and rewrite the rest of their segment without the damaged part."""
    damaged = list(find_damage(store.disk, log))
    for each in damaged:
        _link_evidence(store.disk, each.segment.path, target)
        log.remove_many(each.seqs)
    for segment in {each.segment.path: each.segment for each in damaged}.values():
        if segment in log.sealed_segments:
            store.compactor.rewrite(log, segment)
    store.disk.drain()


def _find_evidence(store: Store) -> list[str]:
    """Return damaged files that are not segments; segments stay in use as far as they are intact."""
    paths = dict.fromkeys(
        [*store.checkpointer.retained_files, *(each.file for each in store.report().damage)]
    )
    return [path for path in paths if path and not path.startswith("streams/") and store.disk.exists(path)]


def _create_target(disk: Disk) -> str:
    """Create a new folder under `lost/` for this acceptance."""
    number = 1
    while disk.exists(f"{FOLDER}/{number}"):
        number += 1
    if not disk.exists(FOLDER):
        disk.run([("mkdir", FOLDER), ("syncdir", "")])
    target = f"{FOLDER}/{number}"
    disk.run([("mkdir", target), ("syncdir", FOLDER)])
    return target


def _write_findings(disk: Disk, target: str, findings: FsckReport) -> None:
    path = f"{target}/{ACCOUNT_FILE}"
    data = msgspec.json.format(msgspec.json.encode(findings))
    disk.run([("create", path, 0), ("write", path, 0, data), ("sync", path), ("syncdir", target)])


def _flatten_path(path: str) -> str:
    return path.replace("/", "+")


def _copy_evidence(disk: Disk, path: str, target: str) -> None:
    """Copy a file byte by byte: journal files are overwritten when they are reused."""
    new, size = f"{target}/{_flatten_path(path)}", disk.size(path)
    disk.run([("create", new, 0), ("copy", path, 0, new, 0, size), ("sync", new), ("syncdir", target)])


def _link_evidence(disk: Disk, path: str, target: str) -> None:
    """Hard-link a segment, which is never overwritten; the original may be removed once its rows are."""
    new = f"{target}/{_flatten_path(path)}"
    if path.startswith("streams/") and disk.exists(path) and not disk.exists(new):
        disk.run([("link", path, new), ("syncdir", target)])


def _move_aside(disk: Disk, paths: list[str], target: str) -> None:
    for path in paths:
        disk.run([("rename", path, f"{target}/{_flatten_path(path)}")])
    disk.run([("syncdir", target), ("syncdir", "")])
