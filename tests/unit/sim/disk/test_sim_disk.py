"""The simulated disk keeps what was synced, may lose the rest, and never invents data."""

import errno
from random import Random

import pytest

from headrace.sim import OUTCOMES, OUTCOMES_BY_NAME, SimDisk

KEEP, DROP = OUTCOMES_BY_NAME["keep"], OUTCOMES_BY_NAME["drop"]


def disk_with(path: str = "a", data: bytes = b"", *, synced: bool = True) -> SimDisk:
    disk = SimDisk()
    disk.run([("create", path, 0), ("write", path, 0, data)])
    if synced:
        disk.run([("sync", path), ("syncdir", "")])
    return disk


def content(disk: SimDisk, path: str = "a") -> bytes:
    return disk.read(path, 0, disk.size(path))


def test_what_is_written_is_visible_at_once() -> None:
    disk = disk_with(data=b"hello world", synced=False)
    assert disk.list("") == ["a"]
    assert disk.exists("a")
    assert disk.read("a", 6, 100) == b"world"
    assert bytes(disk.map("a")) == b"hello world"
    disk.run([("write", "a", 0, [b"J", memoryview(b"E")])])
    assert content(disk) == b"JEllo world"


def test_reserved_space_reads_as_zeros_and_costs_nothing() -> None:
    disk = SimDisk()
    disk.run([("create", "j", 1 << 26), ("write", "j", 5000, b"x")])
    assert disk.size("j") == 1 << 26
    after = disk.crash(KEEP)
    assert after.size("j") == 1 << 26


def test_a_mapping_shows_later_writes() -> None:
    disk = disk_with(data=b"0123456789")
    view = disk.map("a")
    disk.snapshot()
    disk.run([("write", "a", 2, b"XY")])
    assert bytes(view) == b"01XY456789"
    disk.run([("write", "a", 10, b"more")])
    assert content(disk) == b"01XY456789more"


def test_unsynced_content_and_names_go_with_the_power() -> None:
    disk = disk_with(data=b"old")
    disk.run([("write", "a", 0, b"new"), ("create", "b", 0), ("write", "b", 0, b"b"), ("sync", "b")])
    lost = disk.crash(DROP)
    assert lost.list("") == ["a"]
    assert content(lost) == b"old"
    found = disk.crash(KEEP)
    assert found.list("") == ["a", "b"]
    assert content(found) == b"new"


def test_a_synced_file_without_a_synced_name_is_lost() -> None:
    disk = disk_with(data=b"x", synced=False)
    disk.run([("sync", "a")])
    assert disk.crash(DROP).list("") == []
    disk.run([("syncdir", "")])
    assert content(disk.crash(DROP)) == b"x"


def test_a_synced_name_of_an_unsynced_file_is_empty() -> None:
    disk = disk_with(data=b"x" * 5000, synced=False)
    disk.run([("syncdir", "")])
    assert content(disk.crash(DROP)) == b""
    assert content(disk.crash(OUTCOMES_BY_NAME["zeros"])) == bytes(5000)


def test_a_folder_that_was_not_synced_takes_its_files_along() -> None:
    disk = SimDisk()
    disk.run([("mkdir", "f"), ("create", "f/a", 3), ("sync", "f/a"), ("syncdir", "f")])
    assert disk.crash(DROP).list("f") == []
    disk.run([("syncdir", "")])
    assert disk.crash(DROP).list("f") == ["a"]


@pytest.mark.parametrize("seed", range(20))
def test_a_tear_keeps_a_front_of_whole_sectors(seed: int) -> None:
    disk = SimDisk()
    data = bytes(range(1, 251)) * 60
    disk.run([("create", "a", 16384), ("write", "a", 0, b"\xff" * 700), ("sync", "a"), ("syncdir", "")])
    disk.run([("write", "a", 700, data[:15000])])
    for name, sector in (("torn at 512", 512), ("torn at 4096", 4096)):
        after = content(disk.crash(OUTCOMES_BY_NAME[name], seed))
        assert after[:700] == b"\xff" * 700
        cuts = range(700 - 700 % sector + sector, 15700, sector)
        assert after[700:15700] in {data[: cut - 700] + bytes(15700 - cut) for cut in cuts}


@pytest.mark.parametrize("seed", range(20))
def test_scattered_sectors_are_old_or_new(seed: int) -> None:
    disk = SimDisk()
    disk.run([("create", "a", 4096), ("write", "a", 0, b"o" * 4096), ("sync", "a"), ("syncdir", "")])
    disk.run([("write", "a", 100, b"n" * 3000)])
    after = content(disk.crash(OUTCOMES_BY_NAME["scattered"], seed))
    assert after[:100] == b"o" * 100
    assert after[3100:] == b"o" * 996
    for start in range(512, 3072, 512):
        assert len(set(after[start : start + 512])) == 1


def test_garbage_stays_inside_the_write() -> None:
    disk = SimDisk()
    disk.run([("create", "a", 4096), ("write", "a", 0, b"o" * 4096), ("sync", "a"), ("syncdir", "")])
    disk.run([("write", "a", 1000, b"n" * 1000)])
    after = content(disk.crash(OUTCOMES_BY_NAME["garbage"], 1))
    assert after[:1000] + after[2000:] == b"o" * 3096
    assert after[1000:2000] not in (b"o" * 1000, b"n" * 1000)


def test_a_later_write_may_land_without_an_earlier_one() -> None:
    disk = disk_with(data=b"....", synced=True)
    disk.run([("write", "a", 0, b"1"), ("write", "a", 2, b"2")])
    found = {content(disk.crash(OUTCOMES_BY_NAME["scattered"], seed)) for seed in range(40)}
    assert found == {b"....", b"1...", b"..2.", b"1.2."}


def test_oldest_is_a_prefix_over_all_files_and_newest_the_last_one() -> None:
    disk = SimDisk()
    for name in "abc":
        disk.run([("create", name, 0), ("sync", name)])
    disk.run([("syncdir", "")])
    for name in "abc":
        disk.run([("write", name, 0, b"x")])
    sizes = {tuple(disk.crash(OUTCOMES_BY_NAME["oldest"], seed).size(n) for n in "abc") for seed in range(40)}
    assert sizes == {(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)}
    assert [disk.crash(OUTCOMES_BY_NAME["newest"]).size(n) for n in "abc"] == [0, 0, 1]


def test_a_rename_is_atomic() -> None:
    disk = disk_with(data=b"x")
    disk.run([("rename", "a", "b")])
    assert disk.crash(DROP).list("") == ["a"]
    assert disk.crash(KEEP).list("") == ["b"]
    disk.run([("syncdir", "")])
    assert content(disk.crash(DROP), "b") == b"x"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.name)
def test_a_move_between_folders_never_loses_the_file(outcome) -> None:
    disk = disk_with(data=b"x")
    disk.run([("mkdir", "f"), ("syncdir", ""), ("rename", "a", "f/b"), ("syncdir", "")])
    for seed in range(10):
        after = disk.crash(outcome, seed)
        assert after.exists("a") or after.exists("f/b")
    disk.run([("syncdir", "f"), ("syncdir", "")])
    assert disk.crash(DROP).list("") == ["f"]


def test_links_share_content_and_keep_it() -> None:
    disk = disk_with(data=b"x")
    disk.run([("mkdir", "p"), ("link", "a", "p/l"), ("syncdir", ""), ("syncdir", "p"), ("unlink", "a")])
    assert content(disk, "p/l") == b"x"
    disk.run([("write", "p/l", 1, b"y"), ("sync", "p/l")])
    assert content(disk.crash(DROP)) == b"xy"  # the unlink was lost; both names show one file
    disk.run([("syncdir", "")])
    assert disk.crash(DROP).list("") == ["p"]


def test_an_unlink_that_was_lost_brings_the_file_back() -> None:
    disk = disk_with(data=b"x")
    disk.run([("unlink", "a")])
    assert not disk.exists("a")
    assert content(disk.crash(DROP)) == b"x"
    assert disk.crash(KEEP).list("") == []


def test_a_folder_goes_only_when_it_is_empty() -> None:
    disk = SimDisk()
    disk.run([("mkdir", "f"), ("create", "f/a", 1), ("sync", "f/a"), ("syncdir", "f"), ("syncdir", "")])
    with pytest.raises(OSError, match="not empty"):
        disk.run([("rmdir", "f")])
    disk.run([("unlink", "f/a"), ("rmdir", "f")])
    found = {tuple(disk.crash(OUTCOMES_BY_NAME["mixed"], seed).list("")) for seed in range(20)}
    assert found == {(), ("f",)}


def test_after_a_kill_all_is_visible_and_nothing_more_durable() -> None:
    disk = disk_with(data=b"old")
    disk.run([("write", "a", 0, b"new")])
    killed = disk.kill()
    assert content(killed) == b"new"
    assert content(killed.crash(DROP)) == b"old"
    killed.run([("sync", "a")])
    assert content(killed.crash(DROP)) == b"new"
    assert content(disk.crash(DROP)) == b"old"


def test_a_snapshot_is_not_changed_by_what_comes_after() -> None:
    disk = disk_with(data=b"one")
    disk.run([("write", "a", 0, b"two")])
    taken = disk.snapshot()
    disk.run([("sync", "a"), ("write", "a", 0, b"three"), ("create", "b", 0), ("syncdir", "")])
    for seed in range(3):
        assert content(SimDisk(snapshot=taken.power_loss(DROP, Random(seed)))) == b"one"
        assert content(SimDisk(snapshot=taken.power_loss(KEEP, Random(seed)))) == b"two"
    assert content(SimDisk(snapshot=taken)) == b"two"
    assert SimDisk(snapshot=taken).list("") == ["a"]
    assert content(disk) == b"three"


def test_equal_fates_have_equal_signatures() -> None:
    disk = disk_with(data=b"one")
    nothing = disk.snapshot()
    assert len({nothing.power_loss(outcome, Random(1)).signature for outcome in OUTCOMES}) == 1
    disk.run([("write", "a", 0, b"two")])
    assert len({disk.snapshot().power_loss(outcome, Random(1)).signature for outcome in OUTCOMES}) >= 4


def test_rot_changes_the_medium_without_a_trace() -> None:
    disk = disk_with(data=b"one")
    disk.run([("mkdir", "f"), ("create", "f/b", 3)])
    assert list(disk.walk()) == ["a", "f/b"]
    disk.corrupt("a", b"rotten")
    assert content(disk) == content(disk.crash(DROP)) == b"rotten"


def test_missing_and_existing_paths_fail_as_on_a_real_disk() -> None:
    disk = disk_with(data=b"x")
    disk.run([("mkdir", "f")])
    for op, number in (
        (("create", "a", 0), errno.EEXIST),
        (("create", "no/a", 0), errno.ENOENT),
        (("write", "no", 0, b""), errno.ENOENT),
        (("link", "no", "b"), errno.ENOENT),
        (("link", "a", "f"), errno.EEXIST),
        (("unlink", "f"), errno.EISDIR),
        (("rename", "no", "b"), errno.ENOENT),
        (("rename", "a", "f"), errno.EEXIST),
        (("rmdir", "no"), errno.ENOENT),
        (("copy", "a", 0, "a", 0, 99), errno.EIO),
    ):
        with pytest.raises(OSError) as caught:
            disk.run([op])
        assert caught.value.errno == number, op
    with pytest.raises(FileNotFoundError):
        disk.size("no")
    assert disk.list("no") == []
