"""Fuzz target: mutated and invented data directories. The store refuses them or serves only what was written.

Opening deletes and changes nothing. Every loss is reported, after a kill as long as the sync marker is intact:
without it, a journal whose end is gone looks like one whose end was never written.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.crash import bit_rot
from tests.crash.store_sizes import TINY

from headrace.errors import StoreError
from headrace.sim import SimClock, SimDisk
from headrace.sim.checkers.store_invariants import require
from headrace.storage import open_store
from headrace.storage.journal.sync_marker import PATH

from .input_generator import NUMBERS, Maker
from .target import Pair

KINDS = ("closed", "idle", "killed")
_NAMES = (
    "x",
    "journal/x",
    "streams/x",
    "streams/9/0.seg",
    "lost+found",
    "a\\b",
    "é",
    "journal/9999999999999999",
    ".tmp",
    "LOCK",
)


class Case(NamedTuple):
    kind: str  # the store to use; "" for none
    damaged: dict[str, bytes]
    gone: list[str]
    extra: dict[str, bytes]


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    kind = maker.pick(KINDS)
    files = bit_rot.build(kind).files
    paths = sorted(files)
    if maker.chance(0.15):
        return Case("", {}, [], _made_up(maker, files, paths))
    damaged = {}
    for _ in range(1 + maker.below(3)):
        path = maker.pick(paths)
        damaged[path] = _mutated(maker, damaged.get(path, files[path]), files[maker.pick(paths)])
    gone = [path for path in [maker.pick(paths)] if maker.chance(0.15) and path not in damaged]
    extra = {maker.pick(_NAMES): maker.bytes(600)} if maker.chance(0.2) else {}
    return Case(kind, damaged, gone, extra)


def _made_up(maker: Maker, files: dict[str, bytes], paths: list[str]) -> dict[str, bytes]:
    """Return files with names of a store, or similar ones, and arbitrary content."""
    found = {}
    for _ in range(1 + maker.below(4)):
        path = maker.pick(paths) if maker.chance(0.7) else maker.pick(_NAMES)
        content = files[maker.pick(paths)] if maker.chance(0.4) else maker.bytes(2000)
        found[path] = _mutated(maker, content, content) if maker.chance(0.5) else content
    return found


def _mutated(maker: Maker, content: bytes, other: bytes) -> bytes:
    at, kind = maker.below(len(content) + 1), maker.below(8)
    until = min(len(content), at + 1 + maker.below(600))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(until - at) + content[until:]
    if kind == 2:
        return content[:at] + maker.rng.randbytes(until - at) + content[until:]
    if kind == 3:
        return content[:at] + content[until:]
    if kind == 4:
        return content[:at] + other[at:until] + content[until:]
    if kind == 5:
        return other
    if kind == 6:
        return content + maker.bytes(600)
    return maker.damaged(content, NUMBERS, times=8)


def check(case: Case) -> None:
    if case.kind and not case.gone and not case.extra and (case.kind == "closed" or PATH not in case.damaged):
        bit_rot.examine(bit_rot.build(case.kind), case.damaged, confined=False)
        return
    rotten = bit_rot.build(case.kind) if case.kind else None
    disk = SimDisk(snapshot=rotten.snapshot if rotten else None)
    for path, content in case.damaged.items():
        disk.corrupt(path, content)
    disk.run([("unlink", path) for path in case.gone])
    for path, content in case.extra.items():
        _write(disk, path, content)
    before = {path: disk.read(path, 0, disk.size(path)) for path in disk.walk()}
    try:
        store = open_store(disk, SimClock(), TINY)
    except StoreError:
        bit_rot.check_untouched(disk, before)
        return
    bit_rot.check_untouched(disk, before, store.report())
    for name, log in store.logs.items():
        for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()[:2000]:
            found = _read(log, seq)
            if found is not None and rotten is not None:
                require(found == rotten.ever.get((name, seq)), f"{name} {seq} is not what was written")


def _read(log: object, seq: int) -> tuple[int, bytes, bytes, bytes, int] | None:
    try:
        found = log.get(seq)  # type: ignore[attr-defined]
    except StoreError:
        return None
    if found is None:
        return None
    time_ns, subject, header, payload, ttl_s = found
    return time_ns, bytes(subject), bytes(header), bytes(payload), ttl_s


def _write(disk: SimDisk, path: str, content: bytes) -> None:
    folders = path.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        folder = "/".join(folders[:depth])
        if not disk.exists(folder):
            disk.run([("mkdir", folder)])
    if not disk.exists(path):
        disk.run([("create", path, 0), ("write", path, 0, content)])
