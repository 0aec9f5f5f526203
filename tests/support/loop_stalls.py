"""Finds in a server's log the operations that held its event loop for too long."""

from __future__ import annotations

import os
import re

#: In CPU time: on a busy machine everything takes long in wall-clock time.
STALL_CPU_MS = 50
#: One shorter stall in a server's life is no finding. Kernels without IRQ_TIME_ACCOUNTING count interrupts as CPU time
#: of the thread that they hit, and virtual machines count faults of guest memory. An operation that is slow by itself
#: is slow again, and `tests/sim/test_turns.py` and `make stalls` measure each of them.
SINGLE_STALL_CPU_MS = 100

_STALL = re.compile(r"All clients waited \d+ ms \((\d+) ms of CPU\b[^)]*\) for: .*")


def find_stalls(log_text: str) -> list[str]:
    """Return the reports of turns that used too much CPU time; the pure core is slow and is not judged."""
    if os.environ.get("HEADRACE_PURE"):
        return []
    found = [each for each in _STALL.finditer(log_text) if int(each[1]) >= STALL_CPU_MS]
    if len(found) == 1 and int(found[0][1]) < SINGLE_STALL_CPU_MS and "more since" not in found[0][0]:
        return []
    return [each[0] for each in found]
