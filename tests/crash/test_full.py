"""Crashes on a full disk: the store starts again in the space it had, and a purge frees space."""

from collections.abc import Callable

import pytest

from headrace.sim import SimDisk
from headrace.sim.workloads.store_driver import StoreDriver

from .fullness import HEADROOMS, LEVELS, STORIES, FullChecker, record
from .store_sizes import TINY
from .workloads import prepare

pytestmark = pytest.mark.timeout(600)

Record = Callable[[str, object], None]
SAMPLED = 61


@pytest.mark.slow
@pytest.mark.parametrize("headroom", HEADROOMS)
@pytest.mark.parametrize("name", STORIES)
def test_a_crash_on_a_full_disk(name: str, headroom: int, record_property: Record) -> None:
    points = 0
    for number, level in enumerate(LEVELS):
        checker = FullChecker(record(f"{name}/0", headroom, level))
        points += checker.run(SAMPLED, 7 * number).points
    record_property("count: crashes on a full disk", points)


def test_opening_needs_no_space_at_all() -> None:
    disk = SimDisk()
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    for _ in range(20):
        driver.append("A", b"a", 900)
        driver.append("B", b"b", 6_000)
        driver.commit_and_wait()
    after = disk.kill()
    after.capacity = after.used()
    again = StoreDriver(after, TINY)
    assert again.history.states[0] == driver.model.to_state()
    assert after.used() <= (after.capacity or 0)


def test_recoveries_that_are_killed_do_not_fill_the_disk() -> None:
    disk = SimDisk()
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    for _ in range(20):
        driver.append("A", b"a", 900)
        driver.commit_and_wait()
    used = []
    for _ in range(8):
        disk = disk.kill()
        StoreDriver(disk, TINY)  # killed before its first frame
        used.append(disk.used())
    assert max(used[2:]) <= max(used[:2])
