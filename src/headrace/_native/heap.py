"""Gives free memory of glibc's heap back to the system, a megabyte at a time.

`malloc_trim` does the same in one call, which takes up to a second and keeps everybody else from allocating. Here free
memory is allocated, the system drops its pages, and it is freed again at the end. Only the server process trims:
`enable_trimming`. With another C library nothing is trimmed.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

#: Each account of a server asks for it on its own.
TRIM_INTERVAL_S = 10.0
#: What one step gives back.
STEP_BYTES = 1 << 20
#: Sizes that are allocated, one after the other; smaller pieces of free memory stay.
BLOCK_BYTES = (1 << 20, 1 << 18, 1 << 16, 1 << 14)
FREED_PER_STEP = 1000
_MADV_DONTNEED = 4

_is_enabled = False
_next_trim_s = 0.0


class _HeapInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@dataclass(frozen=True, slots=True)
class _Allocator:
    """Functions of glibc."""

    malloc: Any
    free: Any
    madvise: Any
    sbrk: Any
    mallinfo2: Any


@cache
def _load_allocator() -> _Allocator | None:
    """Return None with another C library, or a glibc before 2.33."""
    try:
        library = ctypes.CDLL(None)
        allocator = _Allocator(library.malloc, library.free, library.madvise, library.sbrk, library.mallinfo2)
    except (AttributeError, OSError):
        return None
    allocator.malloc.restype, allocator.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    allocator.free.restype, allocator.free.argtypes = None, (ctypes.c_void_p,)
    allocator.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    allocator.sbrk.restype, allocator.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
    allocator.mallinfo2.restype, allocator.mallinfo2.argtypes = _HeapInfo, ()
    return allocator


class HeapTrimmer:
    """Gives back memory that is free when it is created: call `step` until it returns False."""

    def __init__(self, allocator: _Allocator) -> None:
        self._allocator = allocator
        self._free_bytes = allocator.mallinfo2().fordblks
        self._sizes = list(reversed(BLOCK_BYTES))
        self._blocks: list[int] = []

    def step(self) -> bool:
        """Give back a part, in less than a millisecond; return whether there is more to do."""
        if self._sizes:
            self._drop_pages()
            return True
        for block in self._blocks[:FREED_PER_STEP]:
            self._allocator.free(block)
        del self._blocks[:FREED_PER_STEP]
        return bool(self._blocks)

    def _drop_pages(self) -> None:
        dropped = 0
        while dropped < STEP_BYTES and self._sizes:
            size = self._sizes[-1]
            if size <= self._free_bytes and self._drop_block(size):
                self._free_bytes -= size
                dropped += size
            else:
                self._sizes.pop()

    def _drop_block(self, size: int) -> bool:
        """Drop the pages of a free block; return False if there is none, so that the heap grew by one."""
        heap_end = self._allocator.sbrk(0)
        block = self._allocator.malloc(size)
        if block is None:
            return False
        self._blocks.append(block)
        if self._allocator.sbrk(0) != heap_end:
            return False
        start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (block + size) // mmap.PAGESIZE * mmap.PAGESIZE
        self._allocator.madvise(start, end - start, _MADV_DONTNEED)
        return True


def enable_trimming() -> None:
    """Let `begin_trimming` return trimmers from now on: the process serves, and its event loop is the main thread."""
    global _is_enabled
    _is_enabled = True


def begin_trimming() -> HeapTrimmer | None:
    """Return a trimmer; None if it is not enabled or not possible, or if another one began a short while ago."""
    global _next_trim_s
    if not _is_enabled or time.monotonic() < _next_trim_s:
        return None
    _next_trim_s = time.monotonic() + TRIM_INTERVAL_S
    allocator = _load_allocator()
    return HeapTrimmer(allocator) if allocator is not None else None
