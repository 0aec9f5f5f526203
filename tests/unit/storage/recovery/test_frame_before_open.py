"""The last frame that a store had before it was opened: opening it raises the numbers of frames, not this one."""

from __future__ import annotations

from headrace.sim import SimDisk
from headrace.storage import Store, open_store
from headrace.storage.recovery.frame_before_open import find_frame_before_open
from support.small_store import TINY, Ticking, commit


def _open(disk: SimDisk) -> Store:
    """Open a store; reading it before has the same result."""
    found = find_frame_before_open(disk)
    store = open_store(disk, Ticking(), TINY)
    if found is not None:
        assert found == (store.store_id, store.report().frame_before_open)
    return store


def _confirm(store: Store) -> None:
    done: list[OSError | None] = []
    store.checkpointer.confirm_open(done.append)
    store.disk.drain()
    assert done == [None]


def _append(store: Store) -> int:
    log = store.logs.get("S") or store.create("S")
    log.append(b"s", b"", b"message", 1)
    commit(store)
    return store.journal.last_frame


def test_a_store_that_is_opened_again_and_again_keeps_it() -> None:
    store = _open(SimDisk())
    assert store.report().frame_before_open == 0
    _confirm(store)
    last = _append(store)
    disk = store.disk
    for number in range(3):
        assert isinstance(disk, SimDisk)
        disk = disk.kill()
        store = _open(disk)
        assert store.report().frame_before_open == last
        if number == 1:
            assert _append(store) > last + 1024
            store.close()


def test_after_a_confirmation_the_frames_count() -> None:
    store = _open(SimDisk())
    _append(store)
    assert isinstance(store.disk, SimDisk)
    store = _open(store.disk.kill())
    assert store.report().frame_before_open == 0
    _confirm(store)
    last = _append(store)
    assert isinstance(store.disk, SimDisk)
    assert _open(store.disk.kill()).report().frame_before_open == last


def test_a_confirmation_that_did_not_become_durable_changes_nothing() -> None:
    store = _open(SimDisk())
    _append(store)
    assert isinstance(store.disk, SimDisk)
    disk = store.disk.kill()
    store = _open(disk)
    store.checkpointer.confirm_open(lambda error: None)
    assert _open(disk.kill()).report().frame_before_open == 0


def test_a_store_that_opens_in_place_needs_no_space_for_a_confirmation() -> None:
    """It continues the numbers, and the root on the disk counts as it is."""
    store = _open(SimDisk())
    _confirm(store)
    last = _append(store)
    assert isinstance(store.disk, SimDisk)
    disk = store.disk.kill()
    disk.capacity = disk.used()
    store = _open(disk)
    assert store.report().frame_before_open == last
    _confirm(store)
