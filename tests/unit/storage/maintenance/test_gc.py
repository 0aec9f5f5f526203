"""Files that nothing needs are unlinked; with an archive, those with large messages that are not archived wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import Store
from support.small_store import TINY, Ticking, commit, opened


def checkpoint(store: Store) -> None:
    for _ in range(3):
        store.checkpoint()
        store.disk.drain()
        if store.checkpointer.pending_mark:
            store.write_mark()
            store.disk.drain()


def count_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.seg"))


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("has_large", [False, True])
def test_only_large_messages_that_are_not_archived_keep_a_file(
    tmp_path: Path, has_large: bool, is_deleted: bool
) -> None:
    """While the archive cannot be reached, a purge frees the space of everything that is in the journal."""
    with opened(tmp_path) as store:
        log = store.create("S")
        commit(store)
        store.journal.set_archived(store.journal.last_frame)
        for _ in range(10):
            for _ in range(60):
                log.append(b"s", b"", b"x" * 100, Ticking().now_ns())
            if has_large:
                log.append(b"s", b"", b"x" * 2 * TINY.large_bytes, Ticking().now_ns())
            commit(store)
        checkpoint(store)
        before = count_bytes(tmp_path)
        if is_deleted:
            store.delete(log)
        else:
            log.remove_below(log.last_seq + 1)
        commit(store)
        checkpoint(store)
        after = count_bytes(tmp_path)
        assert (after > before / 4) == has_large
        store.journal.set_archived(store.journal.last_frame)
        checkpoint(store)
        assert count_bytes(tmp_path) < before / 4
