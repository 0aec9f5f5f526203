"""Fuzz target: data directories with crafted content and valid checksums. The store refuses them, or continues.

Crafted content may be served, but causes no access outside of memory, no other error than StoreError, and no change
to the files. Both cores read a crafted block in the same way.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from tests.crash import bit_rot
from tests.crash.store_sizes import TINY

from headrace._native import records_pure
from headrace._native.record_header import RECORD_HEADER
from headrace.errors import StoreError
from headrace.sim import SimClock, SimDisk
from headrace.storage import StreamLog, open_store
from headrace.storage.native_records import SegmentIndex, SubjectIndex

from .crafting import NUMBERS, change_numbers, craft
from .input_generator import Maker
from .target import Pair

KINDS = ("closed", "idle", "killed")
_HEAD = RECORD_HEADER


class Case(NamedTuple):
    kind: str  # the store to use; "" for a single block
    crafted: dict[str, bytes]


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    if maker.chance(0.5):
        return Case("", {"block": _block(maker)})
    kind = maker.pick(KINDS)
    files = bit_rot.build(kind).files
    crafted: dict[str, bytes] = {}
    for _ in range(1 + maker.below(3)):
        path = maker.pick(_paths(kind))
        if path in crafted:
            continue
        made = craft(maker, files, path)
        if made is not None:
            crafted[path] = made
            if path.startswith("checkpoints/"):
                crafted[path[:-1] + ("b" if path.endswith("a") else "a")] = made
    return Case(kind, crafted)


@cache
def _paths(kind: str) -> list[str]:
    """Return every file once, and those that are read row by row more often."""
    paths = sorted(bit_rot.build(kind).files)
    return paths + [path for path in paths if path.endswith((".col", ".seg"))] * 3


def _block(maker: Maker) -> bytes:
    """Return records, some of them with wrong lengths."""
    made, seq = b"", 0
    for _ in range(maker.below(6)):
        subject, header, payload = b"s%d" % maker.below(3), b"h" * maker.below(9), maker.bytes(20)
        seq += 1 + maker.below(3)
        size = _HEAD.size + len(subject) + len(header) + len(payload)
        made += _HEAD.pack(size, len(subject), 0, len(header), 0, seq, 7) + subject + header + payload
    return change_numbers(maker, made) if maker.chance(0.8) else made[: maker.below(len(made) + 1)]


def check(case: Case) -> None:
    if not case.kind:
        _check_block(case.crafted["block"])
        return
    rotten = bit_rot.build(case.kind)
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, content in case.crafted.items():
        disk.corrupt(path, content)
    # Subjects that only the crafted file has are added to the subject file, which is a cache.
    kept = {path: data for path, data in {**rotten.files, **case.crafted}.items() if "/subjects." not in path}
    try:
        store = open_store(disk, SimClock(), TINY)
    except StoreError:
        bit_rot.check_untouched(disk, kept)
        return
    bit_rot.check_untouched(disk, kept, store.report())
    with contextlib.suppress(StoreError):
        for log in list(store.logs.values()):
            _use(log)
            store.commit() if store.dirty else None
            disk.drain()
        store.close()


def _use(log: StreamLog) -> None:
    """Run every query, remove in every way, append."""
    names = [name for name, _ in log.iter_subject_counts(None)][:4]
    for name in names:
        with contextlib.suppress(StoreError):
            wanted = log.get_filter((name,))
            log.find_next(wanted, log.first_seq)
            log.find_prev(wanted, log.last_seq)
            log.count_from(wanted, log.first_seq + 1)
            log.find_last_per_subject(wanted, max(log.last_seq - 1, 0))
            log.get_first_seq(name)
    seqs = log.find_seqs(None, log.first_seq, log.last_seq)
    for seq in seqs[:200].tolist():
        with contextlib.suppress(StoreError):
            log.get(seq)
            log.read_view(seq, 1000)
    log.find_times_and_ttls(log.first_seq, log.last_seq)
    log.append(b"new", b"", b"x", 1)
    log.remove_many(seqs[::2])
    if names:
        log.remove_many(log.find_seqs(log.get_filter((names[0],)), log.first_seq, log.last_seq))
    if len(seqs):
        log.remove_below(int(seqs[len(seqs) // 3]))


def _check_block(data: bytes) -> None:
    """Check that both cores find the same records in a block, and that a log loads it in the same way."""
    found = [
        _scanned(*twin, data)
        for twin in ((SegmentIndex, SubjectIndex), (records_pure.SegmentIndex, records_pure.SubjectIndex))
    ]
    assert found[0] == found[1], "the kernels differ"
    seqs = np.array([number for number in NUMBERS if number < 1 << 63], np.uint64)
    for seq in seqs[:4].tolist():
        assert _unpacked(records_pure, data, seq) == _unpacked_here(data, seq)


def _scanned(kind: Any, table: Any, data: bytes) -> tuple[Any, ...]:
    columns, subjects = kind(), table()
    count = columns.index_block(subjects, data, 0, len(data), 544)
    rows = [columns.row(i) for i in range(columns.rows)]
    return (
        count,
        rows,
        [subjects.name(i) for i in range(len(subjects))],
        columns.is_sound(len(subjects), 1 << 20),
    )


def _unpacked(module: Any, data: bytes, at: int) -> Any:
    try:
        return module.decode_record(data, at)
    except ValueError as error:
        return str(error)


def _unpacked_here(data: bytes, at: int) -> Any:
    from headrace.storage import native_records

    return _unpacked(native_records, data, at)
