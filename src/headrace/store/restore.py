"""Brings one stream back from its section of a checkpoint, its segments and its caches.

Owns the decision between cache and segment. Invariant: rows come from a cache only if it is exactly
that of the segment up to its committed end; live bits come from the section alone. It only reads. Must
not know the journal.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from headrace.errors import Corrupt
from headrace.probes import probe
from headrace.store.columnfile import Decoded, Identity, decode_columns, decode_subjects
from headrace.store.disk import Disk
from headrace.store.filelog import FileLog
from headrace.store.format import (
    ALIGN,
    BLOCK_BYTES,
    BLOCK_MAGIC,
    SEGMENT_HEADER_BYTES,
    aligned,
    columns_path,
    is_segment,
    open_block,
    stream_folder,
    subjects_path,
)
from headrace.store.log import SEQ_END
from headrace.store.records import HEAD_BYTES, Array, Columns
from headrace.store.report import Damage, Report
from headrace.store.segments import REACH, FileSegment, State
from headrace.store.shelf import Shelf
from headrace.store.states import SegmentState, StreamState

#: Columns had no generation in their names once.
NAME = re.compile(r"([0-9a-f]{8})\.(?:seg|(?:([0-9]+)\.)?col)")
SUBJECTS_NAME = re.compile(r"subjects\.([0-9]+)")


def used_number(disk: Disk, ident: int) -> int:
    """One more than the highest number a file of this stream has."""
    found = [NAME.fullmatch(name) for name in disk.list(stream_folder(ident))]
    return max((int(match[1], 16) + 1 for match in found if match), default=0)


def used_generations(disk: Disk, ident: int) -> int:
    """One more than the highest generation a file of this stream has."""
    names = disk.list(stream_folder(ident))
    found = [match[2] for name in names if (match := NAME.fullmatch(name)) and match[2]]
    found += [match[1] for name in names if (match := SUBJECTS_NAME.fullmatch(name))]
    return max(map(int, found), default=-1) + 1


def restore_log(shelf: Shelf, state: StreamState, report: Report) -> FileLog:
    """The log as its section says."""
    disk = shelf.disk
    _check(state)
    numbers = max(state.next_segment, used_number(disk, state.ident))
    log = FileLog(shelf, state.ident, state.name, next_segment=numbers)
    log.folder = State.READY if disk.exists(log.folder_path) else State.NEW
    log.generation = log.found_generation = state.generation
    log.generations = max(state.generation + 1, used_generations(disk, state.ident))
    cached = _load_caches(log, state)
    for each in state.segments:
        _restore_segment(log, each, cached.get(each.number), report)
    _restore_tail(log, state)
    log.last_seq = max(log.last_seq, state.last_seq)
    log.last_time_ns = state.last_time_ns
    note_lost(log, report)
    log.settle_first()
    return log


def _check(state: StreamState) -> None:
    """Refuse numbers that no store writes. Their checksum holds, so they are no rot, but rows become addresses."""
    before = 0
    sound = 0 < state.ident < 1 << 32 and 0 <= state.last_seq <= SEQ_END and state.generation >= 0
    for each in state.segments:
        sound = sound and before < each.base <= each.last <= SEQ_END and each.last - each.base <= REACH
        sound = sound and 0 <= each.number < 1 << 32 and SEGMENT_HEADER_BYTES <= each.end < 1 << 32
        sound = sound and 0 <= each.rows <= each.end // HEAD_BYTES
        before = each.last
    if not sound:
        raise Corrupt(
            f"stream {state.name}: its section of the checkpoint makes no sense, though its checksum holds"
        )


def note_lost(log: FileLog, report: Report) -> None:
    """Tell a log which of its sequences were acknowledged and cannot be read."""
    log.lost = [(each.first, each.last) for each in report.damage if each.is_loss_of(log.ident, log.name)]


def _load_caches(log: FileLog, state: StreamState) -> dict[int, Decoded]:
    """Columns that can be trusted. If one needs subjects that the subjects file lacks, none can: ids
    may differ. A subjects file of no use is left as it is, bad as it may be, and a new one begun.
    """
    disk = log.shelf.disk
    path = subjects_path(log.ident, log.generation)
    bad = False
    if disk.exists(path):
        log.subjects_end = decode_subjects(disk.map(path), log.table)
        log.subjects_saved = len(log.table)
        bad = log.subjects_end < max(disk.size(path), 1)
    cached: dict[int, Decoded] = {}
    for each in state.segments:
        path = columns_path(log.ident, each.number, log.generation)
        if not disk.exists(path):
            continue
        who = Identity(log.shelf.store, log.ident, each.number, each.end, log.generation)
        decoded = decode_columns(partial(disk.read, path), disk.size(path), who)
        if decoded is None or decoded.columns.rows != each.rows or decoded.columns.base != each.base:
            continue
        if decoded.subjects > log.subjects_saved:
            probe("columns name subjects that are not written")
            log.begin_generation()
            return {}
        cached[each.number] = decoded
    if bad and not cached:
        probe("a subjects file is of no use")
        log.begin_generation()
    return cached


def _restore_segment(log: FileLog, state: SegmentState, cached: Decoded | None, report: Report) -> None:
    disk = log.shelf.disk
    segment = log.segment(state.number, Columns())
    segment.state = State.READY
    segment.end = state.end
    problem = _file_problem(disk, segment, log, state)
    if problem:
        segment.damaged = True
        known = cached is not None
        report.add(Damage(problem, log.name, state.base, state.last, segment.path, known, log.ident))
    if cached is not None:
        segment.columns, segment.blocks, segment.saved = cached.columns, cached.blocks, True
        segment.columns.bury(state.live)
    elif problem:
        return
    else:
        scan_segment(log, segment, state, report)
        if disk.exists(log.columns_path(segment)):
            probe("columns are bad and made anew")
            report.repaired.append(f"{log.columns_path(segment)} is bad: the segment was read instead")
    if segment.columns.alive:
        log.restore_segment(segment)
        if not segment.saved and not segment.damaged:
            log.closed(segment)
    elif not segment.damaged:
        log.dropped(segment)


def _file_problem(disk: Disk, segment: FileSegment, log: FileLog, state: SegmentState) -> str:
    if not disk.exists(segment.path):
        return "segment missing"
    if disk.size(segment.path) < state.end:
        return "segment too short"
    header = disk.read(segment.path, 0, SEGMENT_HEADER_BYTES)
    if not is_segment(header, log.shelf.store, log.ident, segment.number):
        return "segment header damaged, or the file is another one"
    return ""


def scan_segment(log: FileLog, segment: FileSegment, state: SegmentState, report: Report) -> None:
    """Rows and blocks from the segment itself; a bad block costs its own records only."""
    data = log.shelf.disk.map(segment.path)[: state.end]
    columns = segment.columns
    origin: list[Array] = []  # for each row found, which row it was when the live bits were taken
    at, row = SEGMENT_HEADER_BYTES, 0
    while at < state.end:
        block = open_block(data, at, segment.seed, at)
        place = at + BLOCK_BYTES
        if block is None or columns.scan(log.table, data, place, block.length, place, block.records) < 0:
            at, skipped = _skip_damage(log, segment, state, data, at, row, report)
            row += skipped
            continue
        segment.blocks.append(at)
        origin.append(np.arange(row, row + block.records))
        row += block.records
        at = aligned(at + BLOCK_BYTES + block.length)
    if state.live and origin:
        flags = np.unpackbits(np.frombuffer(state.live, np.uint8), count=max(state.rows, row))
        for dead in np.flatnonzero(flags[np.concatenate(origin)] == 0).tolist():
            columns.kill(dead)


def _skip_damage(
    log: FileLog,
    segment: FileSegment,
    state: SegmentState,
    data: memoryview,
    at: int,
    row: int,
    report: Report,
) -> tuple[int, int]:
    """Finds the next good block; returns where it is and how many rows lie between."""
    segment.damaged = True
    following = _next_block(segment, data, at)
    last = segment.last if segment.columns.rows else state.base - 1
    if following < 0:
        first_after, skipped = state.last + 1, state.rows - row
        following = state.end
    else:
        found = open_block(data, following, segment.seed, following)
        assert found is not None
        first_after = found.first_seq
        skipped = _rows_from(segment, data, following, state.rows) - row
    what = f"block at {at} damaged"
    report.add(Damage(what, log.name, last + 1, first_after - 1, segment.path, ident=log.ident))
    return following, max(skipped, 0)


def _next_block(segment: FileSegment, data: memoryview, at: int) -> int:
    words = np.frombuffer(data, "<u4", len(data) // 4)[:: ALIGN // 4]
    for place in (np.flatnonzero(words == BLOCK_MAGIC) * ALIGN).tolist():
        if place > at and open_block(data, place, segment.seed, place) is not None:
            return int(place)
    return -1


def _rows_from(segment: FileSegment, data: memoryview, at: int, rows: int) -> int:
    """The row at which the block at `at` begins, counted from the end: exact if all blocks after it are
    good.
    """
    later = 0
    while at < len(data):
        block = open_block(data, at, segment.seed, at)
        if block is None:
            following = _next_block(segment, data, at)
            if following < 0:
                break
            at = following
            continue
        later += block.records
        at = aligned(at + BLOCK_BYTES + block.length)
    return rows - later


def _restore_tail(log: FileLog, state: StreamState) -> None:
    if not state.tail:
        return
    before = log.columns.rows
    if log.load(state.tail) < 0:
        raise Corrupt(f"stream {state.name}: the tail in its section of the checkpoint is not records")
    if state.tail_live:
        columns = log.columns
        flags = np.unpackbits(np.frombuffer(state.tail_live, np.uint8), count=columns.rows - before)
        for dead in np.flatnonzero(flags == 0).tolist():
            log.discount(columns, before + dead, before + dead + 1)
