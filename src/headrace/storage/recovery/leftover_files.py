"""Finds files that the crashed run left and that the recovered store does not use.

Owns the decision what to do with them: the store's own are removed with the next checkpoint if nothing at all is
damaged; all others are not touched and are reported. Must not know what was replayed.
"""

from __future__ import annotations

import re

from headrace.code_probes import sometimes
from headrace.storage.checkpoint.load import FILE_NAME as CHECKPOINT_NAME
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import stream_folder
from headrace.storage.io.disk import Disk
from headrace.storage.journal.scan import FILE_NAME as JOURNAL_NAME
from headrace.storage.journal.sync_marker import PATH as SYNCED
from headrace.storage.log.file_log import FileLog
from headrace.storage.recovery.load_stream import FILE_NAME as SEGMENT_NAME
from headrace.storage.recovery.load_stream import SUBJECTS_NAME
from headrace.storage.recovery.unreferenced_files import STREAM
from headrace.storage.store import Store

FOLDERS = ("checkpoints", "journal", "streams")
KNOWN_NAMES = (*FOLDERS, "lineage", "lock", "lost", "pins")
_TORN_NAME = re.compile(r"[0-9a-f]{16}\.[0-9]+\.torn")


class LeftoverFiles:
    """The files of a recovered store. `written` is the checkpoint from which a crash would recover once it is durable.

    `larges` are the segments that the journal needs after opening in place: path -> ident, first and last sequence.
    """

    def __init__(
        self,
        disk: Disk,
        store: Store,
        report: RecoveryReport,
        written: int,
        larges: dict[str, tuple[int, int, int]],
    ) -> None:
        self._disk = disk
        self._store = store
        self._report = report
        self._written = written
        self._larges = larges

    def collect(self, *, is_new: bool) -> None:
        """Hand the store's own files to its garbage collector, and report the others."""
        disk, report, store = self._disk, self._report, self._store
        report.unknown_files += self._list_foreign()
        logs = {log.ident: log for log in store.iter_file_logs()}
        offline = {entry.ident for entry in store.checkpointer.offline_streams}
        for name in disk.list("streams"):
            ident = int(name, 16) if STREAM.fullmatch(name) else -1
            if ident in logs:
                self._collect_stream(logs[ident])
            elif ident in offline:
                continue
            elif report.healthy and 0 < ident < store.next_ident and not is_new:
                sometimes("a folder is left over")
                store.file_gc.add_folder(f"streams/{name}", store.frame_number)
            else:
                report.unknown_files.append(f"streams/{name}")

    def _list_foreign(self) -> list[str]:
        """List what no store creates, outside of the folder of streams."""
        disk = self._disk
        roots = [name for name in disk.list("") if name not in KNOWN_NAMES]
        journal = [
            f"journal/{name}"
            for name in disk.list("journal")
            if not JOURNAL_NAME.fullmatch(name)
            and not _TORN_NAME.fullmatch(name)
            and f"journal/{name}" != SYNCED
        ]
        checkpoints = [
            f"checkpoints/{name}" for name in disk.list("checkpoints") if not CHECKPOINT_NAME.fullmatch(name)
        ]
        return roots + journal + checkpoints

    def _collect_stream(self, log: FileLog) -> None:
        for name in self._disk.list(stream_folder(log.ident)):
            path = f"{stream_folder(log.ident)}/{name}"
            in_use = _is_in_use(log, name)
            if in_use is None or (not in_use and not self._report.healthy):
                self._report.unknown_files.append(path)
            elif not in_use:
                sometimes("a file is left over")
                _, first, last = self._larges.get(path, (0, 0, 0))
                # No frame after the checkpoint needs it: it is removed when that checkpoint is durable.
                needed = self._store.checkpointer.next_number if last else self._written
                self._store.file_gc.add_copied(log, path, first, last, needed)


def _is_in_use(log: FileLog, name: str) -> bool | None:
    """Return whether a stream's file is in use, or bad and therefore kept as found; None if it is not the store's own."""
    generations = (log.generation, log.loaded_generation)
    if subjects := SUBJECTS_NAME.fullmatch(name):
        return int(subjects[1]) in generations
    match = SEGMENT_NAME.fullmatch(name)
    if match is None:
        return None
    named = any(segment.number == int(match[1], 16) for segment in log.list_segments())
    is_segment = name.endswith(".seg")
    return named and (is_segment or (match[2] is not None and int(match[2]) in generations))
