"""Removes files that a crashed run or a crashed recovery left and that nothing refers to.

Owns the decision which files these are. Invariant: files that the durable checkpoint names, that the journal after it
refers to, or that do not belong to the store are never removed. Must not know why a run ended.
"""

from __future__ import annotations

import re

import msgspec

from headrace.code_probes import sometimes
from headrace.storage.checkpoint.load import COPIES, LoadedCheckpoint, list_checkpoints
from headrace.storage.checkpoint_schema import StreamCheckpoint
from headrace.storage.format import checkpoint_path, segment_path, stream_folder
from headrace.storage.io.disk import Disk, Op
from headrace.storage.recovery.load_stream import FILE_NAME, SUBJECTS_NAME
from headrace.storage.recovery.segment_references import JournalSurvey

STREAM = re.compile(r"[0-9a-f]{8}")
#: A folder with a higher number was not created by a store.
IDENT_MAX = 1 << 31


def list_files(disk: Disk) -> set[str]:
    """List every file that a recovery could have created."""
    folders = ["checkpoints", "journal", *(f"streams/{name}" for name in disk.list("streams"))]
    return {f"{folder}/{name}" for folder in folders for name in disk.list(folder)}


def remove_new(disk: Disk, before: set[str]) -> None:
    """Remove durably what a failed recovery has created since `before` was listed.

    Its checkpoint must not come back after a power loss, because its frame number is above those that follow now.
    """
    made = sorted(list_files(disk) - before)
    roots = [path for path in made if path.startswith("checkpoints/")]
    # A root must not be found whose segments are gone.
    disk.run([*_unlinks(roots), ("syncdir", "checkpoints")])
    disk.run(_unlinks([path for path in made if path not in roots]))


def remove_checkpoints(disk: Disk, removed: list[int]) -> None:
    """Remove the files of these checkpoints durably."""
    paths = [checkpoint_path(number, copy) for number in removed for copy in COPIES]
    disk.run([*_unlinks([path for path in paths if disk.exists(path)]), ("syncdir", "checkpoints")])


class UnreferencedFiles:
    """Files that the durable checkpoint, a newer one that recovery starts from, and the journal do not need."""

    def __init__(
        self, disk: Disk, found: LoadedCheckpoint, base: LoadedCheckpoint, survey: JournalSurvey
    ) -> None:
        self._disk = disk
        self._found = found
        self._survey = survey  # of the frames after `base`
        self._roots = [found] if base is found else [found, base]
        self._states: dict[int, list[StreamCheckpoint]] = {}
        for each in self._roots:
            for entry in each.root.streams:
                state = msgspec.msgpack.decode(each.sections[entry.ref], type=StreamCheckpoint)
                self._states.setdefault(entry.ident, []).append(state)

    def remove(self) -> None:
        """Unlink them. Checkpoints first: a root must not be found whose segments are gone."""
        checkpoints = self._checkpoints()
        if len(self._roots) > 1:  # recovery relies on it from now on, and it may be in the page cache only
            self._disk.run(sync_checkpoint(self._disk, self._found.root.number))
        if checkpoints:
            sometimes("an unreferenced checkpoint is removed")
        # Even if there are none: an aborted checkpoint may have been unlinked without a sync before the crash, and must
        # not come back after a power loss when its segments are gone.
        self._disk.run([*_unlinks(checkpoints), ("syncdir", "checkpoints")])
        for name in self._disk.list("streams"):
            ident = int(name, 16) if STREAM.fullmatch(name) else 0
            if 0 < ident < IDENT_MAX:
                self._clear(ident)

    def _checkpoints(self) -> list[str]:
        named = {each.root.number for each in self._roots}
        for root in (each.root for each in self._roots):
            named |= {entry.ref.checkpoint for entry in (*root.streams, *root.offline)}
            named |= {entry.ref.checkpoint for entry in root.shards}
        paths = [
            checkpoint_path(each, copy)
            for each in list_checkpoints(self._disk)
            for copy in COPIES
            if each not in named
        ]
        return [path for path in paths if self._disk.exists(path)]

    def _clear(self, ident: int) -> None:
        folder = stream_folder(ident)
        names = self._disk.list(folder)
        useless = [name for name in names if self._is_useless(ident, name)]
        if useless:
            sometimes("an unreferenced file is removed")
            self._disk.run(_unlinks([f"{folder}/{name}" for name in useless]))
        if len(useless) == len(names) and ident not in self._states and ident not in self._survey.created:
            sometimes("an unreferenced folder is removed")
            self._disk.run([("rmdir", folder)])

    def _is_useless(self, ident: int, name: str) -> bool:
        states = self._states.get(ident, ())
        subjects = SUBJECTS_NAME.fullmatch(name)
        if subjects is not None:
            return all(int(subjects[1]) != state.generation for state in states)
        match = FILE_NAME.fullmatch(name)
        if match is None:
            return False
        number = int(match[1], 16)
        naming = [state for state in states if any(each.number == number for each in state.segments)]
        if name.endswith(".seg"):
            return not naming and segment_path(ident, number) not in self._survey.larges
        return all(match[2] != str(state.generation) for state in naming)


def sync_checkpoint(disk: Disk, number: int) -> list[Op]:
    """Return the operations that sync a checkpoint's files."""
    paths = [checkpoint_path(number, copy) for copy in COPIES]
    return [*(("sync", path) for path in paths if disk.exists(path)), ("syncdir", "checkpoints")]


def _unlinks(paths: list[str]) -> list[Op]:
    return [("unlink", path) for path in paths]
