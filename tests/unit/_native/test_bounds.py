"""Crafted input to the functions of the core: no access outside of a buffer, and the same error from both versions.

Most of these once read or wrote foreign memory; `make sanitize` runs them under AddressSanitizer.
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from support.native_and_pure import TWINS, Desk, load

HEAD = struct.Struct("<IHHIIQQ")
FAR = 1 << 40
MOST = (1 << 63) - 1


def module(name: str, twin: str) -> ModuleType:
    return importlib.import_module(f"headrace._native.{name}" + ("_pure" if twin == "pure" else ""))


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def records(twin: str) -> ModuleType:
    return module("records", twin)


def record(seq: int, subject: bytes = b"a", payload: bytes = b"x", **changed: int) -> bytes:
    """Return a record, with wrong lengths where these are given."""
    size = changed.get("size", HEAD.size + len(subject) + len(payload))
    head = HEAD.pack(size, changed.get("sl", len(subject)), 0, changed.get("hl", 0), 0, seq, 5)
    return head + subject + payload


#: Header lengths for which a 32-bit sum overflows to a small number.
WRAPPED = [0xFFFFFFFF, 0xFFFFFFFF - 31, 0xFFFFFFDE, 0x80000000]


def columns(records: ModuleType, rows: int = 10, *, subjects: int = 3) -> tuple[Any, Any]:
    table, found = records.SubjectIndex(), records.SegmentIndex()
    data = b"".join(record(seq, b"s%d" % (seq % subjects)) for seq in range(1, rows + 1))
    assert found.index_block(table, data, 0, len(data), 544) == rows
    return found, table


def arrays(rows: int = 10, **changed: Any) -> dict[str, Any]:
    """Return valid columns of records of 40 bytes, with others where these are given."""
    return {
        "time": np.ones(rows, np.uint64),
        "offset": (544 + 40 * np.arange(rows)).astype(np.uint32),
        "size": np.full(rows, 40, np.uint32),
        "subject": (np.arange(rows) % 3).astype(np.uint32),
        "ttl": np.zeros(rows, np.uint32),
        "flags": np.zeros(rows, np.uint16),
        **changed,
    }


# Records


@pytest.mark.parametrize("hl", WRAPPED)
def test_lengths_that_wrap_around_make_no_record(records: ModuleType, hl: int) -> None:
    data = record(1, hl=hl)
    table, found = records.SubjectIndex(), records.SegmentIndex()
    assert found.index_block(table, data, 0, len(data), 544) == -1
    log = records.LogWriter(records.OpenFrame(), 7, records.SubjectIndex(), 512, FAR, True)
    assert log.load(data) == -1
    assert (len(table), found.rows, log.last_seq, log.messages) == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="no record there"):
        records.decode_record(data, 0)


def test_a_block_with_one_bad_record_adds_no_row(records: ModuleType) -> None:
    table, found = records.SubjectIndex(), records.SegmentIndex()
    for bad in (
        record(3, hl=0xFFFFFFF0),
        record(2),
        record(1 << 63),
        record(0),
        b"x" * 31,
        record(3, size=20),
    ):
        data = record(1) + record(2) + bad
        assert found.index_block(table, data, 0, len(data), 544) == -1
    assert (found.rows, len(table)) == (0, 0)
    good = record(1) + record(2)
    assert found.index_block(table, good, 0, len(good), 544, 3) == -1
    assert found.index_block(table, good, 0, len(good), 544, 2) == 2


@pytest.mark.parametrize(
    ("start", "length"), [(-1, 10), (0, 1000), (1000, 1), (0, -1), (MOST, 1), (1, MOST), (-MOST, MOST)]
)
def test_a_block_lies_within_its_bytes(records: ModuleType, start: int, length: int) -> None:
    with pytest.raises(ValueError, match="no block there"):
        records.SegmentIndex().index_block(records.SubjectIndex(), record(1), start, length, 544)


@pytest.mark.parametrize("at", [-1, 3, MOST, -MOST])
def test_a_record_lies_within_its_bytes(records: ModuleType, at: int) -> None:
    with pytest.raises(ValueError, match="no record there"):
        records.decode_record(record(1), at)


def test_a_record_beyond_all_sequences_is_none(records: ModuleType) -> None:
    """The sequence after the last one overflowed to 0, which is not a sequence."""
    log = records.LogWriter(records.OpenFrame(), 7, records.SubjectIndex(), 512, FAR, True)
    assert log.load(record((1 << 64) - 1)) == -1
    assert log.append(b"a", b"", b"", 1) == 1


# Columns


@pytest.mark.parametrize("row", [-1, 10, FAR, -FAR])
@pytest.mark.parametrize("method", ["seq", "is_live", "tombstone", "row", "get_offset", "get_time"])
def test_a_row_that_is_none(records: ModuleType, method: str, row: int) -> None:
    found, _ = columns(records)
    found.tombstone(3)
    with pytest.raises(IndexError):
        getattr(found, method)(row)
    assert found.alive == 9


def test_a_span_that_is_none(records: ModuleType) -> None:
    found, table = columns(records)
    mask = np.ones(8, np.uint8)
    for method in (found.next, found.prev, found.count, found.seqs):
        for each in (None, mask):
            with pytest.raises(IndexError):
                method(table, each, -5, 3)
    for lo, hi in ((-1, 3), (0, 11), (0, FAR)):
        with pytest.raises(IndexError):
            found.find_matching(table, mask, lo, hi, 5)
        with pytest.raises(IndexError):
            found.apply_live_bits(b"\0" * 4, lo, hi)
    for method in (found.next_for_subject, found.prev_for_subject):
        with pytest.raises(IndexError):
            method(0, -4, 3)
    with pytest.raises(ValueError, match="fewer entries"):
        found.last_per_subject(table, None, np.zeros(1, np.uint8), 10)
    with pytest.raises(IndexError):
        table.match(b"s*", -3)
    assert found.alive == 10


@pytest.mark.parametrize("name", ["offset", "size", "subject", "ttl", "flags", "delta"])
def test_columns_have_one_length(records: ModuleType, name: str) -> None:
    given = arrays()
    short = given.get(name, given["ttl"])[:4]
    with pytest.raises(ValueError, match="different lengths"):
        records.SegmentIndex.from_arrays(1, **arrays(**{name: short}))


UNSOUND = {
    "a subject without an id": {"subject": np.full(10, 3, np.uint32)},
    "one such": {"subject": np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFFFFFFFF], np.uint32)},
    "a record of no size": {"size": np.zeros(10, np.uint32)},
    "records that overlap": {"size": np.full(10, 41, np.uint32)},
    "a record that ends nowhere": {"size": np.array([40] * 9 + [0xFFFFFFFF], np.uint32)},
    "records that descend": {"offset": (944 - 40 * np.arange(10)).astype(np.uint32)},
    "records in the header": {"offset": (40 * np.arange(10)).astype(np.uint32)},
    "records behind the end": {"offset": (545 + 40 * np.arange(10)).astype(np.uint32)},
    "sequences that descend": {"delta": np.arange(10, dtype=np.uint32)[::-1].copy()},
    "sequences that stay": {"delta": np.zeros(10, np.uint32)},
    "no first sequence": {"delta": np.arange(1, 11, dtype=np.uint32)},
}


@pytest.mark.parametrize("what", UNSOUND)
def test_rows_that_no_store_wrote(records: ModuleType, what: str) -> None:
    assert records.SegmentIndex.from_arrays(1, **arrays()).is_sound(3, 944)
    assert records.SegmentIndex.from_arrays(1, **arrays(delta=np.arange(10, dtype=np.uint32))).is_sound(
        3, 944
    )
    assert not records.SegmentIndex.from_arrays(1, **arrays(**UNSOUND[what])).is_sound(3, 944)


@pytest.mark.parametrize("base", [0, 1 << 63, (1 << 64) - 1])
def test_sequences_that_no_store_gave(records: ModuleType, base: int) -> None:
    assert not records.SegmentIndex.from_arrays(base, **arrays()).is_sound(3, 944)


def test_rows_whose_subject_is_not_known_are_not_counted(records: ModuleType) -> None:
    log = records.LogWriter(records.OpenFrame(), 7, records.SubjectIndex(), 512, FAR, True)
    log.append(b"a", b"", b"", 1)
    foreign = records.SegmentIndex.from_arrays(1, **arrays(subject=np.full(10, 7, np.uint32)))
    with pytest.raises(IndexError):
        log.add_segment_counts(foreign)
    with pytest.raises(IndexError):
        log.subtract_rows(foreign, 0, 5)
    with pytest.raises(IndexError):
        log.subtract_seqs(foreign, np.array([3], np.uint64))
    for lo, hi in ((-1, 1), (0, 11)):
        with pytest.raises(IndexError):
            log.subtract_rows(records.SegmentIndex.from_arrays(1, **arrays()), lo, hi)
    assert (log.messages, foreign.alive) == (1, 10)


def test_sealed_columns_keep_what_they_had(records: ModuleType) -> None:
    found, table = columns(records)
    rows = [found.row(i) for i in range(10)]
    trimmed = [None if each is None else each.tolist() for each in found.to_arrays()]
    found.seal()
    assert [found.row(i) for i in range(10)] == rows
    assert [None if each is None else each.tolist() for each in found.to_arrays()] == trimmed
    assert found.tombstone(4)
    assert found.seqs(table, None, 0, 10).tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    with pytest.raises(ValueError, match="read-only"):
        found.index_block(table, record(11), 0, len(record(11)), 2000)


@pytest.mark.parametrize("data", [b"\x01", b"\x05\0abc", b"\x01\0a\xff\xff", b"\x01\0a\x01\0b\x02\0c"])
def test_a_table_of_subjects_is_whole_or_nothing(records: ModuleType, data: bytes) -> None:
    table = records.SubjectIndex()
    assert not table.load(data)
    assert not table.load(b"\x01\0a\x01\0b", 3)
    assert len(table) == 0
    assert table.load(b"\x01\0a\x01\0b", 2)
    assert len(table) == 2


# Merging


def packed(records: ModuleType, **changed: Any) -> Any:
    """Return ten records of 40 bytes, and a packer that copies those that columns describe."""
    table = records.SubjectIndex()
    for name in (b"s0", b"s1", b"s2"):
        table.add(name)
    data = b"".join(record(1 + i, b"s%d" % (i % 3), b"payloa") for i in range(10))
    packer = records.BlockBuilder(table, 4096)
    packer.copy_rows(records.SegmentIndex.from_arrays(1, **arrays(**changed)), 0, 10, data, 544)
    return packer.columns


def test_a_merge_takes_rows_that_describe_their_records(records: ModuleType) -> None:
    assert packed(records).rows == 10
    wrong = {
        "subject": np.zeros(10, np.uint32),
        "size": np.full(10, 33, np.uint32),
        "offset": np.full(10, 544, np.uint32),
        "delta": np.arange(0, 20, 2, dtype=np.uint32),
    }
    for name, values in wrong.items():
        with pytest.raises(ValueError, match="does not match its record"):
            packed(records, **{name: values})
    for outside in (
        {"subject": np.full(10, 0xFFFFFFFF, np.uint32)},
        {"offset": np.full(10, 0xFFFFFFF0, np.uint32)},
        {"offset": np.zeros(10, np.uint32)},
        {"size": np.full(10, 0xFFFFFFFF, np.uint32)},
    ):
        with pytest.raises(ValueError, match="a row"):
            packed(records, **outside)
    packer = records.BlockBuilder(records.SubjectIndex(), 4096)
    for lo, hi in ((-1, 5), (0, 11)):
        with pytest.raises(IndexError):
            packer.copy_rows(records.SegmentIndex.from_arrays(1, **arrays()), lo, hi, b"", 544)


# Server replies


def frame(lengths: bytes, rest: bytes = b"") -> bytearray:
    return bytearray(b"HMSG I 1 " + lengths + rest)


@pytest.mark.parametrize(
    "lengths",
    [
        b"\n",
        b"\r\n",
        b"x\n",
        b"10 10\n",
        b"10\r\n",
        b" \r\n",
        b"-1 -1\r\n",
        b"10 -1\r\n",
        b"+12 20\r\n",
        b"1_2 2_0\r\n",
        b"12  20\r\n",
        b"9223372036854775808 1\r\n",
        b"1 2 3\r\n",
        b"1" * 24,
        b"9" * 40,
    ],
)
def test_a_frame_with_such_lengths_is_refused(twin: str, lengths: bytes) -> None:
    for rest in (b"", b"x" * 100):
        with pytest.raises(ValueError, match="length"):
            module("reply_scanner", twin).ReplyScanner(b"I").scan(frame(lengths, rest))


def test_the_parser_waits_for_the_rest_of_a_frame_header(twin: str) -> None:
    for lengths in (b"", b"1", b"10 ", b"10 20", b"10 20\r", b"123456789012345678 99999"[:23]):
        frames = module("reply_scanner", twin).ReplyScanner(b"I")
        assert frames.scan(frame(lengths)) is False
        assert (frames.position, frames.count) == (0, 0)


def reply(
    seq: bytes = b"7", time: bytes = b"1970-01-01T00:00:01Z", head: int = 0, opening: bytes = b"NATS/1.0\r\n"
) -> bytearray:
    header = (
        b"%sNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: %s\r\nNats-Time-Stamp: %s\r\n"
        b"Nats-Num-Pending: 1\r\nNats-Last-Sequence: 0\r\n\r\n" % (opening, seq, time)
    )
    return frame(b"%d %d\r\n" % (len(header) + head, len(header) + 5), header + b"hello\r\n")


@pytest.mark.parametrize(
    "time",
    [
        b"9999-12-31T23:59:59.999999999Z",
        b"2262-04-12T00:00:00Z",
        b"1969-12-31T23:59:59Z",
        b"2026-13-01T00:00:00Z",
        b"2026-02-30T00:00:00Z",
        b"2026-02-00T00:00:00Z",
        b"2026-02-01T24:00:00Z",
        b"2026-02-01T00:60:00Z",
        b"2026-02-01T00:00:60Z",
        b"2026-02-01T-1:00:00Z",
        b"2026-02-01T00x00:00Z",
        b"2026x02-01T00:00:00Z",
        b"2026-02-01T00:00:00.Z",
        b"2026-02-01T00:00:00.1234567890Z",
        b"2026-02-01T00:00:00",
        b"20260201T000000Z",
        b"2026-W05-1T00:00:00Z",
        b"Z",
        b"",
    ],
)
def test_a_time_that_is_none(twin: str, time: bytes) -> None:
    with pytest.raises(ValueError, match="a valid sequence and time"):
        module("reply_scanner", twin).ReplyScanner(b"I").scan(reply(time=time))


@pytest.mark.parametrize("seq", [b"", b"-1", b"x", b"+1", b"1_0", b"9" * 19])
def test_a_sequence_that_is_none(twin: str, seq: bytes) -> None:
    with pytest.raises(ValueError, match="a valid sequence and time"):
        module("reply_scanner", twin).ReplyScanner(b"I").scan(reply(seq=seq))


@pytest.mark.parametrize("opening", [b"", b"\n", b"Nats-Stream: S\r\n"[:3]])
def test_headers_that_begin_otherwise(twin: str, opening: bytes) -> None:
    frames = module("reply_scanner", twin).ReplyScanner(b"I")
    if opening == b"\n":
        assert frames.scan(reply(opening=opening)) is False
        assert frames.count == 1
    else:
        with pytest.raises(ValueError, match="Nats-Stream"):
            frames.scan(reply(opening=opening))


@pytest.mark.parametrize("head", [-8, -60, -100, 3, 5])
def test_a_header_that_ends_elsewhere(twin: str, head: int) -> None:
    with pytest.raises(ValueError, match="Nats-"):
        module("reply_scanner", twin).ReplyScanner(b"I").scan(reply(head=head))


BAD_OFFSETS = [[0, 5, 3], [3, 1, 1], [-1, 1, 2], [0, 1, 999], [0, 999, 2], [-(2**31), 2**31 - 1, 0]]


@pytest.mark.parametrize("offsets", BAD_OFFSETS)
@pytest.mark.parametrize("place", range(3))
def test_offsets_that_lie_outside_of_their_column(twin: str, offsets: list[int], place: int) -> None:
    good = (np.array([0, 1, 2], np.int32), b"ab")
    given = [good, good, good]
    given[place] = (np.array(offsets, np.int32), b"ab")
    with pytest.raises(ValueError, match="outside"):
        module("reply_scanner", twin).encode_publishes(*given, b"", b"", 0)


def test_columns_of_nothing_make_no_publishes(twin: str) -> None:
    nothing = (np.array([], np.int32), b"")
    frames = module("reply_scanner", twin)
    assert frames.encode_publishes(nothing, (), nothing, b"", b"", 0) == b""
    with pytest.raises(ValueError, match="must not be negative"):
        frames.encode_publishes(nothing, (), nothing, b"", b"m", -1)


# Reading


def test_runs_begin_within_their_sequences(twin: str) -> None:
    kernel = load(twin)
    data, seqs = memoryview(record(1) + record(2)), np.array([1, 2], np.uint64)
    for at in (-1, -MOST):
        with pytest.raises(IndexError):
            kernel.encode_replies([], data, seqs, at, 5, 1000, b"r", b"", 0, 0)
        with pytest.raises(IndexError):
            kernel.encode_deliveries([], data, seqs, at, 5, b"a.", 1, 0, 0, -1, False)
    assert kernel.encode_replies([], data, seqs, 1, MOST, 1000, b"r", None, 0, 0) == (1, 2)
    assert kernel.encode_replies([], data, seqs, MOST, MOST, 1000, b"r", None, 0, 0) == (0, 0)
    assert kernel.encode_replies([], data, seqs, 0, -MOST, 1000, b"r", None, 0, 0) == (0, 0)


def test_a_number_that_needs_64_bits_is_none(twin: str) -> None:
    parts = load(twin).split_ack_subject
    assert parts(b"$JS.ACK.S.C.1.9223372036854775807.3.4.5") == (b"S.C", 1, MOST, 3)
    assert parts(b"$JS.ACK.S.C.1.9223372036854775808.3.4.5") == (b"S.C", 1, -1, 3)
    assert parts(b"$JS.ACK.S.C.9999999999999999999.2.18446744073709551616.4.5") == (b"S.C", -1, 2, -1)


def test_a_record_whose_lengths_wrap_around_is_not_sent(twin: str) -> None:
    kernel = load(twin)
    for hl in WRAPPED:
        data = record(1, hl=hl)
        with pytest.raises(ValueError, match="no record there"):
            kernel.encode_reply(data, 0, b"")
        assert kernel.encode_replies(
            [], memoryview(data), np.array([1], np.uint64), 0, 1, 99, b"", b"", 0, 0
        ) == (
            0,
            0,
        )
        assert module("snappy", twin).encode_entries(memoryview(data), np.array([1], np.uint64)) == (b"", 0)


def test_ids_of_any_time_leave_the_window_alike(twin: str) -> None:
    window = load(twin).DedupWindow(10)
    window.restore(struct.pack("<QQH", 1, (1 << 64) - 1, 1) + b"a" + struct.pack("<QQH", 2, 5, 1) + b"b")
    assert (window.find(b"a", 100), window.find(b"b", 3)) == (1, 2)
    with pytest.raises(ValueError, match="must not be negative"):
        load(twin).DedupWindow(-1)


def test_entries_begin_within_their_bytes(twin: str) -> None:
    blocks = module("snappy", twin)
    for at, name_max, entry_max in ((-1, 10, 10), (-MOST, 10, 10), (0, -1, 10), (0, 10, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            blocks.parse_entries(b"\0" * 20, at, name_max, entry_max, 1)
    assert blocks.parse_entries(b"\0" * 4, MOST, 10, 10, 1) == ([], MOST)
    huge = b"".join(blocks_number(value) for value in (MOST, 0, 1, 1 << 61, 1 << 61))
    assert blocks.parse_entries(huge, 0, MOST, MOST, 1) == ([], 0)


def blocks_number(value: int) -> bytes:
    varint = module("snappy", "pure").encode_varint
    made: bytes = varint(value)
    return made


def test_a_chunk_has_no_more_than_its_bytes(twin: str) -> None:
    client = Desk(twin).client()
    for data in (b"PING\r\n", bytearray(b"PING\r\n"), memoryview(b"PING\r\n")):
        with pytest.raises(ValueError, match="larger than the chunk"):
            client.parser.feed(data, 7)
        client.parser.feed(data, 6)
