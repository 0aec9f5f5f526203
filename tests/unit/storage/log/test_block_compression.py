"""Streams with compression: less on disk, the same for every reader, and a feature that only they need."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.sim import Fault, SimDisk
from headrace.storage import FileDisk, Store, StoreOptions, StreamLog, open_store
from headrace.storage.compressed_block import FEATURE
from headrace.storage.fsck.accept_loss import accept_data_loss
from headrace.storage.fsck.check import check
from headrace.storage.snapshot import open_snapshot
from headrace.storage.snapshot.leases import create_pin
from support.small_store import TINY, Ticking, commit

SMALL = replace(TINY, compress_min_saving=64)


def open_small(root: Path, options: StoreOptions = SMALL) -> Store:
    return open_store(FileDisk(root), Ticking(), options)


def payload(number: int) -> bytes:
    return b'{"order":%d,"customer":"c%05d","status":"paid","note":"---------"}' % (
        number,
        number * 7919 % 99999,
    )


def fill(store: Store, log: StreamLog, count: int) -> None:
    for _ in range(count):
        log.append(b"orders.%d" % (log.last_seq % 7), b"", payload(log.last_seq), 1)
        if log.last_seq % 50 == 0:
            commit(store)
    commit(store)
    store.disk.drain()


def compressed_log(store: Store, name: str = "S") -> StreamLog:
    log = store.create(name)
    log.set_compression(True)
    commit(store)
    store.disk.drain()
    commit(store) if store.dirty else store.write_mark()
    store.disk.drain()
    return log


def content(log: StreamLog) -> dict[int, bytes]:
    found = {seq: log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()}
    return {seq: message[3] for seq, message in found.items() if message is not None}


def expected(count: int) -> dict[int, bytes]:
    return {number + 1: payload(number) for number in range(count)}


def count_blocks(root: Path) -> tuple[int, int]:
    """Compressed and plain blocks."""
    files = [path.read_bytes() for path in root.glob("streams/*/*.seg")]
    magics = [data[at : at + 4] for data in files for at in range(512, len(data), 512)]
    return magics.count(b"HRs2"), magics.count(b"HRbk")


def allocated(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.glob("streams/*/*.seg"))


def test_compressed_blocks_take_less_space_in_a_file_of_the_same_size(tmp_path: Path) -> None:
    sizes, ends = [], []
    for kind in ("none", "s2"):
        options = StoreOptions(headroom_bytes=0, journal_bytes=1 << 20)
        store = open_small(tmp_path / kind, options)
        log = compressed_log(store) if kind == "s2" else store.create("S")
        fill(store, log, 20_000)
        assert content(log) == expected(20_000)
        store.close()
        store.disk.close()
        sizes.append(allocated(tmp_path / kind))
        ends.append([path.stat().st_size for path in tmp_path.glob(f"{kind}/streams/*/*.seg")])
    assert sizes[1] < sizes[0] * 0.6
    assert ends[0] == ends[1]


def test_only_a_compressed_stream_needs_the_feature(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    fill(store, store.create("plain"), 100)
    assert FEATURE not in store.checkpointer.features
    memory = store.create("memory", memory=True)
    memory.set_compression(True)
    assert FEATURE not in store.checkpointer.features
    log = store.create("S")
    log.set_compression(True)
    assert not store.log_context.features.is_ready("segments/s2")  # until the root that names it is durable
    fill(store, log, 200)
    assert store.log_context.features.is_ready("segments/s2")
    store.close()
    store.disk.close()
    assert check(str(tmp_path)).features == [FEATURE]


def test_switching_applies_to_new_blocks_only(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    log = compressed_log(store)
    fill(store, log, 100)
    squeezed, plain = count_blocks(tmp_path)
    assert squeezed > 5
    assert plain <= 1
    log.set_compression(False)
    fill(store, log, 100)
    assert count_blocks(tmp_path)[0] <= squeezed + 1
    assert count_blocks(tmp_path)[1] > plain + 5
    log.set_compression(True)
    fill(store, log, 100)
    assert count_blocks(tmp_path)[0] > squeezed + 5
    assert content(log) == expected(300)
    store.close()
    store.disk.close()
    again = open_small(tmp_path)
    assert content(again.logs["S"]) == expected(300)
    fill(again, again.logs["S"], 100)  # its section says that it is compressed
    assert count_blocks(tmp_path)[0] > 2 * squeezed
    again.close()
    again.disk.close()
    assert check(str(tmp_path)).clean


@pytest.mark.parametrize("caches", [True, False])
def test_every_reader_sees_the_messages(tmp_path: Path, caches: bool) -> None:
    store = open_small(tmp_path)
    log = compressed_log(store)
    fill(store, log, 150)
    log.set_compression(False)  # some segments have blocks of both kinds
    fill(store, log, 30)
    log.set_compression(True)
    fill(store, log, 120)
    pin = create_pin(store, log, 60.0, 1)
    fill(store, log, 50)
    wanted = [payload(number) for number in range(300)]
    if not caches:
        for path in tmp_path.glob("pins/*/*.col"):
            path.write_bytes(b"")
    snapshots = [open_snapshot.open_pin(str(tmp_path), "S", pin.id)]
    for snapshot in snapshots:
        layout = open_snapshot.ArrowLayout(columns=("seq", "data"))
        for selection in (open_snapshot.Selection(), open_snapshot.Selection(first_seq=77, end_seq=200)):
            rows = [row for batch in snapshot.batches(selection, layout, 16) for row in batch.to_pylist()]
            first, end = selection.first_seq or 1, selection.end_seq or 301
            assert [row["data"] for row in rows] == wanted[first - 1 : end - 1]
    store.close()
    store.disk.close()
    offline = open_snapshot.open_folder(str(tmp_path), "S")
    assert sum(batch.num_rows for batch in offline.batches(open_snapshot.Selection(), layout, 64)) == 350
    if not caches:
        for path in tmp_path.glob("streams/*/*.col"):
            path.unlink()
    again = open_small(tmp_path)
    assert content(again.logs["S"]) == expected(350)
    again.disk.close()


def test_damage_in_a_compressed_block_is_confined_and_can_be_accepted(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    log = compressed_log(store)
    fill(store, log, 200)
    store.close()
    store.disk.close()
    path = sorted(tmp_path.glob("streams/*/*.seg"))[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"HRs2", 2048)
    data[at + 60] ^= 4
    path.write_bytes(data)
    findings = check(str(tmp_path))
    assert len(findings.damage) == 1
    lost = range(findings.damage[0].first_seq, findings.damage[0].last_seq + 1)
    assert 0 < len(lost) <= 20
    accept_data_loss(str(tmp_path), findings)
    assert check(str(tmp_path)).clean
    again = open_small(tmp_path)
    assert content(again.logs["S"]) == {seq: body for seq, body in expected(200).items() if seq not in lost}
    again.disk.close()


def test_the_feature_is_requested_again_after_a_full_disk() -> None:
    disk = SimDisk()
    store = open_store(disk, Ticking(), SMALL)
    log = store.create("S")
    commit(store)
    disk.faults.add(Fault(errno.ENOSPC, kinds=("create",), path="checkpoints", sticky=True))
    log.set_compression(True)
    commit(store) if store.dirty else disk.drain()
    disk.drain()
    assert not store.log_context.features.is_ready("segments/s2")
    disk.faults.clear()
    store.checkpoint()
    for number in range(200):
        log.append(b"s", b"", payload(number), 1)
        commit(store)
        disk.drain()
    assert store.log_context.features.is_ready("segments/s2")
    assert content(log) == expected(200)


def test_large_messages_are_compressed_up_to_a_limit(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    log = compressed_log(store)
    bodies = [b"ab" * 3_000, b"cd" * 300_000, bytes(range(256)) * 8_000]
    for body in bodies:
        log.append(b"s", b"", body, 1)
        commit(store)
        store.disk.drain()
    assert count_blocks(tmp_path)[0] >= 2
    store.close()
    store.disk.close()
    again = open_small(tmp_path)
    assert list(content(again.logs["S"]).values()) == bodies
    again.disk.close()
