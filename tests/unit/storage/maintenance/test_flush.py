"""Large messages stored outside of the journal do not overwrite existing files."""

from __future__ import annotations

from typing import Any

from headrace.sim import SimDisk
from headrace.storage import open_store
from support.small_store import TINY, Ticking, commit

FAR = 1 << 33


def content(log: Any) -> dict[int, Any]:
    return {seq: log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()}


def test_a_large_message_far_from_the_last_spares_what_is_there() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), TINY)
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
    assert content(open_store(disk, Ticking(), TINY).logs["S"]) == before
