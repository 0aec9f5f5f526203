"""Stores that are opened or checked on a full disk: nothing relies on files that may be missing."""

from dataclasses import replace
from random import Random

import pytest

from headrace.errors import StoreFull, StorePoisoned, UnknownFeature
from headrace.sim import OUTCOMES_BY_NAME, DiskSnapshot, SimClock, SimDisk
from headrace.sim.checkers.store_invariants import read_state
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import StoreOptions, format_features, open_store
from headrace.storage.checkpoint.load import list_checkpoints, load_root
from headrace.storage.damage_report import RecoveryReport
from headrace.storage.format import checkpoint_path, journal_path
from headrace.storage.io.disk import Op
from headrace.storage.io.overlay_disk import OverlayDisk
from headrace.storage.journal.scan import scan_journal

KIB = 1 << 10
ROOMY = StoreOptions(
    journal_bytes=16 * KIB,
    block_bytes=2 * KIB,
    segment_bytes=12 * KIB,
    segment_rows=64,
    large_bytes=4 * KIB,
    checkpoint_bytes=24 * KIB,
    headroom_bytes=64 * KIB,
    cache_bytes=16 * KIB,
    flush_bytes=8 * KIB,
    sparse_rows=8,
    subjects_min=3,
)
BRIM = replace(ROOMY, headroom_bytes=0)


def fill(disk: SimDisk) -> SimDisk:
    """Return the disk as a killed process leaves it, without a free byte."""
    after = disk.kill()
    after.capacity = after.used()
    return after


def rest(driver: StoreDriver) -> None:
    for _ in range(3):
        driver.store.on_idle()
        while driver.step():
            pass


def write(options: StoreOptions, size: int = 900) -> tuple[SimDisk, StoreDriver]:
    """Write a store with a proven checkpoint and twelve acknowledged messages after it."""
    disk = SimDisk(0)
    driver = StoreDriver(disk, options)
    driver.create("A")
    driver.run_until_idle()
    driver.checkpoint()
    driver.run_until_idle()
    for _ in range(12):
        driver.append("A", b"a", size)
        driver.commit_and_wait()
    driver.run_until_idle()
    return disk, driver


def purge() -> tuple[SimDisk, StoreDriver]:
    """Write a store whose checkpoint names a segment without a live row."""
    disk = SimDisk(0)
    driver = StoreDriver(disk, ROOMY)
    driver.create("A")
    driver.create("B")
    for _ in range(3):
        driver.append("A", b"a", 900)
    driver.append("B")
    driver.run_until_idle()
    driver.remove_below("A", 4)
    driver.commit_and_wait()
    driver.checkpoint()
    driver.run_until_idle()
    return disk, driver


def rot_frame(disk: SimDisk, driver: StoreDriver) -> None:
    """Damage one frame in the middle of the journal."""
    scanned = max(scan_journal(disk, driver.store.store_id, 0), key=lambda each: len(each.frames))
    data = bytearray(scanned.data)
    data[scanned.frames[len(scanned.frames) // 2].offset + 60] ^= 255
    disk.corrupt(journal_path(scanned.file_number), bytes(data))


@pytest.mark.parametrize("has_space", [False, True])
@pytest.mark.parametrize("is_power_loss", [False, True])
def test_a_large_message_in_a_segment_without_live_rows_stays(is_power_loss: bool, has_space: bool) -> None:
    disk, driver = purge()
    seq = driver.append("A", b"big", 5_000)
    driver.run_until_idle()
    full = fill(disk)
    again = StoreDriver(full, ROOMY)
    again.put(b"k", b"v")
    again.commit_and_wait()
    while again.step():
        pass
    after = full.crash(OUTCOMES_BY_NAME["keep"]) if is_power_loss else full.kill()
    after.capacity = None if has_space else after.used()
    store = open_store(after, SimClock(), ROOMY)
    assert not store.report().damage
    assert store.logs["A"].get(seq) is not None


@pytest.mark.parametrize("is_restarted", [False, True])
def test_no_section_names_a_segment_that_a_full_disk_let_go(is_restarted: bool) -> None:
    disk, driver = purge()
    if is_restarted:
        disk = fill(disk)
        driver = StoreDriver(disk, ROOMY)
    else:
        disk.capacity = disk.used() + 20_000
        rest(driver)
    disk.capacity = None
    rest(driver)
    driver.append("B")
    driver.commit_and_wait()
    driver.checkpoint()
    driver.run_until_idle()
    assert not open_store(disk.kill(), SimClock(), ROOMY).report().damage


def test_a_feature_is_reported_when_its_root_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format_features, "KNOWN", frozenset({"store/x"}))
    disk, driver = write(ROOMY)
    store = driver.store
    wait_for_mark(disk, driver)
    found: list[frozenset[str]] = []

    def on_proven(error: OSError | None) -> None:
        assert error is None
        root = load_root(disk, store.checkpointer.durable_number, RecoveryReport())
        assert root is not None
        found.append(root.features)

    store.checkpointer.require("store/x", on_proven)
    driver.commit()
    while not found:
        assert disk.step("commit") or disk.step()
    assert found == [{"store/x"}]


def wait_for_mark(disk: SimDisk, driver: StoreDriver) -> None:
    """Take a checkpoint until it is durable but not proven."""
    driver.store.checkpoint()
    driver.append("A")
    while not driver.store.checkpointer.pending_mark:
        if not disk.step():
            driver.commit()
            driver.append("A")


def trace_removal(disk: SimDisk) -> list[DiskSnapshot]:
    """Open a store; return the disk before each operation, from the first that removes a file made by the opening."""
    made: set[str] = set()
    points: list[DiskSnapshot] = []

    def before(op: Op) -> None:
        if op[0] == "create":
            made.add(op[1])
        if points or (op[0] == "unlink" and op[1] in made):
            points.append(disk.snapshot())

    disk.before_op = before
    open_store(disk, SimClock(), BRIM)
    disk.before_op = None
    return points


def test_a_recovery_without_room_takes_back_its_checkpoint_first() -> None:
    disk, driver = write(BRIM)
    expected = driver.model.to_state()
    tried = 0
    for extra in (1_280, 2_048):
        full = SimDisk(snapshot=disk.snapshot(), capacity=disk.used() + extra)
        points = trace_removal(full)
        for point in points[:12]:
            for name in ("drop", "oldest", "newest", "mixed", "scattered", "keep"):
                for seed in range(5):
                    tried += 1
                    after = SimDisk(snapshot=point.power_loss(OUTCOMES_BY_NAME[name], Random(seed)))
                    store = open_store(after, SimClock(), BRIM)
                    assert not store.report().damage
                    assert read_state(store) == expected
    assert tried > 100


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("outcome", ["drop", "keep"])
def test_a_checkpoint_whose_sync_failed_is_not_proven_in_place(outcome: str, nth: int) -> None:
    disk, driver = write(BRIM)
    disk.faults.add(Fault(kinds=("sync",), path="checkpoints/", nth=nth, lost="cached"))
    driver.store.checkpoint()
    while disk.step():
        pass
    assert driver.store.poisoned is not None
    full = fill(disk)
    again = StoreDriver(full, BRIM)
    assert again.model.to_state() == driver.model.to_state()
    again.put(b"k", b"v")
    again.commit_and_wait()
    rest(again)
    expected = again.model.to_state()
    after = full.crash(OUTCOMES_BY_NAME[outcome])
    after.capacity = None
    store = open_store(after, SimClock(), BRIM)
    assert not store.report().damage
    assert read_state(store) == expected


def test_a_recovery_whose_checkpoint_failed_is_not_relied_upon_in_place() -> None:
    disk, _ = write(BRIM)
    poisoned = disk.kill()
    poisoned.faults.add(Fault(kinds=("syncdir",), path="checkpoints", lost="cached"))
    with pytest.raises(StorePoisoned):
        open_store(poisoned, SimClock(), BRIM)
    full = fill(poisoned)
    again = StoreDriver(full, BRIM)
    again.put(b"k", b"v")
    again.commit_and_wait()
    rest(again)
    after = full.crash(OUTCOMES_BY_NAME["drop"])
    after.capacity = None
    store = open_store(after, SimClock(), BRIM)
    assert not store.report().damage
    assert read_state(store) == again.model.to_state()


def test_a_checkpoint_that_alone_has_the_last_frame_is_kept_in_place() -> None:
    """The recovery that wrote it read the frame from the page cache, which a power loss has cleared since."""
    disk, driver = write(BRIM)
    last = driver.store.journal.last_frame
    driver.append("A", b"last", 900)
    driver.commit()
    while not any(each.frames for each in scan_journal(disk, driver.store.store_id, last)):
        assert disk.step("commit")
    killed = disk.kill()
    served = read_state(open_store(killed, SimClock(), BRIM))
    assert served == driver.model.to_state()
    after = killed.crash(OUTCOMES_BY_NAME["drop"])
    after.capacity = after.used()
    assert read_state(open_store(after, SimClock(), BRIM)) == served


def test_a_frame_of_an_unknown_kind_is_refused_while_a_checkpoint_waits_for_its_mark() -> None:
    disk, driver = write(ROOMY)
    wait_for_mark(disk, driver)
    disk.run(driver.store.journal.make_frame_ops(9, [b"a body that is not made of entries"]))
    before = disk.kill()
    files = {path: before.read(path, 0, before.size(path)) for path in before.walk()}
    with pytest.raises(UnknownFeature, match="kind 9"):
        open_store(before, SimClock(), ROOMY)
    assert files == {path: before.read(path, 0, before.size(path)) for path in before.walk()}


def test_a_store_with_a_damaged_journal_is_checked_on_a_full_disk() -> None:
    disk, driver = write(ROOMY, 300)
    rot_frame(disk, driver)
    store = open_store(OverlayDisk(fill(disk)), SimClock(), replace(ROOMY, headroom_bytes=0))
    assert any("lost" in each.description for each in store.report().damage)


def test_a_damaged_journal_on_a_full_disk_is_refused_and_nothing_is_changed() -> None:
    disk, driver = write(ROOMY, 300)
    rot_frame(disk, driver)
    full = fill(disk)
    files = set(full.walk())
    with pytest.raises(StoreFull, match="damaged"):
        open_store(full, SimClock(), ROOMY)
    assert set(full.walk()) == files


def test_a_damaged_journal_opens_in_what_space_it_needs_not_in_what_is_estimated() -> None:
    disk = SimDisk(0)
    driver = StoreDriver(disk, replace(BRIM, journal_spares=2))
    for number in range(14):  # one metadata change is replayed, not fourteen
        driver.put(b"k", bytes([number]) * 900)
        driver.commit_and_wait()
    driver.run_until_idle()
    rot_frame(disk, driver)
    roomy = disk.kill()
    needed = most_used(roomy)
    tight = disk.kill()
    tight.capacity = needed
    assert open_store(tight, SimClock(), BRIM).report().damage


def most_used(disk: SimDisk) -> int:
    """Return the maximum bytes in use while a store is opened."""
    used: list[int] = []
    disk.before_op = lambda op: used.append(disk.used())
    open_store(disk, SimClock(), BRIM)
    disk.before_op = None
    return max([*used, disk.used()])


def test_a_new_store_whose_checkpoint_failed_is_begun_again() -> None:
    disk = SimDisk(0)
    disk.faults.add(Fault(kinds=("sync",), path="checkpoints/", nth=2, lost="cached"))
    with pytest.raises(StorePoisoned):
        open_store(disk, SimClock(), BRIM)
    full = fill(disk)
    full.capacity = full.used() + 1_024  # for the second copy
    again = StoreDriver(full, BRIM)
    again.put(b"k", b"v")
    again.commit_and_wait()
    after = full.crash(OUTCOMES_BY_NAME["drop"])
    after.capacity = None
    assert read_state(open_store(after, SimClock(), BRIM)) == again.model.to_state()


def test_a_recovery_in_place_restores_the_second_copy_of_a_checkpoint() -> None:
    disk, driver = write(ROOMY)
    expected = driver.model.to_state()
    for copy in ("a", "b", "a"):
        disk = fill(disk)
        number = max(list_checkpoints(disk))
        path = checkpoint_path(number, copy)
        content = bytearray(disk.read(path, 0, disk.size(path)))
        content[-1] ^= 1
        disk.corrupt(path, bytes(content))
        again = StoreDriver(disk, ROOMY)
        assert again.store.checkpointer.durable_number == number, "it opened in place"
        assert again.history.states[0] == expected


def test_a_copy_of_a_checkpoint_that_is_missing_is_made_again_if_there_is_space() -> None:
    disk, driver = write(ROOMY)
    expected = driver.model.to_state()
    number = max(list_checkpoints(disk))
    size = disk.size(checkpoint_path(number, "a"))
    for copy, spare in (("b", 0), ("b", size), ("a", size)):
        disk = disk.kill()
        if disk.exists(checkpoint_path(number, copy)):
            disk.run([("unlink", checkpoint_path(number, copy))])
        disk.capacity = disk.used() + spare
        again = StoreDriver(disk, ROOMY)
        assert again.store.checkpointer.durable_number == number, "it opened in place"
        assert again.history.states[0] == expected


def test_a_store_closes_on_a_full_disk_without_a_checkpoint() -> None:
    disk, driver = write(BRIM)
    expected = driver.model.to_state()
    disk.capacity = disk.used()
    driver.store.close()
    assert not driver.store.has_final_checkpoint
    assert disk.used() <= disk.capacity
    for after in (disk.kill(), disk.crash(OUTCOMES_BY_NAME["drop"])):
        assert StoreDriver(after, BRIM).history.states[0] == expected


def test_the_number_of_an_unlinked_segment_is_not_used_again() -> None:
    """The journal still names it: the next recovery would take a new segment with that number for the old one."""
    disk = SimDisk(0)
    store = open_store(disk, SimClock(), ROOMY)
    log = store.create("A", memory=False)
    log.append(b"a", b"", bytes(5 * KIB), 1)  # larger than `large_bytes`: it gets a segment at once
    log.append(b"a", b"", b"small", 2)
    store.commit()
    disk.drain()
    (path,) = [path for path in disk.walk("streams") if path.endswith(".seg")]
    number = int(path.rsplit("/", 1)[1].split(".")[0], 16)
    log.remove(1)
    store.commit()
    disk.drain()
    after = disk.kill()
    if after.exists(path):
        after.run([("unlink", path), ("syncdir", path.rsplit("/", 1)[0])])
    again = open_store(after, SimClock(), ROOMY)
    found = again.logs["A"]
    assert [segment.number for segment in (*found.sealed_segments, found.active_segment)] > [number]
    assert found.get(1) is None
    assert found.get(2) is not None
    assert not again.report().damage
