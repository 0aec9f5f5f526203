"""Reads standard input while the event loop runs: the connection stays alive, and Ctrl-C ends the command at once.

Owns the thread that reads. It never ends by itself while it waits for input, so the process does not wait for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator

_CHUNK_BYTES = 1 << 16
#: Number of chunks that may wait to be processed.
_CHUNKS_MAX = 4


async def read_chunks() -> AsyncIterator[bytes]:
    """Yield standard input in pieces, each as soon as it is there."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_MAX)
    # Without its buffer: the interpreter locks that at exit, which fails while a thread waits in it.
    source = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)

    def read_all() -> None:
        chunk: bytes | OSError = b"?"
        while chunk and not isinstance(chunk, OSError):
            try:
                chunk = source.read(_CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except RuntimeError:  # the loop is closed: the command has ended
                return

    threading.Thread(target=read_all, name="standard input", daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk


async def read_all() -> bytes:
    """Return all of standard input."""
    return b"".join([chunk async for chunk in read_chunks()])


async def read_lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input without their ends, each as soon as it is complete."""
    rest = b""
    async for chunk in read_chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if rest:
        yield rest.rstrip(b"\r")
