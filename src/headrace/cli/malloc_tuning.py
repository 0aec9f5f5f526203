"""Tunes the C library's memory allocation for the server process.

glibc serves large allocations with mmap and returns them to the system when freed, but it raises the size threshold
each time a large block is freed. Larger blocks then come from the heap, which fragments, and a server under varying
load keeps more memory than it uses. A fixed threshold prevents this: resident memory was a fifth lower after 20 minutes
(docs/explanation/campaigns.md).

Memory that is returned must be faulted in again, page by page, which took most of the CPU time of messages of 1 MiB. So
the threshold is above the largest message by default, and the heap keeps free memory at its top until the server is
idle (`headrace._native.heap`).
"""

from __future__ import annotations

import ctypes

from headrace._native.heap import enable_trimming

#: From glibc's <malloc.h>; other C libraries have no mallopt and are not tuned.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 8 << 20
TRIM_THRESHOLD_BYTES = 64 << 20


def tune_malloc() -> None:
    """Serve allocations of `MMAP_THRESHOLD_BYTES` or more with mmap, and keep free memory until the server is idle."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    enable_trimming()
