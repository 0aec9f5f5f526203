"""File contents as sparse pages. Owns the bytes that survive a power loss, and how writes are laid onto them.

Invariant: a page that was never written reads as zeros, so reserving a large file costs nothing.
It must not know names, folders, lanes or faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PAGE = 4096
_ZERO_PAGE = bytes(PAGE)


class Write(NamedTuple):
    """One operation on a file's content that no sync has covered yet.

    `data` is laid at `offset`; the file is at least `size` long afterwards. A reservation has empty data.
    `at` is the number of the disk operation, for outcomes that look at the order over all files.
    """

    at: int
    offset: int
    data: bytes
    size: int


class Image:
    """The content of one file: pages by number, and a length."""

    __slots__ = ("_flat", "pages", "size")

    def __init__(self, pages: dict[int, bytes], size: int) -> None:
        self.pages = pages
        self.size = size
        self._flat: bytes | None = None

    def copy(self) -> Image:
        return Image(dict(self.pages), self.size)

    def put(self, offset: int, data: bytes) -> None:
        """Lays `data` at `offset`, growing the file when it ends behind the end."""
        self._flat = None
        end = offset + len(data)
        self.size = max(self.size, end)
        position = offset
        while position < end:
            number, start = divmod(position, PAGE)
            stop = min(PAGE, start + end - position)
            piece = data[position - offset : position - offset + stop - start]
            if stop - start < PAGE:
                old = self.pages.get(number, _ZERO_PAGE)
                piece = old[:start] + piece + old[stop:]
            self.pages[number] = piece
            position += stop - start

    def grow(self, size: int) -> None:
        if size > self.size:
            self._flat = None
            self.size = size

    def apply(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if write.data:
                self.put(write.offset, write.data)
            self.grow(write.size)

    def flat(self) -> bytes:
        """The whole content as one value; kept, because crash tests read the same image many times."""
        if self._flat is None:
            content = bytearray(self.size)
            for number, page in self.pages.items():
                start = number * PAGE
                content[start : start + PAGE] = page[: self.size - start]
            self._flat = bytes(content)
        return self._flat
