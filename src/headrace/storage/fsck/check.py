"""Implements `headrace fsck`: reports what a store contains and what is damaged, and drops damaged data on request.

Owns the check of every byte that a store may serve. Invariant: checking changes nothing (recovery runs on an overlay);
only `accept_loss` does, and it keeps everything it removes under `lost/`. Must not know the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from headrace.clock import SystemClock
from headrace.errors import CorruptData, StoreError
from headrace.storage.compressed_block import open_block
from headrace.storage.damage_report import Damage
from headrace.storage.format import SEGMENT_HEADER_BYTES, is_segment_header
from headrace.storage.format_features import name_folder_in_errors
from headrace.storage.io.disk import Disk
from headrace.storage.io.overlay_disk import OverlayDisk
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.log.file_log import FileLog
from headrace.storage.options import StoreOptions
from headrace.storage.recovery.recovery import open_store
from headrace.storage.segments.segment import FileSegment
from headrace.storage.store import Store

CLEAN, DAMAGED, REFUSED = 0, 1, 2


class StreamSummary(msgspec.Struct, frozen=True):
    """What a stream contains."""

    name: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    subjects: int
    segments: int


class FsckReport(msgspec.Struct):
    """What a store contains, and what is damaged."""

    folder: str
    checkpoint: int = 0
    writer: str = ""
    features: list[str] = []
    frames_after_checkpoint: int = 0
    shut_down_cleanly: bool = False
    journal_files: int = 0
    pins: int = 0
    streams: list[StreamSummary] = []
    torn: list[str] = []
    repaired: list[str] = []
    unknown: list[str] = []
    harmless: list[str] = []
    damage: list[Damage] = []
    offline: dict[str, str] = {}

    @property
    def clean(self) -> bool:
        return not self.damage and not self.offline


class DamagedBlock(NamedTuple):
    """A damaged part of a segment, and the live sequences lost with it."""

    description: str
    segment: FileSegment
    seqs: list[int]


def main(directory: str, accept_loss: bool = False, json: bool = False) -> int:
    """Check a store and print the result. Returns the exit code: 0 clean, 1 damage, 2 no store, in use, or too new."""
    try:
        findings = check(directory)
        if accept_loss and not findings.clean:
            from headrace.storage.fsck.accept_loss import accept_data_loss

            accept_data_loss(directory, findings)
            findings = check(directory)
    except StoreError as error:
        print(f"headrace fsck: {error}", file=sys.stderr)
        return REFUSED
    if json:
        print(msgspec.json.encode(findings).decode())
    else:
        print("\n".join(describe(findings)))
    return CLEAN if findings.clean else DAMAGED


def check(directory: str) -> FsckReport:
    """Find everything that can be found without changing anything."""
    base = ReadonlyDisk(directory, exclusive=True)
    try:
        disk = OverlayDisk(base)
        findings = FsckReport(
            directory,
            journal_files=sum(name.endswith(".jnl") for name in base.list("journal")),
            pins=len(base.list("pins")),
        )
        try:
            options = StoreOptions(journal_bytes=1 << 20, journal_spares=0, headroom_bytes=0)
            with name_folder_in_errors(directory):
                store = open_store(disk, SystemClock(), options)
        except CorruptData as error:
            findings.damage = [Damage(str(error))]
            return findings
        _collect(store, findings)
        return findings
    finally:
        base.unlock()


def _collect(store: Store, findings: FsckReport) -> None:
    report = store.report()
    findings.checkpoint = report.checkpoint
    findings.writer, findings.features = report.writer, report.features
    findings.frames_after_checkpoint = report.frames_replayed
    findings.shut_down_cleanly = report.clean_shutdown
    findings.torn, findings.repaired, findings.unknown = (
        report.torn_tails,
        report.repaired,
        report.unknown_files,
    )
    findings.offline = report.offline_streams
    for log in store.iter_file_logs():
        findings.streams.append(_make_summary(log))
        for bad in find_damage(store.disk, log):
            if bad.seqs:
                damage = Damage(bad.description, log.name, bad.seqs[0], bad.seqs[-1], bad.segment.path, True)
                findings.damage.append(damage)
            else:
                findings.harmless.append(
                    f"{bad.description} in {bad.segment.path}, but no live message is in it"
                )
    # If the rows are known, checking each block shows more precisely what is lost than recovery did.
    checked_files = {each.file for each in findings.damage}
    findings.damage += [
        each for each in report.damage if not (each.rows_known and each.file in checked_files)
    ]


def _make_summary(log: FileLog) -> StreamSummary:
    segments = sum(1 for segment in log.list_segments() if len(segment.blocks))
    return StreamSummary(
        log.name, log.messages, log.bytes, log.first_seq, log.last_seq, log.num_subjects, segments
    )


def find_damage(disk: Disk, log: FileLog) -> Iterator[DamagedBlock]:
    """Check every block of every segment that the log names, except blocks that are only in memory."""
    for segment in log.list_segments():
        blocks = [block for block in segment.blocks if block not in segment.pending]
        if not blocks:
            continue
        try:
            data = disk.map(segment.path)
        except OSError:
            yield DamagedBlock("a segment is missing", segment, _find_live_seqs(segment, 0, 1 << 62))
            continue
        if not is_segment_header(
            bytes(data[:SEGMENT_HEADER_BYTES]), log.context.store_id, log.ident, segment.number
        ):
            yield DamagedBlock(
                "the file is another segment, or its header is damaged",
                segment,
                _find_live_seqs(segment, 0, 1 << 62),
            )
            continue
        yield from _find_bad_blocks(segment, data, blocks)


def _find_bad_blocks(segment: FileSegment, data: memoryview, blocks: list[int]) -> Iterator[DamagedBlock]:
    for at in blocks:
        if open_block(data, at, segment.seed, at) is None:
            description = "a segment is truncated" if at >= len(data) else f"the block at {at} is damaged"
            yield DamagedBlock(
                description, segment, _find_live_seqs(segment, at, _find_block_end(segment, at))
            )


def _find_block_end(segment: FileSegment, block: int) -> int:
    following = [each for each in segment.blocks if each > block]
    return following[0] if following else 1 << 62


def _find_live_seqs(segment: FileSegment, low: int, high: int) -> list[int]:
    """Return the live sequences whose records are between two offsets."""
    columns = segment.columns
    first, last = (columns.find_offset(offset, 0, columns.rows) for offset in (low, high))
    return [columns.seq(row) for row in range(first, last) if columns.is_live(row)]


def describe(findings: FsckReport) -> Iterator[str]:
    """Describe the findings as lines of text."""
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
    for label, lines in _group_notes(findings):
        for line in lines:
            yield f"  {label}: {line}"
    for damage in findings.damage:
        yield f"DAMAGE {_describe_damage(damage)}"
    for name, reason in findings.offline.items():
        yield f"OFFLINE stream {name}: {reason}"
    yield (
        "clean"
        if findings.clean
        else "damaged; run with --accept-loss to drop the damaged data, after copying it to lost/"
    )


def _group_notes(findings: FsckReport) -> list[tuple[str, list[str]]]:
    return [
        ("torn tail, nothing acknowledged was lost", findings.torn),
        ("repaired", findings.repaired),
        ("unknown file, not touched", findings.unknown),
        ("harmless", findings.harmless),
    ]


def _describe_damage(damage: Damage) -> str:
    where = f"stream {damage.stream}: " if damage.stream else ""
    lost = f"; lost sequences: {damage.first_seq} to {damage.last_seq}" if damage.last_seq else ""
    file = f" [{damage.file}]" if damage.file else ""
    return f"{where}{damage.description}{lost}{file}"
