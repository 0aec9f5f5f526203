"""A closed store whose bytes change on the medium, and what must hold then.

Wrong bytes are never served; what cannot be read is reported; damage stays within one block or frame;
sequences are never given again; recovery changes nothing, and deletes nothing of a damaged store.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from headrace.errors import Corrupt
from headrace.sim import SimClock, SimDisk, Snapshot
from headrace.sim.checks import demand
from headrace.sim.driver import Driver
from headrace.sim.model import Message, State
from headrace.store import Log, Store
from headrace.store.report import Report

from .options import TINY
from .workloads import live, some

#: No block and no frame of `build` holds more messages than this.
TOGETHER = 24


class Rotten(NamedTuple):
    """A store to be damaged: its disk after a clean end, and what it holds."""

    snapshot: Snapshot
    state: State
    files: dict[str, bytes]
    ever: dict[tuple[str, int], Message]


@cache
def build(kind: str = "closed") -> Rotten:
    """About 64 KiB: two streams with segments, tails, removals and facts.

    "idle" ends without a shutdown, "killed" without an idle mark too.
    """
    disk = SimDisk(7)
    driver = Driver(disk, TINY)
    rng = Random(7)
    driver.create("A")
    driver.create("B")
    ever: dict[tuple[str, int], Message] = {}
    for number in range(12):
        some(driver, rng, "A", 6, 300)
        some(driver, rng, "B", 1)
        if number % 4 == 3:
            remember(driver, ever)
            driver.remove("A", rng.choice(live(driver, "A")))
            driver.append("A", b"big", 6_000)
        driver.put(b"k/%d" % (number % 3), b"%d" % number)
        remember(driver, ever)
        driver.tick()
        if number == 7:
            driver.checkpoint()
    driver.settle()
    if kind == "closed":
        driver.store.close()
    elif kind == "idle":
        driver.store.idle()
        disk.drain()
    frozen = driver.model.freeze()
    disk = disk.kill()
    files = {path: disk.read(path, 0, disk.size(path)) for path in disk.walk()}
    return Rotten(disk.snapshot(), frozen, files, ever)


def remember(driver: Driver, ever: dict[tuple[str, int], Message]) -> None:
    for name, log in driver.model.logs.items():
        ever.update({(name, seq): message for seq, message in log.messages.items()})


class Verdict(NamedTuple):
    """What was found of a damaged store."""

    refused: bool
    unreadable: int
    reported: bool


def examine(rotten: Rotten, damaged: dict[str, bytes], *, confined: bool = True) -> Verdict:
    """Opens the store with some files replaced and holds it to the promises."""
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, content in damaged.items():
        disk.rot(path, content)
    kept = {**rotten.files, **damaged}
    try:
        store = Store.open(disk, SimClock(), TINY)
    except Corrupt:
        check_untouched(disk, kept)
        return Verdict(True, 0, True)
    check_untouched(disk, kept, store.report())
    unreadable = _compare(store, rotten)
    report = store.report()
    reported = bool(report.damage or report.offline)
    demand(not unreadable or reported, f"{unreadable} messages are gone without a word")
    if confined:
        demand(unreadable <= TOGETHER, f"{unreadable} messages are gone through one damaged byte")
    return Verdict(False, unreadable, reported)


def check_untouched(disk: SimDisk, kept: dict[str, bytes], report: Report | None = None) -> None:
    """Demand that recovery changed nothing, and deleted nothing unless it found no damage.

    In a sound store it removes what a crashed run left and nothing refers to; that every message is still there is
    checked besides.
    """
    for path, content in kept.items():
        if report is not None and report.healthy and not disk.exists(path):
            continue
        demand(disk.exists(path), f"recovery deleted {path}")
        demand(disk.read(path, 0, disk.size(path)) == content, f"recovery changed {path}")


def _compare(store: Store, rotten: Rotten) -> int:
    """How many messages cannot be read; raises when one is wrong or a sequence could be given again.

    One whose removal was in a damaged frame may be back, as it was: a fact is lost, not invented.
    """
    unreadable = 0
    state = rotten.state
    for name, (_, last_seq, messages) in state[0]:
        log = store.logs.get(name)
        if log is None:
            demand(bool(store.report().offline), f"stream {name} is gone without a word")
            unreadable += len(messages)
            continue
        demand(log.last_seq >= last_seq, f"{name} would give sequence {log.last_seq + 1} again")
        known = dict(messages)
        for seq in range(min(known, default=1), last_seq + 1):
            unreadable += not _right(log, seq, known.get(seq), rotten.ever.get((name, seq)))
    for key, value in state[1]:
        found = store.facts.get(key)
        if found != value:
            demand(bool(store.report().damage), f"fact {key!r} is {found!r}")
            unreadable += 1
    return unreadable


def _right(log: Log, seq: int, message: Message | None, ever: Message | None) -> bool:
    try:
        found = log.get(seq)
    except Corrupt:
        return False
    if found is None:
        return message is None
    time_ns, subject, header, payload, ttl_s = found
    read = (time_ns, bytes(subject), bytes(header), bytes(payload), ttl_s)
    demand(read == ever, f"{log.name} {seq} is wrong")
    return message is not None


def flipped(content: bytes, offset: int, bit: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :]
