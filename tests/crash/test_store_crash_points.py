"""Crash points for every test run: at least 50,000, divided evenly among the workers.

Every scripted workload is crashed at every operation with every kind of outcome; small workloads make up the rest.
`make crash` runs more.
"""

from collections.abc import Callable
from itertools import cycle, islice

import pytest

from .crash_points import Checker, Tally, trace_of
from .workloads import SCRIPTED, words

#: Crash points a part must reach; together with the scripted workloads far more than 50,000.
QUOTA = 500
PARTS = 64
#: Workloads that found a bug with another seed than the first; they stay.
FOUND = ("lifetimes/100", "crowd/22", "crowd/32")

#: These tests share the machine with others.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Record = Callable[[str, object], None]


def fill(part: int) -> Tally:
    """Run small workloads, a different choice for each part, until the quota is reached."""
    tally = Tally()
    chosen = list(islice(words(), part, None, PARTS))
    for word in cycle(chosen):
        tally.add(Checker(trace_of(f"small/{word}")).run())
        if tally.total >= QUOTA:
            return tally
    raise AssertionError("there is no small workload")


@pytest.mark.parametrize("label", [*(f"{name}/0" for name in SCRIPTED), *FOUND])
def test_a_crash_at_every_operation_of_a_scripted_workload(label: str, record_property: Record) -> None:
    tally = Checker(trace_of(label)).run()
    record_property("count: crash points", tally.total)
    assert tally.total >= 300, tally


@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_at_every_operation_of_small_workloads(part: int, record_property: Record) -> None:
    tally = fill(part)
    record_property("count: crash points", tally.total)
    assert tally.total >= QUOTA, tally
