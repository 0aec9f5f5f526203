"""After a burst, a store gives back cached blocks and journal files, and has everything as before."""

from __future__ import annotations

from pathlib import Path

from headrace.storage import Store, release_idle_resources
from support.small_store import TINY, commit, kill, open_small_store

MESSAGES = 600


def burst(store: Store, count: int = MESSAGES) -> None:
    log = store.logs["S"]
    for number in range(count):
        log.append(b"a", b"", b"%d" % number * 20, 1)
        if number % 5 == 0:
            commit(store)
    commit(store)


def journal_files(root: Path) -> int:
    return len(list((root / "journal").glob("*.jnl")))


def open_filled(root: Path) -> Store:
    store = open_small_store(root)
    store.create("S")
    burst(store)
    assert store.log_context.block_cache.used_bytes
    assert journal_files(root) > 2 + TINY.journal_spares
    return store


def test_only_the_current_journal_file_and_its_spares_stay(tmp_path: Path) -> None:
    store = open_filled(tmp_path)
    for _ in range(2):  # the second time there is nothing left to release
        release_idle_resources(store)
        store.disk.drain()
        assert journal_files(tmp_path) == 1 + TINY.journal_spares
        assert not store.journal.closed_files
    assert store.log_context.block_cache.used_bytes == 0
    burst(store)
    kill(store)
    again = open_small_store(tmp_path)
    assert again.logs["S"].messages == 2 * MESSAGES
    assert [again.logs["S"].get(seq) is not None for seq in (1, MESSAGES, 2 * MESSAGES)] == [True] * 3
    assert not again.report().damage
    again.close()
    again.disk.close()


def test_a_busy_store_keeps_everything(tmp_path: Path) -> None:
    store = open_filled(tmp_path)
    files, cached = journal_files(tmp_path), store.log_context.block_cache.used_bytes
    store.logs["S"].append(b"a", b"", b"x", 1)
    release_idle_resources(store)
    store.disk.drain()
    assert (journal_files(tmp_path), store.log_context.block_cache.used_bytes) == (files, cached)
    store.close()
    store.disk.close()
