"""Column files: round trips, files of earlier versions, and bytes that no store wrote."""

from __future__ import annotations

import random
import struct
from array import array
from pathlib import Path

import numpy as np
import pytest

from headrace._native import crc32
from headrace._native.column_packing_pure import pack_column, pack_columns
from headrace.storage import Store, StreamLog
from headrace.storage.native_records import SegmentIndex, SubjectIndex
from headrace.storage.segments import column_file
from headrace.storage.segments.column_file import (
    UNPACKED_HEADER_BYTES,
    ColumnFile,
    ColumnFileId,
    DecodedColumns,
    SubjectTable,
    decode_columns,
    decode_subjects,
    encode_columns,
    encode_subjects,
    reader_of,
)
from support.small_store import TINY, Naive, commit, compare, open_small_store

FILE_ID = ColumnFileId(7, 3, 2, 100_000, 1)
BLOCKS = array("Q", [512, 51_200])
UNPACKED_HEADER = struct.Struct("<8sQIIQQIIIII")
ROWS = 300
#: Rows that columns may have: contiguous, or with gaps.
SPARSE = [False, True]


def make_columns(sparse: bool = False, **changed: np.ndarray) -> SegmentIndex:
    source = random.Random(5)
    steps = np.arange(ROWS, dtype=np.uint32)
    arrays = {
        "time": np.cumsum(np.array([source.randrange(10**6) for _ in range(ROWS)], np.uint64)),
        "offset": (544 + 100 * steps).astype(np.uint32),
        "size": np.array([source.randrange(40, 100) for _ in range(ROWS)], np.uint32),
        "subject": np.array([source.randrange(9) for _ in range(ROWS)], np.uint32),
        "ttl": np.zeros(ROWS, np.uint32),
        "flags": np.array([source.choice((0, 0x8000)) for _ in range(ROWS)], np.uint16),
        "delta": 3 * steps if sparse else None,
    }
    return SegmentIndex.from_arrays(10, **{**arrays, **changed})


def encode(columns: SegmentIndex) -> bytes:
    return b"".join(ColumnFile(FILE_ID, columns, BLOCKS, SubjectTable(9, 77)).encode())


def encode_unpacked(file_id: ColumnFileId, found: DecodedColumns) -> bytes:
    """Encode a file as earlier versions did."""
    time, offset, size, subject, ttl, flags, delta = found.columns.to_arrays()
    blocks = np.array(found.blocks, "<u4")
    arrays = [time, offset, size, subject, ttl, *([] if delta is None else [delta]), blocks, flags]
    body = b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)
    head = UNPACKED_HEADER.pack(
        b"HRcol001",
        file_id.store_id,
        file_id.ident,
        file_id.segment,
        found.columns.base,
        file_id.end,
        found.columns.rows,
        len(blocks),
        file_id.generation,
        found.subject_count,
        delta is not None,
    ) + struct.pack("<I", crc32(body))
    return (head + struct.pack("<I", crc32(head))).ljust(UNPACKED_HEADER_BYTES, b"\0") + body


def decode(data: bytes) -> DecodedColumns | None:
    return decode_columns(reader_of(memoryview(data)), len(data), FILE_ID)


def to_lists(columns: SegmentIndex) -> list[list[int] | None]:
    return [None if each is None else each.tolist() for each in columns.to_arrays()]


@pytest.mark.parametrize("sparse", SPARSE)
def test_columns_are_read_back_as_they_were(sparse: bool) -> None:
    columns = make_columns(sparse)
    found = decode(encode(columns))
    assert found is not None
    assert to_lists(found.columns) == to_lists(columns)
    assert (found.columns.base, found.columns.alive_bytes) == (10, columns.alive_bytes)
    assert (found.blocks, found.subject_count, found.subjects_crc) == (BLOCKS, 9, 77)
    columns.seal()
    assert encode(columns) == encode(make_columns(sparse))


@pytest.mark.parametrize("sparse", SPARSE)
def test_a_file_of_an_earlier_version_is_read(sparse: bool) -> None:
    columns = make_columns(sparse)
    found = decode(encode_unpacked(FILE_ID, DecodedColumns(columns, BLOCKS, 9)))
    assert found is not None
    assert to_lists(found.columns) == to_lists(columns)
    assert (found.blocks, found.subject_count) == (BLOCKS, 9)


def test_no_changed_byte_is_accepted() -> None:
    columns = make_columns()
    for data in (encode(columns), encode_unpacked(FILE_ID, DecodedColumns(columns, BLOCKS, 9))):
        for at in range(0, len(data), 7):
            if data[:8] == b"HRcol001" and UNPACKED_HEADER.size + 8 <= at < UNPACKED_HEADER_BYTES:
                continue  # zeros that no checksum covers
            assert decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None
        assert decode(data[:-1]) is None
        assert decode(data + b"\0") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": np.full(ROWS, 9, np.uint32)},
        {"size": np.full(ROWS, 101, np.uint32)},
        {"offset": np.full(ROWS, 600, np.uint32)},
        {"delta": np.zeros(ROWS, np.uint32)},
    ],
    ids=["subject", "size", "offset", "delta"],
)
def test_rows_that_no_store_wrote_are_refused_despite_their_checksum(changed: dict[str, np.ndarray]) -> None:
    assert decode(encode(make_columns(**changed))) is None


@pytest.mark.parametrize("blocks", [[512, 1 << 63], [512, 100_352], [0, 512], [512, 512]])
def test_a_forged_table_of_blocks_is_refused(blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_file, "_are_blocks", lambda *_: True)
    packed = pack_columns(make_columns().to_arrays())
    table = np.array(blocks, np.uint64)
    data = b"".join(encode_columns(FILE_ID, 10, ROWS, packed, table, SubjectTable(9, 77)))
    monkeypatch.undo()
    assert decode(data) is None


def test_a_forged_number_of_blocks_or_rows_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_file, "_are_blocks", lambda *_: True)
    monkeypatch.setattr(column_file.column_packing, "unpack_column", None)  # would raise
    packed = pack_columns(make_columns().to_arrays())
    constant = np.broadcast_to(np.uint64(512), 100_000)
    assert decode(b"".join(encode_columns(FILE_ID, 10, ROWS, packed, constant, SubjectTable(9, 77)))) is None
    one = [pack_column(np.broadcast_to(np.uint64(1), 100_000))] * 6
    columns = encode_columns(FILE_ID, 10, 100_000, [*one, b""], np.array(BLOCKS), SubjectTable(9, 77))
    assert decode(b"".join(columns)) is None


def fill(store: Store) -> tuple[StreamLog, Naive]:
    log, naive = store.create("S"), Naive()
    for number in range(400):
        log.append(b"a.%d" % (number % 5), b"", b"%d" % number, 1_000 + number)
        naive.append(1_000 + number, b"a.%d" % (number % 5), b"", b"%d" % number, 0)
        if number % 20 == 0:
            commit(store)
    commit(store)
    return log, naive


def test_columns_are_not_used_with_other_subject_ids(tmp_path: Path) -> None:
    """A power loss may lose the subjects file, and an earlier version then writes it again, in another order."""
    store = open_small_store(tmp_path, TINY)
    _, naive = fill(store)
    store.close()
    store.disk.close()
    [path] = tmp_path.glob("streams/*/subjects.*")
    subjects, reordered = SubjectIndex(), SubjectIndex()
    decode_subjects(path.read_bytes(), subjects)
    for sid in reversed(range(len(subjects))):
        reordered.add(subjects.name(sid))
    path.write_bytes(encode_subjects(reordered, 0, len(reordered)))
    again = open_small_store(tmp_path, TINY)
    compare(again.logs["S"], naive, ((), (b"a.1",)))
    again.close()
    again.disk.close()


def test_a_store_of_an_earlier_version_opens(tmp_path: Path) -> None:
    store = open_small_store(tmp_path, TINY)
    log, naive = fill(store)
    store_id, ends = store.store_id, {segment.path: segment.end for segment in log.sealed_segments}
    store.close()
    store.disk.close()
    files = sorted(tmp_path.glob("streams/*/*.col"))
    assert files
    for path in files:
        number, generation, _ = path.name.split(".")
        end = ends[f"streams/{path.parent.name}/{number}.seg"]
        file_id = ColumnFileId(store_id, log.ident, int(number, 16), end, int(generation))
        data = path.read_bytes()
        found = decode_columns(reader_of(memoryview(data)), len(data), file_id)
        assert found is not None
        path.write_bytes(encode_unpacked(file_id, found))
    again = open_small_store(tmp_path, TINY)
    assert not again.report().repaired
    compare(again.logs["S"], naive, ((), (b"a.1",)))
    again.close()
    again.disk.close()
