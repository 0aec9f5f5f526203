"""Failing calls: nothing acknowledged is lost, a failed sync ends all acks, a full disk recovers."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from headrace.errors import StoreError, StoreFull
from headrace.sim import Fault, SimDisk
from headrace.sim.disk.disk_faults import CHANGE_CALLS, READ_CALLS
from headrace.sim.workloads.store_driver import StoreDriver

from .disk_fault_runs import calls, goes_on, goes_silent, run, survives
from .store_sizes import TINY
from .workloads import live, prepare

pytestmark = pytest.mark.timeout(600)

Record = Callable[[str, object], None]

WORDS = ("abc", "alr", "cac", "fnc", "xax", "upa", "zaz", "rkc", "lcl", "vep")
ERRORS = {
    "EIO": Fault(errno.EIO),
    "EIO for good": Fault(errno.EIO, sticky=True),
    "ENOSPC": Fault(errno.ENOSPC),
    "ENOSPC for good": Fault(errno.ENOSPC, sticky=True),
    "EMFILE": Fault(errno.EMFILE),
    "short write": Fault(errno.EIO, kinds=("write",), short=True),
    "short write, full": Fault(errno.ENOSPC, kinds=("write",), short=True, sticky=True),
}


def nth(fault: Fault, number: int, **changes: object) -> Fault:
    return Fault(**{**{name: getattr(fault, name) for name in Fault.__slots__}, "nth": number, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_failing_change_at_every_call(word: str, error: str, record_property: Record) -> None:
    fault = ERRORS[error]
    total = calls(word, fault.kinds or CHANGE_CALLS)
    record_property("count: failing calls", total)
    for number in range(1, total + 1):
        rng = Random(f"{word} {error} {number}")
        survives(run(word, nth(fault, number)), rng)


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_a_failing_read_at_every_call(word: str, record_property: Record) -> None:
    total = calls(word, READ_CALLS)
    record_property("count: failing calls", total)
    for number in range(1, total + 1):
        outcome = run(word, Fault(errno.EIO, nth=number, kinds=READ_CALLS))
        outcome.disk.faults.clear()
        survives(outcome, Random(number))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["no", "cached", "gone"])
@pytest.mark.parametrize("word", WORDS)
def test_a_failed_sync_poisons(word: str, lost: str, record_property: Record) -> None:
    total = calls(word, ("sync",))
    record_property("count: failing calls", total)
    for number in range(1, total + 1):
        outcome = run(word, Fault(errno.EIO, nth=number, kinds=("sync",), lost=lost))
        goes_silent(outcome)
        survives(outcome, Random(number))


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_a_failed_folder_sync_poisons(word: str, record_property: Record) -> None:
    total = calls(word, ("syncdir",))
    record_property("count: failing calls", total)
    for number in range(1, total + 1):
        outcome = run(word, Fault(errno.EIO, nth=number, kinds=("syncdir",)))
        goes_silent(outcome)
        survives(outcome, Random(number))


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("word", [word for word in WORDS if "z" not in word])  # closing a store does not wait
def test_what_finds_no_room_is_done_when_there_is_some(
    word: str, error: int, sticky: bool, record_property: Record
) -> None:
    kinds = ("create", "write", "mkdir", "rename")
    total = calls(word, kinds)
    record_property("count: failing calls", total)
    for number in range(1, total + 1):
        outcome = run(word, Fault(error, nth=number, kinds=kinds, sticky=sticky, short=True))
        rng = Random(f"{word} {number}")
        survives(outcome, rng)  # while it waits
        goes_on(outcome)
        survives(outcome, rng)


def fill(driver: StoreDriver) -> None:
    for _ in range(10_000):
        driver.append("A", b"a", 1_000)
        driver.commit_and_wait()


@pytest.mark.parametrize("seed", range(4))
def test_a_full_disk_refuses_and_recovers(seed: int) -> None:
    disk = SimDisk(seed)
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    disk.capacity = disk.used() + TINY.headroom_bytes + 200_000
    with pytest.raises(StoreFull):
        fill(driver)
    driver.run_until_idle()
    assert driver.store.full
    assert driver.store.poisoned is None
    for seq in live(driver, "A"):  # reads and removals continue
        assert driver.log("A").get(seq) is not None
    held = live(driver, "A")
    driver.remove_below("A", held[-2])
    driver.run_until_idle()
    disk.capacity += 400_000  # there is space again
    for _ in range(5):
        driver.checkpoint()
    driver.append("A")
    driver.run_until_idle()
    assert not driver.store.full
    again = StoreDriver(disk.kill(), TINY)
    assert again.history.states[0] == driver.model.to_state()


@pytest.mark.parametrize("seed", range(4))
def test_removing_gives_a_full_disk_room_again(seed: int) -> None:
    disk = SimDisk(seed)
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    disk.capacity = disk.used() + TINY.headroom_bytes + 300_000
    with pytest.raises(StoreFull):
        fill(driver)
    driver.run_until_idle()
    driver.remove_below("A", live(driver, "A")[-1])
    driver.run_until_idle()
    for _ in range(5):
        driver.checkpoint()
        driver.run_until_idle()
    driver.append("A")
    driver.run_until_idle()
    assert not driver.store.full


def test_a_full_disk_at_opening_is_told_and_loses_nothing() -> None:
    disk = SimDisk()
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    expected = driver.model.to_state()
    for room in range(0, 200_000, 10_000):
        after = disk.kill()
        after.capacity = after.used() + room
        try:
            assert StoreDriver(after, TINY).history.states[0] == expected
        except (StoreError, OSError):
            after.capacity = None
            assert StoreDriver(after.kill(), TINY).history.states[0] == expected
