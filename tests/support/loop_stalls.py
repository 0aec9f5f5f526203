"""Finds in a server's log the operations that held its event loop for too long."""

from __future__ import annotations

import os
import re

#: In CPU time: on a busy machine everything takes long in wall-clock time.
STALL_CPU_MS = 50

_STALL = re.compile(r"All clients waited \d+ ms \((\d+) ms of CPU\) for: .*")


def find_stalls(log_text: str) -> list[str]:
    """Return the reports of turns that used too much CPU time; the pure core is slow and is not judged."""
    if os.environ.get("HEADRACE_PURE"):
        return []
    return [found[0] for found in _STALL.finditer(log_text) if int(found[1]) >= STALL_CPU_MS]
