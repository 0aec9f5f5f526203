"""The journal's files while the store lives: where the next frame goes, and which files are ready or
done with.

Owns file numbers, frame numbers and the chain of checksums. Invariant: a frame is written once, at the
place and under the identity its checksum covers, and a file is used again only under a new number. Must
not know what is in a frame.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.probes import probe
from headrace.store import synced
from headrace.store.disk import Disk, Op
from headrace.store.format import FRAME_BYTES, TICK, Frame, aligned, frame_head, journal_path
from headrace.store.journalscan import Scanned
from headrace.store.options import StoreOptions

_ZEROS = bytes(1 << 20)
#: As many spares are kept, at most, where frames come faster than files can be made.
SPARES_MAX = 4

#: Such a part of each file is left free until the disk is full and no other file is there.
RESERVED_PART = 8


class File(NamedTuple):
    """A file of the journal; `last` is the number of its last frame."""

    number: int
    size: int
    last: int


def _zeros(size: int) -> list[bytes]:
    whole, rest = divmod(size, len(_ZEROS))
    return [_ZEROS] * whole + ([_ZEROS[:rest]] if rest else [])


class Journal:
    """`number` is that of the newest frame, sealed or durable."""

    def __init__(
        self, disk: Disk, store: int, options: StoreOptions, fail: Callable[[OSError], None]
    ) -> None:
        self._disk = disk
        self._store = store
        self._options = options
        self._standard = aligned(options.journal_bytes)
        self._reserve = self._standard // RESERVED_PART
        self._fail = fail
        self.number = 0
        self.next_file = 1
        self.short = False  # no space for another file
        self.is_cramped = False  # the disk is full
        self.is_tight = False  # a spare was given up for a checkpoint: none is made before that is proven
        self.bytes = 0  # written since the checkpoint before last was asked for
        self.spares: deque[tuple[int, int]] = deque()
        self.closed: list[File] = []
        self._free: deque[File] = deque()
        self._making = False
        self._spares_wanted = options.journal_spares
        self._crc = 0
        self._file = 0
        self._size = 0
        self._at = 0

    def start(self, number: int) -> None:
        """After recovery: the next frame is `number` + 1, in the first spare, or a file made now."""
        self.number = number
        self._disk.run(synced.made(self._disk))
        if not self.spares:
            file, size = self.next_file, self._standard
            self._disk.run(_made(file, size))
            self.next_file += 1
            self.spares.append((file, size))
        self._file, self._size = self.spares.popleft()
        self._at = 0

    def resume(self, number: int, current: tuple[Frame, Scanned] | None) -> None:
        """After recovery in place: frames follow number `number`, in the file that has it, or in a spare."""
        self.number = number
        ops = synced.made(self._disk)
        if current is None:
            self._file, self._size = self.spares.popleft() if self.spares else (0, 0)
        else:
            frame, scanned = current
            self._file, self._size, self._crc = scanned.file, len(scanned.data), frame.crc
            self._at = aligned(frame.offset + FRAME_BYTES + frame.length)
            ops.append(("sync", journal_path(scanned.file)))
        self._disk.run([*ops, ("syncdir", "journal")])

    @property
    def _end(self) -> int:
        """Where frames in the current file end. Its last part is for a full disk without another file, so that
        something can still be removed.
        """
        last = self.is_cramped and not self.spares and not self._free
        return self._size if last else self._size - self._reserve

    def needs_spare(self, free: int) -> bool:
        """Whether no file is ready after the current one, and one can be had with so many free bytes."""
        return not self.spares and (bool(self._free) or free >= self._standard)

    @property
    def is_short(self) -> bool:
        """Whether no file is ready after the current one, and there is no space for one."""
        return self.short and not self.spares

    def room(self) -> int:
        """Bytes that the next frame can have for certain, whatever happens to the disk."""
        ahead = max((size for _, size in self.spares), default=0)
        return max(self._size - self._at, ahead) - self._reserve - FRAME_BYTES

    def ops(self, kind: int, body: list[Any], marks: bytes = b"") -> list[Op]:
        """Operations that make one more frame durable, and then bear witness to it unless it is a mere mark.

        Its body comes in pieces; `marks` are its own watermarks.
        """
        length = aligned(FRAME_BYTES + sum(len(piece) for piece in body))
        ops = self._turn(length) if self._at + length > self._end else []
        self.number += 1
        head, self._crc = frame_head(kind, self._store, self._file, self.number, body, self._crc)
        path = journal_path(self._file)
        ops += [("write", path, self._at, [head, *body]), ("sync", path)]
        if kind == TICK:
            ops.append(synced.said(self._store, self.number, marks))
        self._at += length
        self.bytes += length
        return ops

    def _turn(self, length: int) -> list[Op]:
        """Goes on to another file: a spare, or one had on the spot where none is ready or large enough."""
        if self._size:
            self.closed.append(File(self._file, self._size, self.number))
        self._at = 0
        spare = next((each for each in self.spares if each[1] >= length), None)
        if spare is not None:
            self.spares.remove(spare)
            self._file, self._size = spare
            return []
        if length <= self._standard:  # they are used up faster than they are made
            self._spares_wanted = min(self._spares_wanted + 1, SPARES_MAX)
        self._file = self.next_file
        self.next_file += 1
        old = next((file for file in self._free if file.size >= length), None)
        if old is not None:
            self._free.remove(old)
            self._size = old.size
            probe("an old journal file is taken on the spot")
            return _renamed(old, self._file)
        probe("a journal file is made on the spot")
        self._size = max(self._standard, length)
        return [("create", journal_path(self._file), self._size), ("syncdir", "journal")]

    @property
    def is_scarce(self) -> bool:
        """Whether at most one file is left after the current one, half of which is used, and a checkpoint would
        give others back.
        """
        few = len(self.spares) <= 1 and not self._free
        return few and bool(self.closed) and 2 * self._at > self._size

    def give_up_spare(self, needed: int, done: Callable[[OSError | None], None]) -> None:
        """Frees the space of a spare for a checkpoint of `needed` bytes, if that will fit then and release another
        file, and the current file has room for frames until then.
        """
        has_room = 4 * (self._size - self._at) >= self._size
        if self._making or not self.spares or not self.closed or not has_room:
            return
        if self._disk.free() + self.spares[-1][1] < needed:
            return
        probe("a spare is given up for a checkpoint")
        self.is_tight = True
        file, _ = self.spares.pop()
        self._disk.submit("behind", [("unlink", journal_path(file))], done)

    def release(self, frame: int) -> None:
        """A proven checkpoint holds everything up to this frame: older files are free."""
        self.is_tight = False
        self._free.extend(file for file in self.closed if file.last <= frame)
        self.closed = [file for file in self.closed if file.last > frame]
        self.prepare()

    def prepare(self) -> None:
        """Keeps spares ready: an old file under a new number, or a new one; what is of no use goes."""
        if self._making or self.is_tight:
            return
        surplus = self._surplus()
        if surplus:
            probe("journal files are too many")
            self._submit([("unlink", journal_path(file.number)) for file in surplus])
        elif len(self.spares) < self._spares_wanted:
            self._make()

    def _surplus(self) -> list[File]:
        """Free files of another size, and more than a checkpoint's worth of them."""
        usable = [file for file in self._free if file.size == self._standard]
        wanted = usable[: self._options.checkpoint_bytes // self._standard + 2]
        surplus = [file for file in self._free if file not in wanted]
        self._free = deque(wanted)
        return surplus

    def _make(self) -> None:
        number = self.next_file
        self.next_file += 1
        if self._free:
            probe("an old journal file becomes a spare")
            old = self._free.popleft()
            self._submit(_renamed(old, number), (number, old.size), old)
        else:
            self._submit(_made(number, self._standard), (number, self._standard))

    def _submit(self, ops: list[Op], spare: tuple[int, int] | None = None, old: File | None = None) -> None:
        self._making = True
        self._disk.submit("behind", ops, lambda error: self._made(spare, old, error))

    def _made(self, spare: tuple[int, int] | None, old: File | None, error: OSError | None) -> None:
        self._making = False
        if error is None:
            self.short = False
            if spare is not None:
                self.spares.append(spare)
            self.prepare()
        elif error.errno == errno.ENOSPC and spare is not None:
            probe("no room for a spare journal file")
            self.short = True
            path = journal_path(spare[0])
            if old is not None:
                self._free.appendleft(old)  # it has its old name
            elif self._disk.exists(path):
                self._disk.submit("behind", [("unlink", path)], lambda error: None)
        else:
            self._fail(error)


def _renamed(old: File, number: int) -> list[Op]:
    """A file that is done with, under a new number."""
    return [("rename", journal_path(old.number), journal_path(number)), ("syncdir", "journal")]


def _made(number: int, size: int) -> list[Op]:
    """A new file, reserved and written once, so that later syncs need no change of the file system's
    own data.
    """
    path = journal_path(number)
    return [("create", path, size), ("write", path, 0, _zeros(size)), ("sync", path), ("syncdir", "journal")]
