"""Crash points that belong to every change: 50,000 and more, spread over the workers in equal parts.

Every scripted workload is crashed at every operation with every outcome class; small workloads fill up.
`make crash` goes on where this ends.
"""

from itertools import cycle, islice

import pytest

from .points import Checker, Tally, trace_of
from .workloads import SCRIPTED, words

#: Crash points a part must reach; with all parts more than 50,000.
QUOTA = 800
PARTS = 64


def fill(part: int, tally: Tally) -> None:
    """Small workloads, a different choice for each part, until the quota is reached."""
    chosen = list(islice(words(), part, None, PARTS))
    for turn, word in enumerate(cycle(chosen)):
        if tally.total >= QUOTA:
            return
        tally.add(Checker(trace_of(f"small/{word}")).run(stride=1 + turn % 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTED)
def test_a_crash_at_every_operation_of_a_scripted_workload(name: str, capsys) -> None:
    tally = Checker(trace_of(f"{name}/0")).run()
    with capsys.disabled():
        print(f"\n{name}: {tally}")
    assert tally.total >= 400


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_at_every_operation_of_small_workloads(part: int, capsys) -> None:
    tally = Tally()
    fill(part, tally)
    with capsys.disabled():
        print(f"\nsmall {part}: {tally}")
    assert tally.total >= QUOTA
