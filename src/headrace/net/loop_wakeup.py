"""Lets other threads wake the event loop without the GIL: they write to a descriptor that the loop reads.

Owns the descriptor: an eventfd where there is one, otherwise a pipe. Invariant: after a write the call is made at least
once; several writes may become one call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_EVENTFD_BYTES = 8
#: As much as there may be in a pipe.
_PIPE_BYTES = 4096


class LoopWakeup:
    """Makes a call through `run`, such as `LoopWatchdog.run`, when something was written to its descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run: Callable[[Callable[[], None]], None]) -> None:
        self._loop = loop
        self._run = run
        self._read_fd = self._write_fd = -1
        self._read_bytes = _EVENTFD_BYTES

    def start(self, call: Callable[[], None]) -> int:
        """Return a descriptor; the loop makes the call after each write to it."""
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._read_bytes = _PIPE_BYTES
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)
        self._loop.add_reader(self._read_fd, self._on_readable, call)
        return self._write_fd

    def _on_readable(self, call: Callable[[], None]) -> None:
        os.read(self._read_fd, self._read_bytes)
        self._run(call)

    def close(self) -> None:
        """Close the descriptor; nothing may write to it any more."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._read_fd)
        for fd in {self._read_fd, self._write_fd}:
            os.close(fd)
