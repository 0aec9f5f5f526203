"""Follows the journal of one store: reads durable frames from its files, and the large messages that they refer to.

Owns the position in the files. Invariant: it returns whole frames, in order, without a gap, up to the durable one. It
only reads; the store does not reuse a file before its frames are archived. Must not know where they go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.archive.group_format import encode_block_entry, encode_frame_entry
from headrace.errors import ArchiveError
from headrace.storage.format import (
    FRAME_HEADER_BYTES,
    LARGE,
    FrameHeader,
    align_up,
    compute_segment_seed,
    decode_large_entry,
    find_entries,
    journal_path,
    parse_frame,
    parse_frame_header,
    segment_path,
)

#: Bytes of one read, if the file has as many. One read is enough for most groups.
READ_BYTES = 4 << 20

#: Reads bytes of a file of the store: path, offset, length.
Reader = Callable[[str, int, int], bytes]


@dataclass(frozen=True, slots=True)
class StorePosition:
    """A store now: `frame` is durable; `files` are number, last frame and length of its journal files, oldest first.

    `highest` is the highest sequence of its streams; None if they show nothing that is not archived.
    """

    store_id: int
    account: str
    frame: int
    files: list[tuple[int, int, int]]
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class FileExtent:
    """The block of a large message, which is read when it is sent: place, seed of its checksum, and sequence."""

    path: str
    offset: int
    length: int
    seed: int
    seq: int


Piece = memoryview | FileExtent


@dataclass(frozen=True, slots=True)
class JournalRun:
    """Frames `first` to `last`, and the position after them."""

    first: int
    last: int
    pieces: list[Piece]
    size: int
    file: int
    offset: int


class JournalTail:
    """The journal of a store after frame `archived`."""

    def __init__(self, store_id: int, archived: int) -> None:
        self.store_id = store_id
        self.archived = archived
        self._file = self._offset = 0
        self._data = memoryview(b"")  # bytes of the file, from `_data_offset`
        self._data_offset = 0

    def collect(self, position: StorePosition, read: Reader, size_max: int) -> JournalRun | None:
        """Return the next frames, at least one and not many more than `size_max` bytes; None if there is none."""
        number, file, offset = self.archived, self._file, self._offset
        pieces: list[Piece] = []
        size = 0
        self._data = memoryview(b"")
        while number < position.frame and size < size_max:
            wanted, length = next(
                ((each, end) for each, last, end in position.files if last > number), (0, 0)
            )
            if wanted != file:
                file, offset, self._data = wanted, 0, memoryview(b"")
            frame = self._read_frame(read, file, offset, length)
            if frame is None or frame.number > number + 1:
                raise ArchiveError(
                    f"frame {number + 1} of account {position.account} is not in journal file {file}: run `headrace fsck`"
                )
            start = frame.offset
            offset += align_up(FRAME_HEADER_BYTES + frame.length)
            if frame.number <= number:
                continue
            added = self._make_pieces(self._data[start : start + FRAME_HEADER_BYTES + frame.length])
            pieces += added
            size += sum(each.length if isinstance(each, FileExtent) else len(each) for each in added)
            number = frame.number
        self._data = memoryview(b"")  # the pieces have what is needed: a server may have thousands of stores
        if number == self.archived:
            return None
        return JournalRun(self.archived + 1, number, pieces, size, file, offset)

    def advance(self, run: JournalRun) -> None:
        """Continue after these frames: they are archived."""
        assert run.first == self.archived + 1
        self.archived, self._file, self._offset = run.last, run.file, run.offset

    def _read_frame(self, read: Reader, file: int, offset: int, end: int) -> FrameHeader | None:
        """Return the frame at an offset of a file, which ends at `end`; its `offset` is that in the bytes read."""
        at, read_bytes = offset - self._data_offset, min(end - offset, READ_BYTES)
        if not 0 <= at <= len(self._data) - FRAME_HEADER_BYTES:
            at = self._fill(read, file, offset, max(read_bytes, FRAME_HEADER_BYTES))
        header = parse_frame_header(self._data, at)
        if header is None or header.store_id != self.store_id or header.file_number != file:
            return None
        length = FRAME_HEADER_BYTES + header.length
        if at + length > len(self._data):
            at = self._fill(read, file, offset, max(read_bytes, length))
        return parse_frame(self._data, at)

    def _fill(self, read: Reader, file: int, offset: int, length: int) -> int:
        self._data, self._data_offset = memoryview(read(journal_path(file), offset, length)), offset
        return 0

    def _make_pieces(self, frame: memoryview) -> list[Piece]:
        """Return the entries of a frame, after those of the large messages that it refers to."""
        pieces: list[Piece] = []
        for ident, data in find_entries(frame[FRAME_HEADER_BYTES:], LARGE):
            segment, offset, length, seq = decode_large_entry(data)
            seed = compute_segment_seed(self.store_id, ident, segment)
            pieces.append(memoryview(encode_block_entry(self.store_id, ident, segment, offset, length)))
            pieces.append(FileExtent(segment_path(ident, segment), offset, length, seed, seq))
        pieces += (memoryview(encode_frame_entry(self.store_id, len(frame))), frame)
        return pieces
