"""File contents as sparse pages. Owns the bytes that survive a power loss, and how writes are applied to them.

Invariant: a page that was never written reads as zeros, so reserving a large file costs nothing. Must not know names,
folders, queues or faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PAGE_BYTES = 4096
_ZERO_PAGE = bytes(PAGE_BYTES)


class PendingWrite(NamedTuple):
    """One operation on a file's content that no sync has covered yet.

    `data` is written at `offset`; the file is at least `size` long afterwards. A reservation has empty data.
    `op_number` is the number of the disk operation, for outcomes that depend on the order over all files.
    """

    op_number: int
    offset: int
    data: bytes
    size: int


class SparseFile:
    """The content of one file: pages by number, and a length."""

    __slots__ = ("_content", "pages", "size")

    def __init__(self, pages: dict[int, bytes], size: int) -> None:
        self.pages = pages
        self.size = size
        self._content: bytes | None = None

    def copy(self) -> SparseFile:
        return SparseFile(dict(self.pages), self.size)

    def put(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset`, growing the file if necessary."""
        self._content = None
        end = offset + len(data)
        self.size = max(self.size, end)
        position = offset
        while position < end:
            number, start = divmod(position, PAGE_BYTES)
            stop = min(PAGE_BYTES, start + end - position)
            piece = data[position - offset : position - offset + stop - start]
            if stop - start < PAGE_BYTES:
                old = self.pages.get(number, _ZERO_PAGE)
                piece = old[:start] + piece + old[stop:]
            self.pages[number] = piece
            position += stop - start

    def grow(self, size: int) -> None:
        if size > self.size:
            self._content = None
            self.size = size

    def apply_writes(self, writes: Iterable[PendingWrite]) -> None:
        for write in writes:
            if write.data:
                self.put(write.offset, write.data)
            self.grow(write.size)

    def read_all(self) -> bytes:
        """Return the whole content as one value; cached, because crash tests read the same image many times."""
        if self._content is None:
            content = bytearray(self.size)
            for number, page in self.pages.items():
                start = number * PAGE_BYTES
                content[start : start + PAGE_BYTES] = page[: self.size - start]
            self._content = bytes(content)
        return self._content
