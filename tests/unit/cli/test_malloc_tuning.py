"""Freed memory is returned to the system, whatever was freed before."""

import subprocess
import sys

_PROGRAM = """
import sys
from pathlib import Path
from headrace.cli.malloc_tuning import tune_malloc

def used():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "whole":
    tune_malloc()
for _ in range(3):
    bytearray(30 << 20)  # the C library learns from these that so much is nothing special
before = used()
large, settled = [], []
for _ in range(4):
    large.append(bytearray(b"x") * (12 << 20))
    settled.append(bytearray(b"y") * 1000)
large.clear()
print(used() - before)
"""


def test_large_pieces_go_back_to_the_system() -> None:
    def left(how: str) -> int:
        run = subprocess.run(
            [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    assert left("whole") < 1 << 20
