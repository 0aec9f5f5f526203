"""Pins of a whole store: what is in them, and that they do not follow the store."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import Store
from headrace.storage.snapshot import store_pin
from headrace.storage.snapshot.store_pin import StorePin, StorePinPlan, parse_pinned_name, pinned_name
from support.small_store import TINY, Ticking, commit, opened

LINEAGE = "0123456789abcdef"


def fill(store: Store, rounds: int) -> None:
    log = store.logs.get("S") or store.create("S")
    for _ in range(rounds):
        for _ in range(30):
            log.append(b"s", b"", b"x" * 100, Ticking().now_ns())
        commit(store)


def make_pin(store: Store, name: str = "0000000000000001-0", lineage: str = LINEAGE) -> StorePin:
    errors: list[OSError | None] = []
    if store_pin.needs_checkpoint(store, 1 << 20):
        store.checkpoint()
        store.disk.drain()
    plan = StorePinPlan(store, name)
    for _ in plan.iter_collect():
        pass
    assert plan.is_current
    pin = plan.submit(lineage, errors.append)
    store.disk.drain()
    assert errors == [None]
    return pin


def read_all(root: Path, pin: StorePin) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in pin.files}


def test_a_pin_stays_while_the_store_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
        pin = make_pin(store)
        before = read_all(tmp_path, pin)
        journals = [path for path in before if path.endswith(".jnl")]
        assert journals
        assert (tmp_path / "lineage").read_text() == f"{LINEAGE}\n" == f"{pin.lineage}\n"
        fill(store, 40)  # journal files are reused, checkpoints replaced
        store.logs["S"].remove_below(store.logs["S"].last_seq)
        commit(store)
        store.checkpoint()
        store.disk.drain()
        after = read_all(tmp_path, pin)
        assert {path: after[path] for path in journals} == {path: before[path] for path in journals}
        for path, data in before.items():
            assert after[path][: len(data)] == data
        assert make_pin(store, "0000000000000002-0").ancestors == (LINEAGE,)


def test_a_lineage_that_a_power_loss_emptied_is_written_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 1)
        (tmp_path / "lineage").touch()
        assert make_pin(store).ancestors == ()
        assert (tmp_path / "lineage").read_text() == f"{LINEAGE}\n"


def test_the_tokens_of_the_newest_pins_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 1)
        for number in range(store_pin.LINEAGE_TOKENS + 3):
            pin = make_pin(store, f"{number:016x}-0", f"{number:016x}")
        assert pin.ancestors == tuple(f"{each:016x}" for each in range(3, number))
        assert len((tmp_path / "lineage").read_text().split()) == store_pin.LINEAGE_TOKENS


def test_the_segments_of_one_stream_are_listed_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_pin, "SEGMENTS_PER_STEP", 2)
    with opened(tmp_path) as store:
        fill(store, 20)
        store.checkpoint()
        store.disk.drain()
        plan, sizes = StorePinPlan(store, "0000000000000001-0"), [0]
        for _ in plan.iter_collect():
            sizes.append(len(plan._segment_ops))
        sizes.append(len(plan._segment_ops))
        assert len(store.logs["S"].list_segments()) > 4  # type: ignore[attr-defined]
        assert max(after - before for before, after in itertools.pairwise(sizes)) <= 2


def test_a_released_pin_is_removed_with_all_its_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
        pin = make_pin(store)
        store_pin.submit_release(store, pin)
        store.disk.drain()
        assert list((tmp_path / "pins").iterdir()) == []
        partial = make_pin(store, "0000000000000003-0")
        (tmp_path / partial.files[0]).unlink()
        store_pin.submit_release(store, partial, is_partial=True)
        store.disk.drain()
        assert list((tmp_path / "pins").iterdir()) == []


def test_a_plan_is_outdated_by_a_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
        store.checkpoint()
        store.disk.drain()
        plan = StorePinPlan(store, "0000000000000001-0")
        assert plan.is_current
        fill(store, 1)
        store.checkpoint()
        store.disk.drain()
        assert not plan.is_current
        assert StorePinPlan(store, "0000000000000002-0").is_current


def test_no_pin_is_made_while_a_checkpoint_ends() -> None:
    """When its mark is durable, the commit queue may reuse journal files that the pin has yet to copy."""
    driver = StoreDriver(SimDisk(1), TINY)
    driver.create("A")
    driver.append("A")
    driver.run_until_idle()
    driver.checkpoint()
    driver.append("A")
    driver.commit_and_wait()
    store, found = driver.store, 0
    assert StorePinPlan(store, "0000000000000001-0").is_current
    driver.start_checkpoint()
    while driver.step():
        newest = max(int(name[:16], 16) for name in driver.disk.list("checkpoints"))
        if newest > store.checkpointer.durable_number:
            assert not StorePinPlan(store, "0000000000000001-0").is_current
            found += 1
    assert found > 1
    assert StorePinPlan(store, "0000000000000001-0").is_current


def test_only_names_of_pinned_files_are_parsed() -> None:
    for path in (
        "streams/0000000a/00000001.seg",
        "checkpoints/00000000000000ff.b",
        "journal/0000000000000001.jnl",
    ):
        assert parse_pinned_name(pinned_name(path)) == path
    for name in (
        "streams.a.1.seg",
        "checkpoints.ff.a",
        "journal.0000000000000001.torn",
        "lock",
        "",
        "streams.x.y.seg",
    ):
        assert parse_pinned_name(name) == ""
