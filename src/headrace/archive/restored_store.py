"""The files of a store that is restored from an archive: a base, and the frames of the groups after it.

Owns the journal files that it adds. Invariants: frames follow the base without a gap; what was added before an interruption
is continued after its last whole frame. Must not know where groups come from, or how stores are recovered.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from headrace.backup.records import StoreEntry
from headrace.errors import ArchiveDamaged
from headrace.os_files import sync_data
from headrace.storage.format import (
    FRAME_HEADER_BYTES,
    align_up,
    encode_frame_header,
    journal_path,
    parse_frame,
)

FILE_BYTES = 64 << 20


class RestoredStore:
    """Adds frames and large messages to the restored files of a store."""

    def __init__(self, root: Path, entry: StoreEntry) -> None:
        self._root = root
        self.store_id = entry.store_id
        self.number = entry.frame
        self._next_file, self._crc = _find_base_end(root, entry)
        self._file: Any = None
        self._blocks: set[Path] = set()
        self.frames = 0
        self._continue()

    def _continue(self) -> None:
        """Continue after the last whole frame that an interrupted run has added."""
        while (path := self._root / journal_path(self._next_file)).exists():
            data, offset = memoryview(path.read_bytes()), 0
            while (frame := parse_frame(data, offset)) is not None:
                if frame.number != self.number + 1 or frame.file_number != self._next_file:
                    break
                self.number, self._crc = frame.number, frame.crc
                offset += align_up(FRAME_HEADER_BYTES + frame.length)
            if offset < len(data):
                os.truncate(path, offset)
                _remove_later(self._root, self._next_file)
            self._next_file += 1

    def add_frame(self, data: memoryview) -> None:
        """Append a frame, unless the base has it; it gets the number of the file that it is in now."""
        frame = parse_frame(data, 0)
        if frame is None or frame.store_id != self.store_id:
            raise ArchiveDamaged("a frame in a group is damaged")
        if frame.number <= self.number:
            return
        if frame.number != self.number + 1:
            raise ArchiveDamaged(f"frame {self.number + 1} is missing: the next one is {frame.number}")
        if self._file is None or self._file.tell() > FILE_BYTES:
            self._open_next()
        body = data[FRAME_HEADER_BYTES:]
        head, self._crc = encode_frame_header(
            frame.kind, self.store_id, self._next_file - 1, frame.number, [body], self._crc
        )
        length = FRAME_HEADER_BYTES + len(body)
        self._file.write(head)
        self._file.write(body)
        self._file.write(bytes(align_up(length) - length))
        self.number = frame.number
        self.frames += 1

    def add_block(self, path: str, offset: int, data: memoryview) -> None:
        """Write the block of a large message to its place in its segment."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], offset + done)
        finally:
            os.close(descriptor)
        self._blocks.add(target)

    def _open_next(self) -> None:
        self._close_file()
        path = self._root / journal_path(self._next_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._next_file += 1

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.flush()
            sync_data(self._file.fileno())
            self._file.close()
            self._file = None

    def abandon(self) -> None:
        """Close the journal file after an error: what was not written yet must not be written later."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it is closed all the same
                file.close()

    def sync(self) -> None:
        """Make everything durable that was added, large messages before the frames that refer to them."""
        for path in self._blocks:
            with path.open("rb+") as file:
                sync_data(file.fileno())
        self._blocks.clear()
        if self._file is not None:
            self._file.flush()
            sync_data(self._file.fileno())

    def close(self) -> None:
        """Make everything durable; `RestoreRun` syncs the folders."""
        self.sync()
        self._close_file()


def _find_base_end(root: Path, entry: StoreEntry) -> tuple[int, int]:
    """Return the number for the next journal file, and the checksum of the base's last frame (0 if it has none)."""
    number, crc = 0, 0
    for file in sorted(each.path for each in entry.files if each.path.startswith("journal/")):
        path = root / file
        number = max(number, int(path.stem, 16))
        data, offset = memoryview(path.read_bytes()), 0
        while (frame := parse_frame(data, offset)) is not None:
            if frame.number == entry.frame and frame.file_number == int(path.stem, 16):
                crc = frame.crc
            offset += align_up(FRAME_HEADER_BYTES + frame.length)
    return number + 1, crc


def _remove_later(root: Path, number: int) -> None:
    for path in (root / "journal").glob("*.jnl"):
        if int(path.stem, 16) > number:
            path.unlink()
