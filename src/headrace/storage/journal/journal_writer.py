"""Writes the journal (write-ahead log): decides where the next frame goes, and which files are spare or reusable.

Owns file numbers, frame numbers and the chain of checksums. Invariant: a frame is written once, under the identity that
its checksum covers, and a file is reused only under a new number, and with an archive only when all its frames are
archived. Must not know what is in a frame.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.code_probes import sometimes
from headrace.storage.format import (
    ALIGN,
    COMMIT,
    FRAME_HEADER_BYTES,
    FrameHeader,
    align_up,
    encode_frame_header,
    journal_path,
)
from headrace.storage.io.disk import Disk, Op
from headrace.storage.journal import sync_marker
from headrace.storage.journal.journal_file import JournalFile, create_ops, rename_ops
from headrace.storage.journal.scan import ScannedFile
from headrace.storage.options import StoreOptions

#: Maximum number of spares, reached where frames arrive faster than files can be created.
SPARES_MAX = 4

#: The checksum of a frame of at least this size is computed on the thread that writes it.
LARGE_FRAME_BYTES = 256 * 1024
#: Without an archive, no frame waits for one.
NO_ARCHIVE = 1 << 64
#: This fraction of each file stays free until the disk is full and there is no other file.
RESERVED_PART = 8


class Journal:
    """`last_frame` is the number of the newest frame, durable or not."""

    def __init__(
        self, disk: Disk, store_id: int, options: StoreOptions, on_error: Callable[[OSError], None]
    ) -> None:
        self._disk = disk
        self._store_id = store_id
        self._options = options
        self._standard_size = align_up(options.journal_bytes)
        self._reserve = self._standard_size // RESERVED_PART
        self._on_error = on_error
        self.last_frame = 0
        self.next_file = 1
        self.no_space = False  # no space for another file
        self.is_cramped = False  # the disk is full
        self.is_tight = (
            False  # a spare was removed for a checkpoint: none is created until that one is durable
        )
        self.bytes_since_checkpoint = 0  # written since the last checkpoint was started
        self.spares: deque[tuple[int, int]] = deque()
        self.closed_files: list[JournalFile] = []
        self._free_files: deque[JournalFile] = deque()
        self.archived_frame = NO_ARCHIVE  # all frames up to this one are archived
        self._unarchived_files: list[JournalFile] = []  # a checkpoint covers them, the archive does not
        self._busy = False
        self._spares_wanted = options.journal_spares
        self._prev_crc = 0
        self._current_file = 0
        self._current_size = 0
        self._write_offset = 0

    def start(self, number: int) -> None:
        """After recovery: continue with frame `number` + 1, in the first spare or in a new file."""
        self.last_frame = number
        self._disk.run(sync_marker.create_ops(self._disk))
        if not self.spares:
            file, size = self.next_file, self._standard_size
            self._disk.run(create_ops(file, size))
            self.next_file += 1
            self.spares.append((file, size))
        self._current_file, self._current_size = self.spares.popleft()
        self._write_offset = 0

    def resume(self, number: int, current: tuple[FrameHeader, ScannedFile] | None) -> None:
        """After recovery in place: continue after frame `number`, in the file that contains it or in a spare."""
        self.last_frame = number
        ops = sync_marker.create_ops(self._disk)
        if current is None:
            self._current_file, self._current_size = self.spares.popleft() if self.spares else (0, 0)
        else:
            frame, scanned = current
            self._current_file, self._current_size, self._prev_crc = (
                scanned.file_number,
                len(scanned.data),
                frame.crc,
            )
            self._write_offset = align_up(frame.offset + FRAME_HEADER_BYTES + frame.length)
            ops.append(("sync", journal_path(scanned.file_number)))
        self._disk.run([*ops, ("syncdir", "journal")])

    @property
    def _end(self) -> int:
        """Where frames in the current file must end.

        The last part is reserved for a full disk without another file, so that messages can still be removed.
        """
        last = self.is_cramped and not self.spares and not self._free_files
        return self._current_size if last else self._current_size - self._reserve

    def needs_spare(self, free: int) -> bool:
        """Return whether there is no spare, and one can be made with this many free bytes."""
        return not self.spares and (bool(self._free_files) or free >= self._standard_size)

    @property
    def is_short(self) -> bool:
        """Return whether there is no spare and no space for one."""
        return self.no_space and not self.spares

    def get_guaranteed_bytes(self) -> int:
        """Return the bytes that the next frame can use even if the disk becomes full."""
        largest_spare = max((size for _, size in self.spares), default=0)
        return (
            max(self._current_size - self._write_offset, largest_spare) - self._reserve - FRAME_HEADER_BYTES
        )

    def list_extents(self, committed: int) -> list[tuple[int, int]]:
        """Return number and length of the files that have all frames up to `committed` that are still needed.

        The file of a frame in flight may not exist yet.
        """
        extents = [(file.number, file.size) for file in self.closed_files]
        is_reached = not self.closed_files or self.closed_files[-1].last_frame < committed
        if self._write_offset and is_reached:
            extents.append((self._current_file, self._write_offset))
        return extents

    def make_frame_ops(self, kind: int, body: list[Any], watermarks: bytes = b"") -> list[Op]:
        """Return the operations that make one more frame durable and, for a COMMIT frame, update the sync marker.

        The body is given in pieces; `watermarks` are those of this frame.
        """
        length = align_up(FRAME_HEADER_BYTES + sum(map(len, body)))
        ops = self._switch_file(length) if self._write_offset + length > self._end else []
        assert self._current_file > 0
        assert self._write_offset % ALIGN == 0
        assert self._write_offset + length <= self._current_size, "a frame must end within its file"
        self.last_frame += 1
        frame = (kind, self._current_file, self.last_frame, body, self._prev_crc)
        is_large = length >= LARGE_FRAME_BYTES
        data = partial(self._encode_frame, *frame) if is_large else self._encode_frame(*frame)
        path = journal_path(self._current_file)
        ops += [("write", path, self._write_offset, data), ("sync", path)]
        if kind == COMMIT:
            ops.append(sync_marker.write_op(self._store_id, self.last_frame, watermarks))
        self._write_offset += length
        self.bytes_since_checkpoint += length
        return ops

    def _encode_frame(self, kind: int, file: int, number: int, body: list[Any], prev_crc: int) -> list[Any]:
        """Return the pieces of a frame, with its checksum, which the next frame continues.

        Of a large frame this runs on the thread that writes it: the next frame is made when this one is durable.
        """
        head, self._prev_crc = encode_frame_header(kind, self._store_id, file, number, body, prev_crc)
        return [head, *body]

    def _switch_file(self, length: int) -> list[Op]:
        """Switch to another file: a spare or, if none is ready or large enough, one renamed or created now."""
        if self._current_size:
            self.closed_files.append(JournalFile(self._current_file, self._current_size, self.last_frame))
        self._write_offset = 0
        spare = next((each for each in self.spares if each[1] >= length), None)
        if spare is not None:
            self.spares.remove(spare)
            self._current_file, self._current_size = spare
            return []
        if length <= self._standard_size:  # spares are used up faster than they are created
            self._spares_wanted = min(self._spares_wanted + 1, SPARES_MAX)
        self._current_file = self.next_file
        self.next_file += 1
        old = next((file for file in self._free_files if file.size >= length), None)
        if old is not None:
            self._free_files.remove(old)
            self._current_size = old.size
            sometimes("a free journal file is used for lack of a spare")
            return rename_ops(old, self._current_file)
        sometimes("a journal file is created for lack of a spare")
        self._current_size = max(self._standard_size, length)
        return [("create", journal_path(self._current_file), self._current_size), ("syncdir", "journal")]

    @property
    def is_scarce(self) -> bool:
        """Return whether at most one spare is left, half of the current file is used, and a checkpoint would free other
        files.
        """
        few = len(self.spares) <= 1 and not self._free_files
        return few and bool(self.closed_files) and 2 * self._write_offset > self._current_size

    def give_up_spare(self, needed: int, done: Callable[[OSError | None], None]) -> None:
        """Remove a spare to make space for a checkpoint of `needed` bytes, if the checkpoint will then fit and release
        another file, and the current file has space for frames until then.
        """
        has_room = 4 * (self._current_size - self._write_offset) >= self._current_size
        if self._busy or not self.spares or not self.closed_files or not has_room:
            return
        if self._disk.free() + self.spares[-1][1] < needed:
            return
        sometimes("a spare journal file is removed for a checkpoint")
        self.is_tight = True
        file, _ = self.spares.pop()
        self._disk.submit("behind", [("unlink", journal_path(file))], done)

    def release_through(self, frame: int) -> None:
        """Free older files: a durable checkpoint contains everything up to this frame."""
        self.is_tight = False
        self._unarchived_files.extend(file for file in self.closed_files if file.last_frame <= frame)
        self.closed_files = [file for file in self.closed_files if file.last_frame > frame]
        self._free_archived()

    def set_archived(self, frame: int) -> None:
        """Reuse files only up to this frame from now on; it rises as frames are archived."""
        self.archived_frame = frame
        self._free_archived()

    def _free_archived(self) -> None:
        archived = self.archived_frame
        self._free_files.extend(file for file in self._unarchived_files if file.last_frame <= archived)
        self._unarchived_files = [file for file in self._unarchived_files if file.last_frame > archived]
        self.replenish_spares()

    def list_unarchived(self) -> list[tuple[int, int, int]]:
        """Return number, last frame and length of the files with frames above the archived one, oldest first."""
        files = sorted([*self._unarchived_files, *self.closed_files], key=lambda file: file.last_frame)
        found = [
            (file.number, file.last_frame, file.size)
            for file in files
            if file.last_frame > self.archived_frame
        ]
        return [*found, (self._current_file, self.last_frame, self._write_offset)]

    def replenish_spares(self) -> None:
        """Keep spares ready, renamed from free files or new, and remove surplus files."""
        if self._busy or self.is_tight:
            return
        surplus = self._take_surplus()
        if surplus:
            sometimes("surplus journal files are removed")
            self._submit([("unlink", journal_path(file.number)) for file in surplus])
        elif len(self.spares) < self._spares_wanted:
            self._make_spare()

    def trim(self) -> None:
        """Remove the files that only a burst needed: those that wait to be reused, and spares beyond the option."""
        self._spares_wanted = self._options.journal_spares
        unused = [file.number for file in self._free_files]
        self._free_files.clear()
        while len(self.spares) > self._spares_wanted:
            unused.append(self.spares.pop()[0])
        if unused:
            sometimes("unused journal files are removed after a burst")
            ops: list[Op] = [("unlink", journal_path(number)) for number in unused]
            self._disk.submit("behind", ops, self._on_trimmed)

    def _on_trimmed(self, error: OSError | None) -> None:
        if error is not None:
            self._on_error(error)

    def _take_surplus(self) -> list[JournalFile]:
        """Take out free files of another size, and those beyond what a checkpoint needs."""
        usable = [file for file in self._free_files if file.size == self._standard_size]
        usable_max = usable[: self._options.checkpoint_bytes // self._standard_size + 2]
        surplus = [file for file in self._free_files if file not in usable_max]
        self._free_files = deque(usable_max)
        return surplus

    def _make_spare(self) -> None:
        number = self.next_file
        self.next_file += 1
        if self._free_files:
            sometimes("a free journal file becomes a spare")
            old = self._free_files.popleft()
            self._submit(rename_ops(old, number), (number, old.size), old)
        else:
            self._submit(create_ops(number, self._standard_size), (number, self._standard_size))

    def _submit(
        self, ops: list[Op], spare: tuple[int, int] | None = None, old: JournalFile | None = None
    ) -> None:
        self._busy = True
        self._disk.submit("behind", ops, lambda error: self._on_done(spare, old, error))

    def _on_done(self, spare: tuple[int, int] | None, old: JournalFile | None, error: OSError | None) -> None:
        self._busy = False
        if error is None:
            self.no_space = False
            if spare is not None:
                self.spares.append(spare)
            self.replenish_spares()
        elif error.errno == errno.ENOSPC and spare is not None:
            sometimes("no space for a spare journal file")
            self.no_space = True
            path = journal_path(spare[0])
            if old is not None:
                self._free_files.appendleft(old)  # the rename failed, it still has its old name
            elif self._disk.exists(path):
                self._disk.submit("behind", [("unlink", path)], lambda error: None)
        else:
            self._on_error(error)
