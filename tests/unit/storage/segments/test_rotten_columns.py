"""Column files that are corrupted while the store runs: no removal, merge or filter uses them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace._native.column_packing_pure import pack_column, unpack_column
from headrace.storage import FileDisk, Store, StreamLog, open_store
from headrace.storage.segments.column_file import HEADER_BYTES
from support.small_store import TINY, Naive, Ticking, commit, compare, open_small_store

ROWS = 600
SUBJECTS = (b"a.1", b"a.2", b"b.1")
SEGMENTS = 3
#: Segments with so many rows that their columns take several pages; such files used to be memory-mapped.
LARGE = replace(TINY, segment_rows=ROWS, segment_bytes=1 << 20, block_bytes=4 << 10, checkpoint_bytes=1 << 20)
#: The columns in the order of the file, where its header has their sizes, and how many there are.
COLUMNS = ("time", "offset", "size", "subject", "ttl", "flags", "delta", "blocks")
SIZES = struct.Struct("<8I")
SIZES_AT = 56
ROWS_AT = 40


def fill(store: Store) -> Naive:
    naive = Naive()
    log = store.create("S")
    for number in range(SEGMENTS * ROWS + 50):
        subject, payload = SUBJECTS[number % 3], b"%d" % number
        ttl_s = 3600 if number % 2 else 0
        log.append(subject, b"", payload, 1_000_000 + number, ttl_s)
        naive.append(1_000_000 + number, subject, b"", payload, ttl_s)
        if number % 50 == 0:
            commit(store)
    commit(store)
    return naive


@pytest.fixture(params=["just written", "opened again"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Naive, Path]]:
    """A store whose column files are written: by itself, or by the run before."""
    store = open_small_store(tmp_path, LARGE)
    naive = fill(store)
    if request.param == "opened again":
        store.close()
        store.disk.close()
        store = open_small_store(tmp_path, LARGE)
        commit(store)
    yield store, naive, tmp_path
    store.disk.drain()
    store.disk.close()


def column_files(root: Path) -> list[Path]:
    found = sorted(root.glob("streams/*/*.col"))
    assert len(found) >= SEGMENTS - 1
    return found


def rot(root: Path, column: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace one column in every file, in place, like a disk that returns other bytes."""
    number = COLUMNS.index(column)
    for path in column_files(root):
        content = path.read_bytes()
        rows = int.from_bytes(content[ROWS_AT : ROWS_AT + 4], "little")
        sizes = list(SIZES.unpack_from(content, SIZES_AT))
        at = HEADER_BYTES + sum(sizes[:number])
        changed = pack_column(change(unpack_column(content[at : at + sizes[number]], rows)).astype(np.uint64))
        rest = content[at + sizes[number] :]
        sizes[number] = len(changed)
        head = content[:SIZES_AT] + SIZES.pack(*sizes) + content[SIZES_AT + SIZES.size : at]
        fd = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(fd, head + changed + rest, 0)
            os.ftruncate(fd, len(head + changed + rest))
        finally:
            os.close(fd)


def purge(log: StreamLog, naive: Naive, patterns: tuple[bytes, ...]) -> None:
    log.remove_many(log.find_seqs(log.get_filter(patterns), log.first_seq, log.last_seq))
    for seq in naive.wanted(patterns):
        del naive.live[seq]


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 70_000, 0xFFFFFFFF])
def test_a_purge_by_filter_removes_what_it_names(held: tuple[Store, Naive, Path], wrong: int) -> None:
    store, naive, root = held
    log = store.logs["S"]
    rot(root, "subject", lambda ids: np.full(len(ids), wrong))
    purge(log, naive, (b"a.1",))
    commit(store)
    compare(log, naive, ((), (b"a.*",), (b"b.1",)))


def test_a_subject_keeps_its_newest_messages(held: tuple[Store, Naive, Path]) -> None:
    store, naive, root = held
    log = store.logs["S"]
    rot(root, "subject", lambda ids: ids[::-1])
    for _ in range(ROWS // 2):
        seq = log.get_first_seq(b"a.1")
        assert log.remove(seq)
        assert naive.live.pop(seq)[1] == b"a.1"
    compare(log, naive, ((), (b"a.1",)))


@pytest.mark.parametrize("column", ["time", "ttl"])
def test_what_expires_is_decided_by_what_was_written(held: tuple[Store, Naive, Path], column: str) -> None:
    store, naive, root = held
    log = store.logs["S"]
    rot(root, column, lambda values: np.zeros(len(values)))
    seqs, times, ttls = log.find_times_and_ttls(1, log.last_seq)
    assert seqs.tolist() == sorted(naive.live)
    assert times.tolist() == [naive.live[seq][0] for seq in sorted(naive.live)]
    assert ttls.tolist() == [naive.live[seq][4] for seq in sorted(naive.live)]
    assert log.find_seq_at_time(1_000_000 + ROWS) == ROWS + 1


def test_a_limit_of_bytes_counts_what_was_written(held: tuple[Store, Naive, Path]) -> None:
    store, naive, root = held
    log = store.logs["S"]
    rot(root, "size", lambda sizes: np.zeros(len(sizes)))
    before = log.bytes
    log.remove_below(2 * ROWS + 1)
    naive.below(2 * ROWS + 1)
    assert 0 < log.bytes < before / 2
    compare(log, naive)


@pytest.mark.parametrize("column", ["offset", "size", "subject"])
def test_a_merge_copies_every_live_message(held: tuple[Store, Naive, Path], column: str) -> None:
    store, naive, root = held
    log = store.logs["S"]
    rot(root, column, lambda values: np.roll(values, 7))
    for seq in [seq for seq in naive.live if seq % 4]:
        del naive.live[seq]
    log.remove_many([seq for seq in range(1, log.last_seq + 1) if seq % 4])
    for _ in range(50):
        commit(store)
    compare(log, naive, ((), (b"a.1",)))
    store.close()
    store.disk.close()
    again = open_store(FileDisk(root), Ticking(), LARGE)
    compare(again.logs["S"], naive, ((), (b"a.1",)))
    again.close()
    again.disk.close()


def test_a_consumer_gets_what_its_filter_names(held: tuple[Store, Naive, Path]) -> None:
    store, naive, root = held
    rot(root, "subject", lambda ids: np.roll(ids, 1))
    compare(store.logs["S"], naive, ((b"a.1",), (b"a.2", b"b.1"), (b"*.1",)))


def test_a_file_that_is_cut_short_ends_nothing(held: tuple[Store, Naive, Path]) -> None:
    """Accessing missing pages of a memory-mapped file would be a SIGBUS, which kills the server."""
    store, naive, root = held
    for path in column_files(root):
        os.truncate(path, 0)
    compare(store.logs["S"], naive, ((b"a.1",),))
