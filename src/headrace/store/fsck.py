"""`headrace fsck`: says what a store holds and what is wrong with it, and lets go of damage when told to.

Owns the check of every byte that a store may serve. Invariant: checking changes nothing (recovery runs over an
overlay); only `accept_loss` does, and it keeps what it takes out under `lost/`. Must not know the command line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.errors import Corrupt, StoreError
from headrace.store.disk import Disk
from headrace.store.features import named
from headrace.store.filelog import FileLog
from headrace.store.folder import FolderDisk
from headrace.store.format import SEGMENT_HEADER_BYTES, is_segment, open_block
from headrace.store.options import StoreOptions
from headrace.store.overlay import OverlayDisk
from headrace.store.report import Damage
from headrace.store.segments import FileSegment
from headrace.store.store import Store

CLEAN, DAMAGED, REFUSED = 0, 1, 2


class StreamFound(msgspec.Struct, frozen=True):
    """What a stream holds."""

    name: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    subjects: int
    segments: int


class Findings(msgspec.Struct):
    """What a store holds, and what is wrong."""

    folder: str
    checkpoint: int = 0
    writer: str = ""
    features: list[str] = []
    frames_after_checkpoint: int = 0
    shut_down_cleanly: bool = False
    journal_files: int = 0
    pins: int = 0
    streams: list[StreamFound] = []
    torn: list[str] = []
    repaired: list[str] = []
    unknown: list[str] = []
    harmless: list[str] = []
    damage: list[Damage] = []
    offline: dict[str, str] = {}

    @property
    def clean(self) -> bool:
        return not self.damage and not self.offline


class Bad(NamedTuple):
    """A damaged place of a segment, and the live sequences that are lost with it."""

    what: str
    segment: FileSegment
    seqs: list[int]


def main(directory: str, accept_loss: bool = False, json: bool = False) -> int:
    """Checks, prints, returns the exit code: 0 clean, 1 damage, 2 no such store, in use, or of a newer version."""
    try:
        findings = check(directory)
        if accept_loss and not findings.clean:
            from headrace.store.acceptance import accept

            accept(directory, findings)
            findings = check(directory)
    except StoreError as error:
        print(f"headrace fsck: {error}", file=sys.stderr)
        return REFUSED
    if json:
        print(msgspec.json.encode(findings).decode())
    else:
        print("\n".join(describe(findings)))
    return CLEAN if findings.clean else DAMAGED


class WallClock:
    """The time of this machine."""

    def now_ns(self) -> int:
        return time.time_ns()


def check(directory: str) -> Findings:
    """Everything that can be found out without changing anything."""
    beneath = FolderDisk(directory, exclusive=True)
    try:
        disk = OverlayDisk(beneath)
        findings = Findings(
            directory,
            journal_files=sum(name.endswith(".jnl") for name in beneath.list("journal")),
            pins=len(beneath.list("pins")),
        )
        try:
            options = StoreOptions(journal_bytes=1 << 20, journal_spares=0, headroom_bytes=0)
            with named(directory):
                store = Store.open(disk, WallClock(), options)
        except Corrupt as error:
            findings.damage = [Damage(str(error))]
            return findings
        _collect(store, findings)
        return findings
    finally:
        beneath.unlock()


def _collect(store: Store, findings: Findings) -> None:
    report = store.report()
    findings.checkpoint = report.checkpoint
    findings.writer, findings.features = report.writer, report.features
    findings.frames_after_checkpoint = report.frames_replayed
    findings.shut_down_cleanly = report.clean
    findings.torn, findings.repaired, findings.unknown = report.tears, report.repaired, report.unknown
    findings.offline = report.offline
    for log in store.file_logs():
        findings.streams.append(_stream(log))
        for bad in inspect(store.disk, log):
            if bad.seqs:
                damage = Damage(bad.what, log.name, bad.seqs[0], bad.seqs[-1], bad.segment.path, True)
                findings.damage.append(damage)
            else:
                findings.harmless.append(f"{bad.what} in {bad.segment.path}, but nothing in it is live")
    # Where the rows are known, looking at each block says more exactly what is lost than recovery did.
    looked_at = {each.file for each in findings.damage}
    findings.damage += [each for each in report.damage if not (each.rows and each.file in looked_at)]


def _stream(log: FileLog) -> StreamFound:
    segments = sum(1 for segment in log.files() if len(segment.blocks))
    return StreamFound(
        log.name, log.messages, log.bytes, log.first_seq, log.last_seq, log.num_subjects, segments
    )


def inspect(disk: Disk, log: FileLog) -> Iterator[Bad]:
    """Every block of every segment that the log names and that is not in memory only."""
    for segment in log.files():
        blocks = [block for block in segment.blocks if block not in segment.pending]
        if not blocks:
            continue
        try:
            data = disk.map(segment.path)
        except OSError:
            yield Bad("a segment is missing", segment, _live(segment, 0, 1 << 62))
            continue
        if not is_segment(bytes(data[:SEGMENT_HEADER_BYTES]), log.shelf.store, log.ident, segment.number):
            yield Bad("a segment is not the one it should be", segment, _live(segment, 0, 1 << 62))
            continue
        yield from _bad_blocks(segment, data, blocks)


def _bad_blocks(segment: FileSegment, data: memoryview, blocks: list[int]) -> Iterator[Bad]:
    for at in blocks:
        if open_block(data, at, segment.seed, at) is None:
            what = "a segment is cut short" if at >= len(data) else f"the block at {at} is damaged"
            yield Bad(what, segment, _live(segment, at, _after(segment, at)))


def _after(segment: FileSegment, block: int) -> int:
    following = [each for each in segment.blocks if each > block]
    return following[0] if following else 1 << 62


def _live(segment: FileSegment, low: int, high: int) -> list[int]:
    """The live sequences whose records lie between two offsets."""
    columns = segment.columns
    offsets = columns.offset[: columns.rows]
    first, last = (int(np.searchsorted(offsets, place)) for place in (low, high))
    return [columns.seq(row) for row in range(first, last) if columns.is_live(row)]


def describe(findings: Findings) -> Iterator[str]:
    """The findings in words."""
    yield f"store {findings.folder}"
    ended = "shut down cleanly" if findings.shut_down_cleanly else "not shut down cleanly"
    yield f"  checkpoint {findings.checkpoint}, {findings.frames_after_checkpoint} frames after it, {ended}"
    if findings.writer:
        needs = f"; format features: {', '.join(findings.features)}" if findings.features else ""
        yield f"  written by Headrace {findings.writer}{needs}"
    yield f"  {findings.journal_files} journal files, {findings.pins} pins, {len(findings.streams)} streams"
    for each in sorted(findings.streams, key=lambda stream: stream.name):
        yield (
            f"  stream {each.name}: {each.messages} messages ({each.first_seq} to {each.last_seq}), "
            f"{each.bytes} bytes, {each.subjects} subjects, {each.segments} segments"
        )
    for label, lines in _notes(findings):
        for line in lines:
            yield f"  {label}: {line}"
    for damage in findings.damage:
        yield f"DAMAGE {_place(damage)}"
    for name, why in findings.offline.items():
        yield f"OFFLINE stream {name}: {why}"
    yield (
        "clean" if findings.clean else "damaged; --accept-loss lets go of what is lost and keeps it in lost/"
    )


def _notes(findings: Findings) -> list[tuple[str, list[str]]]:
    return [
        ("torn tail, nothing acknowledged is lost", findings.torn),
        ("repaired", findings.repaired),
        ("unknown file, left alone", findings.unknown),
        ("harmless", findings.harmless),
    ]


def _place(damage: Damage) -> str:
    where = f"stream {damage.stream}: " if damage.stream else ""
    lost = f"; lost: {damage.first} to {damage.last}" if damage.last else ""
    file = f" [{damage.file}]" if damage.file else ""
    return f"{where}{damage.what}{lost}{file}"
