"""Bit rot: bytes of a closed store change on disk. These guarantees must hold:

Wrong bytes are never served; unreadable data is reported; damage stays within one block or frame; sequences are never
reused; recovery changes nothing, and deletes nothing from a damaged store.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from headrace.errors import CorruptData
from headrace.sim import DiskSnapshot, SimClock, SimDisk
from headrace.sim.checkers.store_invariants import require
from headrace.sim.checkers.store_model import ModelMessage, StoreState
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import Store, StreamLog, open_store
from headrace.storage.damage_report import RecoveryReport

from .store_sizes import TINY
from .workloads import live, some

#: No block and no frame of `build` holds more messages than this.
TOGETHER = 24


class Rotten(NamedTuple):
    """A store to be damaged: its disk after a clean shutdown, and its content."""

    snapshot: DiskSnapshot
    state: StoreState
    files: dict[str, bytes]
    ever: dict[tuple[str, int], ModelMessage]


@cache
def build(kind: str = "closed") -> Rotten:
    """Build a store of about 64 KiB: two streams with segments, tails, removals and metadata.

    "idle" ends without a shutdown, "killed" without an idle mark too; the blocks of "compressed" are compressed.
    """
    disk = SimDisk(7)
    driver = StoreDriver(disk, TINY)
    rng = Random(7)
    driver.create("A")
    driver.create("B")
    if kind == "compressed":
        driver.compress("A")
        driver.compress("B")
        driver.run_until_idle()
    ever: dict[tuple[str, int], ModelMessage] = {}
    for number in range(12):
        some(driver, rng, "A", 6, 300)
        some(driver, rng, "B", 1)
        if number % 4 == 3:
            remember(driver, ever)
            driver.remove("A", rng.choice(live(driver, "A")))
            driver.append("A", b"big", 6_000)
        driver.put(b"k/%d" % (number % 3), b"%d" % number)
        remember(driver, ever)
        driver.commit_and_wait()
        if number == 7:
            driver.checkpoint()
    driver.run_until_idle()
    if kind in ("closed", "compressed"):
        driver.store.close()
    elif kind == "idle":
        driver.store.on_idle()
        disk.drain()
    frozen = driver.model.to_state()
    disk = disk.kill()
    files = {path: disk.read(path, 0, disk.size(path)) for path in disk.walk()}
    return Rotten(disk.snapshot(), frozen, files, ever)


def remember(driver: StoreDriver, ever: dict[tuple[str, int], ModelMessage]) -> None:
    for name, log in driver.model.logs.items():
        ever.update({(name, seq): message for seq, message in log.messages.items()})


class Verdict(NamedTuple):
    """The result of opening a damaged store."""

    refused: bool
    unreadable: int
    reported: bool


def examine(rotten: Rotten, damaged: dict[str, bytes], *, confined: bool = True) -> Verdict:
    """Open the store with some files replaced, and check the guarantees."""
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, content in damaged.items():
        disk.corrupt(path, content)
    kept = {**rotten.files, **damaged}
    try:
        store = open_store(disk, SimClock(), TINY)
    except CorruptData:
        check_untouched(disk, kept)
        return Verdict(True, 0, True)
    check_untouched(disk, kept, store.report())
    unreadable = _compare(store, rotten)
    report = store.report()
    reported = bool(report.damage or report.offline_streams)
    require(not unreadable or reported, f"{unreadable} messages are missing and no damage is reported")
    if confined:
        require(unreadable <= TOGETHER, f"{unreadable} messages are lost through one damaged byte")
    return Verdict(False, unreadable, reported)


def check_untouched(disk: SimDisk, kept: dict[str, bytes], report: RecoveryReport | None = None) -> None:
    """Check that recovery changed nothing, and deleted nothing unless it found no damage.

    In an undamaged store it removes unreferenced files of a crashed run; another check makes sure that no message is
    missing.
    """
    for path, content in kept.items():
        if report is not None and report.healthy and not disk.exists(path):
            continue
        require(disk.exists(path), f"recovery deleted {path}")
        require(disk.read(path, 0, disk.size(path)) == content, f"recovery changed {path}")


def _compare(store: Store, rotten: Rotten) -> int:
    """Return how many messages cannot be read; raise Violation if one is wrong or a sequence could be reused.

    A message whose removal was in a damaged frame may be back unchanged: the removal is lost, no data is invented.
    """
    unreadable = 0
    state = rotten.state
    for name, (_, last_seq, messages) in state[0]:
        log = store.logs.get(name)
        if log is None:
            require(
                bool(store.report().offline_streams), f"stream {name} is missing and not reported as offline"
            )
            unreadable += len(messages)
            continue
        require(log.last_seq >= last_seq, f"{name} would reuse sequence {log.last_seq + 1}")
        known = dict(messages)
        for seq in range(min(known, default=1), last_seq + 1):
            unreadable += not _right(log, seq, known.get(seq), rotten.ever.get((name, seq)))
    for key, value in state[1]:
        found = store.metadata.get(key)
        if found != value:
            require(bool(store.report().damage), f"metadata key {key!r} has the value {found!r}")
            unreadable += 1
    return unreadable


def _right(log: StreamLog, seq: int, message: ModelMessage | None, ever: ModelMessage | None) -> bool:
    try:
        found = log.get(seq)
    except CorruptData:
        return False
    if found is None:
        return message is None
    time_ns, subject, header, payload, ttl_s = found
    read = (time_ns, bytes(subject), bytes(header), bytes(payload), ttl_s)
    require(read == ever, f"{log.name} {seq} is wrong")
    return message is not None


def flipped(content: bytes, offset: int, bit: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :]
