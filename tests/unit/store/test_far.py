"""Sequences further apart than a segment can hold: what is merged, or written beside the journal, stays what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.sim import SimDisk
from headrace.store import Store

from .stores import TINY, Ticking, commit

FAR = 1 << 33
ROOMY = replace(TINY, segment_rows=1000, segment_bytes=16 << 10, sparse_rows=1 << 20)


def content(log: Any) -> dict[int, Any]:
    return {seq: log.get(seq) for seq in log.seqs(None, log.first_seq, log.last_seq).tolist()}


@pytest.mark.parametrize("memory", [False, True])
def test_neighbours_that_are_far_apart_are_not_merged(memory: bool) -> None:
    disk = SimDisk()
    store = Store.open(disk, Ticking(), ROOMY)
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
        assert content(Store.open(disk, Ticking(), ROOMY).logs["S"]) == kept


def test_a_large_message_far_from_the_last_spares_what_is_there() -> None:
    disk = SimDisk()
    store = Store.open(disk, Ticking(), TINY)
    log = store.create("S")
    for number in range(40):
        log.append(b"s", b"", b"%d" % number * 100, 1)
    commit(store)
    log.advance(FAR)
    log.append(b"s", b"", b"L" * 5000, 1)
    commit(store)
    before = content(log)
    assert len(before) == 41
    store.close()
    assert content(Store.open(disk, Ticking(), TINY).logs["S"]) == before
