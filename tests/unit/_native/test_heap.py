"""Free memory of the heap is given back in short steps, and memory in use stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace._native import heap

#: The best of several runs counts, so that a busy machine does not matter.
LIMIT_S, TRIES = 0.01, 3
_PROGRAM = """
import json, time
from pathlib import Path
from headrace._native import heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

blocks = [bytes([i % 251]) * 20_000 for i in range(10_000)]
kept = {i: blocks[i] for i in range(0, len(blocks), 10)}
del blocks
before = resident()
heap.enable_trimming()
trimmer = heap.begin_trimming()
steps = []
more = True
while more:
    started = time.thread_time()
    more = trimmer.step()
    steps.append(time.thread_time() - started)
intact = all(block == bytes([i % 251]) * 20_000 for i, block in kept.items())
again = [bytes(30_000) for _ in range(5_000)]  # the heap can be used
zero = not any(map(any, again[::100]))
print(json.dumps([before, resident() - len(again) * 30_000, len(steps), max(steps), intact, zero]))
"""


@pytest.mark.skipif(heap._load_allocator() is None, reason="the C library is not glibc")
def test_free_memory_is_given_back_in_short_steps() -> None:
    longest_s = float("inf")
    for _ in range(TRIES):
        run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
        before, after, steps, longest_of_run_s, intact, zero = json.loads(run.stdout)
        assert before - after > 100 << 20
        assert steps > 100
        assert intact
        assert zero
        longest_s = min(longest_s, longest_of_run_s)
        if longest_s < LIMIT_S:
            return
    pytest.fail(f"the longest step takes {longest_s * 1e3:.1f} ms of CPU time")


def test_only_a_server_process_trims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_is_enabled", False)
    assert heap.begin_trimming() is None


@pytest.mark.skipif(heap._load_allocator() is None, reason="the C library is not glibc")
def test_trimmers_begin_ten_seconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(heap, "_is_enabled", True)
    monkeypatch.setattr(heap, "_next_trim_s", 0.0)
    monkeypatch.setattr(heap.time, "monotonic", lambda: now_s)
    assert heap.begin_trimming() is not None
    now_s = 1009.0
    assert heap.begin_trimming() is None
    now_s = 1011.0
    assert heap.begin_trimming() is not None
