"""Merged segments keep their messages, however far apart these are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.sim import SimDisk
from headrace.storage import open_store
from support.small_store import TINY, Ticking, commit

ROOMY = replace(TINY, segment_rows=1000, segment_bytes=16 << 10, sparse_rows=1 << 20)
FAR = 1 << 33


def content(log: Any) -> dict[int, Any]:
    return {seq: log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()}


@pytest.mark.parametrize("memory", [False, True])
def test_neighbours_that_are_far_apart_are_not_merged(memory: bool) -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), ROOMY)
    log = store.create("S", memory=memory)
    for start, count in ((0, 100), (FAR, 150)):
        log.advance(start)
        for _ in range(count):
            log.append(b"s", b"", b"%d" % log.last_seq + b"x" * 200, 1)
            commit(store)
    kept = {seq: message for seq, message in content(log).items() if seq % 8 == 0}
    log.remove_many([seq for seq in content(log) if seq not in kept])
    commit(store)
    assert content(log) == kept
    store.close()
    if not memory:
        assert content(open_store(disk, Ticking(), ROOMY).logs["S"]) == kept
