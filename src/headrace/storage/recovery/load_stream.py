"""Loads one stream from its checkpoint section, its segments and its column caches.

Owns the choice between cache and segment. Invariant: rows come from a cache only if it matches the segment exactly up
to its committed end; live bits come from the section alone. It only reads. Must not know the journal.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.storage.checkpoint_schema import SegmentState, StreamCheckpoint
from headrace.storage.compressed_block import COMPRESSED_MAGIC, OpenedBlock, open_block
from headrace.storage.damage_report import Damage, RecoveryReport
from headrace.storage.format import (
    ALIGN,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    NUMBER_MAX,
    SEGMENT_HEADER_BYTES,
    align_up,
    columns_path,
    is_segment_header,
    stream_folder,
    subjects_path,
)
from headrace.storage.io.disk import Disk
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import SEQ_END
from headrace.storage.log.log_context import LogContext
from headrace.storage.native_records import RECORD_HEADER_BYTES, Array, SegmentIndex
from headrace.storage.segments.column_file import (
    ColumnFileId,
    DecodedColumns,
    decode_columns,
    decode_subjects,
)
from headrace.storage.segments.segment import SEQ_SPAN_MAX, FileSegment, FileState

#: Older versions had no generation in the names of column files.
FILE_NAME = re.compile(r"([0-9a-f]{8})\.(?:seg|(?:([0-9]+)\.)?col)")
SUBJECTS_NAME = re.compile(r"subjects\.([0-9]+)")


def find_next_segment_number(disk: Disk, ident: int) -> int:
    """Return one more than the highest segment number of this stream's files."""
    found = [FILE_NAME.fullmatch(name) for name in disk.list(stream_folder(ident))]
    numbers = (int(match[1], 16) for match in found if match)
    return max((number + 1 for number in numbers if number < NUMBER_MAX), default=0)


def find_next_generation(disk: Disk, ident: int) -> int:
    """Return one more than the highest generation of this stream's files."""
    names = disk.list(stream_folder(ident))
    found = [match[2] for name in names if (match := FILE_NAME.fullmatch(name)) and match[2]]
    found += [match[1] for name in names if (match := SUBJECTS_NAME.fullmatch(name))]
    return max((number for number in map(int, found) if number < NUMBER_MAX), default=-1) + 1


def load_log(
    context: LogContext, state: StreamCheckpoint, report: RecoveryReport, used_number: int = -1
) -> FileLog:
    """Load the log that a checkpoint section describes."""
    disk = context.disk
    _check(state)
    numbers = max(state.next_segment, find_next_segment_number(disk, state.ident), used_number + 1)
    log = FileLog(context, state.ident, state.name, next_segment=numbers)
    log.folder_state = FileState.READY if disk.exists(log.folder_path) else FileState.NEW
    log.is_compressed = state.is_compressed
    log.generation = log.loaded_generation = state.generation
    log.next_generation = max(state.generation + 1, find_next_generation(disk, state.ident))
    cached = _load_caches(log, state)
    for each in state.segments:
        _load_segment(log, each, cached.get(each.number), report)
    _load_tail(log, state)
    log.last_seq = max(log.last_seq, state.last_seq)
    log.last_time_ns = state.last_time_ns
    note_lost(log, report)
    log.recompute_first_seq()
    return log


def _check(state: StreamCheckpoint) -> None:
    """Reject numbers that no store writes. Their checksum is correct, so this is no bit rot, but rows become addresses."""
    before = 0
    sound = 0 < state.ident < 1 << 32 and 0 <= state.last_seq <= SEQ_END
    sound = sound and 0 <= state.generation < NUMBER_MAX and 0 <= state.next_segment <= NUMBER_MAX
    for each in state.segments:
        sound = (
            sound
            and before < each.first_seq <= each.last_seq <= SEQ_END
            and each.last_seq - each.first_seq <= SEQ_SPAN_MAX
        )
        sound = sound and 0 <= each.number < NUMBER_MAX and SEGMENT_HEADER_BYTES <= each.end < 1 << 32
        sound = sound and 0 <= each.rows <= each.end // RECORD_HEADER_BYTES
        before = each.last_seq
    if not sound:
        raise CorruptData(
            f"stream {state.name}: its checkpoint section has invalid values although its checksum is correct"
        )


def note_lost(log: FileLog, report: RecoveryReport) -> None:
    """Record in a log which of its sequences were acknowledged and cannot be read."""
    log.lost_ranges = [
        (each.first_seq, each.last_seq) for each in report.damage if each.is_loss_in(log.ident, log.name)
    ]


def _load_caches(log: FileLog, state: StreamCheckpoint) -> dict[int, DecodedColumns]:
    """Return the columns that can be trusted.

    If one needs subjects that the subjects file lacks, none can: ids may differ. An unusable subjects file is left as
    it is, and a new one is started.
    """
    disk = log.context.disk
    path = subjects_path(log.ident, log.generation)
    bad = False
    if disk.exists(path):
        log.subjects_file_end = decode_subjects(disk.map(path), log.subject_index)
        log.subjects_saved = len(log.subject_index)
        bad = log.subjects_file_end < max(disk.size(path), 1)
    cached: dict[int, DecodedColumns] = {}
    for each in state.segments:
        path = columns_path(log.ident, each.number, log.generation)
        if not disk.exists(path):
            continue
        file_id = ColumnFileId(log.context.store_id, log.ident, each.number, each.end, log.generation)
        decoded = decode_columns(partial(disk.read, path), disk.size(path), file_id)
        if decoded is None or decoded.columns.rows != each.rows or decoded.columns.base != each.first_seq:
            continue
        if decoded.subject_count > log.subjects_saved:
            sometimes("columns name subjects that are not written")
            log.start_generation()
            return {}
        if decoded.subjects_crc not in (None, log.subject_checksum.compute(decoded.subject_count)):
            continue
        cached[each.number] = decoded
    if bad and not cached:
        sometimes("a subjects file is unusable")
        log.start_generation()
    return cached


def _load_segment(
    log: FileLog, state: SegmentState, cached: DecodedColumns | None, report: RecoveryReport
) -> None:
    disk = log.context.disk
    segment = log.make_segment(state.number, SegmentIndex())
    segment.state = FileState.READY
    segment.end = state.end
    problem = _check_file(disk, segment, log, state)
    if problem:
        segment.damaged = True
        rows_known = cached is not None
        report.add_damage(
            Damage(problem, log.name, state.first_seq, state.last_seq, segment.path, rows_known, log.ident)
        )
    if cached is not None:
        segment.columns, segment.blocks, segment.columns_saved = cached.columns, cached.blocks, True
        segment.columns.apply_live_bits(state.live)
    elif problem:
        return
    else:
        scan_segment(log, segment, state, report)
        if disk.exists(log.get_columns_path(segment)):
            sometimes("damaged columns are rebuilt")
            report.repaired.append(
                f"{log.get_columns_path(segment)} is damaged: the segment was read instead"
            )
    if segment.columns.alive:
        log.restore_segment(segment)
        if not segment.columns_saved and not segment.damaged:
            log.on_segment_sealed(segment)
    elif not segment.damaged:
        log.on_segment_dropped(segment)


def _check_file(disk: Disk, segment: FileSegment, log: FileLog, state: SegmentState) -> str:
    if not disk.exists(segment.path):
        return "segment missing"
    if disk.size(segment.path) < state.end:
        return "segment too short"
    header = disk.read(segment.path, 0, SEGMENT_HEADER_BYTES)
    if not is_segment_header(header, log.context.store_id, log.ident, segment.number):
        return "segment header damaged, or the file is another segment"
    return ""


def scan_segment(log: FileLog, segment: FileSegment, state: SegmentState, report: RecoveryReport) -> None:
    """Read rows and blocks from the segment itself; a bad block loses only its own records."""
    data = log.context.disk.map(segment.path)[: state.end]
    columns = segment.columns
    original_rows: list[Array] = []  # for each row found, its row number when the live bits were captured
    at, row = SEGMENT_HEADER_BYTES, 0
    while at < state.end:
        block = open_block(data, at, segment.seed, at)
        if block is None or not _index_block(log, columns, block):
            at, skipped = _skip_damage(log, segment, state, data, at, row, report)
            row += skipped
            continue
        segment.blocks.append(at)
        original_rows.append(np.arange(row, row + block.header.records))
        row += block.header.records
        at = align_up(at + BLOCK_HEADER_BYTES + block.header.length)
    if state.live and original_rows:
        flags = np.unpackbits(np.frombuffer(state.live, np.uint8), count=max(state.rows, row))
        for dead_row in np.flatnonzero(flags[np.concatenate(original_rows)] == 0).tolist():
            columns.tombstone(dead_row)


def _index_block(log: FileLog, columns: SegmentIndex, block: OpenedBlock) -> bool:
    """Add the rows of a block, at their offsets in the segment; return False if its records are invalid."""
    header = block.header
    place = header.offset + BLOCK_HEADER_BYTES
    return (
        columns.index_block(log.subject_index, block.data, block.start, header.length, place, header.records)
        >= 0
    )


def _skip_damage(
    log: FileLog,
    segment: FileSegment,
    state: SegmentState,
    data: memoryview,
    at: int,
    row: int,
    report: RecoveryReport,
) -> tuple[int, int]:
    """Find the next valid block; return its offset and the number of rows in between."""
    segment.damaged = True
    next_offset = _find_next_block(segment, data, at)
    last = segment.last_seq if segment.columns.rows else state.first_seq - 1
    if next_offset < 0:
        first_after, skipped = state.last_seq + 1, state.rows - row
        next_offset = state.end
    else:
        found = open_block(data, next_offset, segment.seed, next_offset)
        assert found is not None
        first_after = found.header.first_seq
        skipped = _find_first_row(segment, data, next_offset, state.rows) - row
    description = f"block at {at} damaged"
    report.add_damage(Damage(description, log.name, last + 1, first_after - 1, segment.path, ident=log.ident))
    return next_offset, max(skipped, 0)


def _find_next_block(segment: FileSegment, data: memoryview, at: int) -> int:
    words = np.frombuffer(data, "<u4", len(data) // 4)[:: ALIGN // 4]
    is_magic = (words == BLOCK_MAGIC) | (words == COMPRESSED_MAGIC)
    for candidate in (np.flatnonzero(is_magic) * ALIGN).tolist():
        if candidate > at and open_block(data, candidate, segment.seed, candidate) is not None:
            return int(candidate)
    return -1


def _find_first_row(segment: FileSegment, data: memoryview, at: int, rows: int) -> int:
    """Return the row at which the block at `at` begins, counted from the end: exact if all later blocks are valid."""
    later = 0
    while at < len(data):
        block = open_block(data, at, segment.seed, at)
        if block is None:
            next_offset = _find_next_block(segment, data, at)
            if next_offset < 0:
                break
            at = next_offset
            continue
        later += block.header.records
        at = align_up(at + BLOCK_HEADER_BYTES + block.header.length)
    return rows - later


def _load_tail(log: FileLog, state: StreamCheckpoint) -> None:
    if not state.tail:
        return
    before = log.columns.rows
    if log.load(state.tail) < 0:
        raise CorruptData(f"stream {state.name}: the tail in its checkpoint section has invalid records")
    if state.tail_live:
        columns = log.columns
        flags = np.unpackbits(np.frombuffer(state.tail_live, np.uint8), count=columns.rows - before)
        for dead_row in np.flatnonzero(flags == 0).tolist():
            log.subtract_rows(columns, before + dead_row, before + dead_row + 1)
