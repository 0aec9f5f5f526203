"""Maps files through the C library, for the pure core.

`mmap.mmap` would keep a descriptor for each map, of which there may be thousands. The C library is loaded on first use:
Windows has none under this name, and opens no store.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from functools import cache

_MAP_FAILED = ctypes.c_void_p(-1).value


@cache
def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


def map_file(fd: int, length: int) -> memoryview:
    """Return a read-only view of an open file's first bytes, which outlives the descriptor."""
    if not length:
        return memoryview(b"")
    libc = _load_libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), "the file cannot be mapped")
    mapped = (ctypes.c_char * length).from_address(address)
    # Not at process exit: the view may still be in use then.
    weakref.finalize(mapped, libc.munmap, address, length).atexit = False
    return memoryview(mapped).cast("B").toreadonly()
