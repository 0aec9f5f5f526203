"""Bugs that are planted in a copy of the sink, to show that a campaign notices them.

Owns the bugs, as changed lines of the source. Invariant: a bug whose lines are not in the source any more is an error, so
none is without effect. The server is never changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kills.plan import DRIVER, PYTHON, SERVER, VICTIMS

_PUBLISHER = "spark/write/epoch_publisher.py"
_DONE = "        log.store_epoch(replace(record, state=DONE, attempts=(), lost_ids=(), lost_seq=0))\n"
_PUBLISH = "        try:\n            self._publish(connection, log, record, target)\n"
#: What interrupts a commit. It runs beside the driver's JVM, so the death of an executor does not.
_COMMIT_VICTIMS = (DRIVER, PYTHON, SERVER)


class Change(NamedTuple):
    """Text of a source file, and what is planted instead."""

    path: str
    old: str
    new: str


class Plant(NamedTuple):
    """A bug: the mode of the sink that must show it, what must be killed, and its changes."""

    mode: str
    victims: Sequence[str]
    changes: tuple[Change, ...]


PLANTS: Mapping[str, Plant] = {
    # The epoch is recorded as done before its rows are published.
    "done-before-rows": Plant(
        "staged",
        _COMMIT_VICTIMS,
        (
            Change(_PUBLISHER, _DONE, ""),
            Change(_PUBLISHER, _PUBLISH, _DONE + _PUBLISH),
        ),
    ),
    # A task and the driver do not see that the epoch was committed before.
    "record-ignored": Plant(
        "staged",
        _COMMIT_VICTIMS,
        (
            Change(
                "spark/write/progress_log.py",
                "return self.epoch > epoch or (self.epoch == epoch and self.state != LOST)",
                "return self.epoch > epoch",
            ),
            Change(
                "spark/write/progress_log.py",
                "return self.epoch > epoch or (self.epoch == epoch and self.state == DONE)",
                "return self.epoch > epoch or (self.epoch == epoch and self.seq < 0)",
            ),
            Change(
                _PUBLISHER, "                if self._commit_on(", "                if self._commit_once("
            ),
            Change(
                _PUBLISHER,
                "    def _commit_on(self,",
                "    def _commit_once(self, connection, attempts):  # type: ignore[no-untyped-def]\n"
                "        log = ProgressLog(self._target, connection_for(self._progress_address))\n"
                "        self._decide(connection, log, log.load_epoch(), attempts)\n"
                "        record = log.load_epoch()\n"
                "        if record.state == COMMITTED:\n"
                "            self._finish(connection, log, record)\n"
                "        return True\n\n"
                "    def _commit_on(self,",
            ),
        ),
    ),
    # After a failure the driver does not look for the rows that are stored, and windows have no message ids.
    "evidence-ignored": Plant(
        "staged",
        _COMMIT_VICTIMS,
        (
            Change(
                _PUBLISHER,
                "stored = self._find_stored(connection, record, known, target)",
                "stored = StoredRows()",
            ),
            Change(
                _PUBLISHER,
                "for block in iter_blocks(open_staging(target), record, known):",
                "for block in iter_blocks(open_staging(target), record, Position()):",
            ),
            Change(
                "spark/write/window_sender.py",
                'b"" if window.has_ids else msg_id)',
                'b"X-Planted: %s" % msg_id)',
            ),
            Change(
                "spark/write/window_sender.py",
                "name = ROW_HEADER if window.has_ids else MSG_ID",
                "name = ROW_HEADER",
            ),
        ),
    ),
    # Rows with ids are published without them.
    "ids-dropped": Plant(
        "ids",
        VICTIMS,
        (
            Change(
                "spark/write/direct_writer.py",
                'connection.send(encode_messages(item.columns, inbox, b"", 0))',
                "bare = MessageColumns(item.columns.subjects, None, item.columns.payloads)\n"
                '            connection.send(encode_messages(bare, inbox, b"", 0))',
            ),
        ),
    ),
}


def plant_bug(name: str, source: Path, folder: Path) -> Path:
    """Copy the source to a folder and plant a bug in it; return the folder of the copy."""
    return plant_changes(name, PLANTS[name].changes, source, folder)


def plant_changes(name: str, changes: Sequence[Change], source: Path, folder: Path) -> Path:
    """Copy the source to a folder and change the copy; return its folder."""
    copy = folder / "planted"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for change in changes:
        path = copy / "headrace" / change.path
        text = path.read_text()
        if change.old not in text:
            raise ValueError(f"{name} does not fit {change.path} any more: {change.old!r} is not there")
        path.write_text(text.replace(change.old, change.new, 1))
    return copy
