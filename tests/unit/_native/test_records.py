"""Records, compiled and pure: packing, columns, subject ids."""

import struct
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import records_pure

try:
    from headrace._native import records as compiled
except ImportError:
    compiled = None

TWINS = [records_pure] + ([compiled] if compiled is not None else [])
HEAD = struct.Struct("<IHHIIQQ")
ENTRY = struct.Struct("<HHIQ")


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__.rsplit(".", 1)[1])
def records(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def appender(records: ModuleType, block: int = 512, journaled: bool = True, first: int = 1):
    return records.LogWriter(records.OpenFrame(), 7, records.SubjectIndex(), block, 1 << 40, journaled, first)


def entries(body: bytes) -> list[tuple[int, int, bytes]]:
    found, at = [], 0
    while at < len(body):
        kind, _, ident, length = ENTRY.unpack_from(body, at)
        found.append((kind, ident, bytes(body[at + 16 : at + 16 + length])))
        at += 16 + length
    return found


def gather(records: ModuleType, logs: list[Any]) -> tuple[bytes, bytes]:
    """Return the body of a frame, joined, and its watermarks."""
    pieces, marks = records.build_frame_body(logs)
    return b"".join(pieces), marks


def test_a_record_has_the_documented_bytes(records: ModuleType) -> None:
    log = appender(records)
    assert log.append(b"a.b", b"H: 1", b"payload", 123, 60, 5) == 1
    body, marks = gather(records, log.open_frame.dirty_logs)
    [(kind, ident, record)] = entries(body)
    assert (kind, ident) == (2, 7)
    assert HEAD.unpack_from(record) == (32 + 3 + 4 + 7, 3, 5 | 0x8000, 4, 60, 1, 123)
    assert record[32:] == b"a.bH: 1payload"
    assert marks == struct.pack("<IQ", 7, 1)
    assert records.decode_record(record, 0) == (123, b"a.b", b"H: 1", b"payload", 60)


def test_gather_takes_only_what_is_new(records: ModuleType) -> None:
    log = appender(records)
    gate = log.open_frame
    log.append(b"a", b"", b"1", 1)
    first, gate.dirty_logs = gate.dirty_logs, []
    gather(records, first)
    assert log.committed_seq == 0
    records.mark_committed(first)
    assert log.committed_seq == 1
    log.append(b"a", b"", b"2", 2)
    body, _ = gather(records, gate.dirty_logs)
    assert [HEAD.unpack_from(data)[5] for _, _, data in entries(body)] == [2]


def test_cut_blocks_and_the_tail_arrive_in_order(records: ModuleType) -> None:
    log = appender(records, block=200)
    for number in range(10):
        log.append(b"a", b"", bytes([number]) * 50, number)
    assert len(log.blocks) == 4
    assert [block.offset for block in log.blocks] == [512, 1024, 1536, 2048]
    body, _ = gather(records, log.open_frame.dirty_logs)
    data = b"".join(record for _, _, record in entries(body))
    assert [HEAD.unpack_from(data, at)[5] for at in range(0, len(data), 83)] == list(range(1, 11))


def test_a_record_larger_than_a_block_gets_its_own(records: ModuleType) -> None:
    log = appender(records, block=128)
    log.append(b"a", b"", b"x", 1)
    log.append(b"a", b"", b"y" * 1000, 1)
    log.append(b"a", b"", b"z", 1)
    assert [block.records for block in log.blocks] == [1, 1]
    assert log.columns.row(2)[0] == log.block_offset + 32


def test_much_of_one_log_and_little_of_another(records: ModuleType) -> None:
    log, other = appender(records, block=20_000), appender(records)
    for number in range(8):
        log.append(b"a", b"", bytes([number]) * 9_000, number)
    log.record_trim(2)
    other.append(b"b", b"", b"little", 1)
    body, marks = gather(records, [log, other])
    found = entries(body)
    data = b"".join(record for kind, _, record in found if kind == 2 and len(record) > 1_000)
    assert [data[at + 33] for at in range(0, len(data), 9_033)] == list(range(8))
    assert (5, 7, struct.pack("<Q", 2)) in found
    assert [record[33:] for _, _, record in found if len(record) < 100 and len(record) > 8] == [b"little"]
    assert marks == struct.pack("<IQ", 7, 8) + struct.pack("<IQ", 7, 1)
    assert gather(records, [log])[0] == b""


def test_a_frame_does_not_change_when_its_log_grows(records: ModuleType) -> None:
    log = appender(records, block=100_000)
    for number in range(5):
        log.append(b"a", b"", bytes([number]) * 9_000, number)
    pieces, _ = records.build_frame_body([log])
    before = b"".join(pieces)
    for number in range(20):
        log.append(b"a", b"", bytes([number]) * 9_000, number)
    assert b"".join(pieces) == before


def test_views_of_a_tail_do_not_change_when_it_grows(records: ModuleType) -> None:
    log = appender(records, block=65536)
    log.append(b"a", b"", b"first", 1)
    view = memoryview(log.tail)[: log.tail_used]
    before = bytes(view)
    for _ in range(500):
        log.append(b"a", b"", b"x" * 100, 1)
    assert bytes(view) == before


def test_load_takes_records_verbatim_and_once(records: ModuleType) -> None:
    source, target = appender(records), appender(records, block=300)
    for number in range(20):
        source.append(b"s.%d" % (number % 3), b"h" * (number % 2), b"p" * number, number)
    body, _ = gather(records, source.open_frame.dirty_logs)
    [*parts] = (data for _, _, data in entries(body))
    assert sum(target.load(part) for part in parts) == 20
    assert [target.load(part) for part in parts] == [0] * len(parts)
    assert (target.messages, target.bytes, target.last_seq) == (source.messages, source.bytes, 20)
    assert gather(records, [target])[0] == b""
    assert target.load(b"\1" * 40) == -1


def test_a_closed_or_full_frame_refuses_records(records: ModuleType) -> None:
    class Refused(Exception):
        pass

    def refuse(size: int) -> None:
        raise Refused(size)

    log = appender(records)
    log.open_frame.extend = refuse
    log.open_frame.max_bytes = 100
    log.append(b"a", b"", b"x" * 60, 1)
    with pytest.raises(Refused):
        log.append(b"a", b"", b"x" * 60, 1)
    log.open_frame.max_bytes, log.open_frame.closed = 1 << 40, True
    with pytest.raises(Refused):
        log.append_many([(b"a", b"", b"")], 1)
    assert log.last_seq == 1
    memory = records.LogWriter(log.open_frame, 8, records.SubjectIndex(), 512, 1 << 40, False)
    assert memory.append(b"a", b"", b"", 1) == 1


def upstream_view(records: ModuleType, messages: list[tuple[bytes, bytes, bytes]]) -> memoryview:
    """Return the records of a log with these messages, at times from 1,000 on."""
    log = appender(records, block=1 << 20)
    log.append_many(messages, 1000, step_ns=1)
    return memoryview(bytes(log.tail[: log.tail_used]))


def stored(records: ModuleType, log: Any) -> list[tuple[int, bytes, bytes, bytes]]:
    """Return time, subject, header and payload of each message in the tail of a log."""
    rows = [log.columns.row(row)[0] for row in range(log.columns.rows)]
    first = log.block_offset + 32
    return [records.decode_record(log.tail, offset - first)[:4] for offset in rows]


SEQS = np.array([1, 2, 3, 4, 5], np.uint64)
SOURCE_HEADER = (b"NATS/1.0\r\nSource: B ", b" > > ", b"\r\n\r\n")


class TestAppendCopies:
    def test_of_a_mirror_up_to_a_record_with_headers(self, records: ModuleType) -> None:
        view = upstream_view(
            records, [(b"a", b"", b"one"), (b"b", b"", b"three"), (b"c", b"H: 1", b""), (b"d", b"", b"")]
        )
        log = appender(records, block=1 << 20)
        assert log.append_copies(view, SEQS, 0, 9, -1, 100) == (2, 208)
        assert stored(records, log) == [(1000, b"a", b"", b"one"), (1001, b"b", b"", b"three")]
        assert log.append_copies(view, SEQS, 2, 9, -1, 100) == (0, 0)
        assert (log.last_seq, log.messages, list(log.subject_index.counts)) == (2, 2, [1, 1])

    def test_of_a_mirror_up_to_a_gap(self, records: ModuleType) -> None:
        view = upstream_view(records, [(b"a", b"", b"x")] * 5)
        log = appender(records)
        assert log.append_copies(view, np.array([1, 2, 4], np.uint64), 0, 9, -1, 0) == (2, 2)
        assert log.append_copies(view, np.array([4, 5], np.uint64), 0, 9, -1, 0) == (0, 0)

    def test_of_a_source_with_a_header_and_times_of_its_own(self, records: ModuleType) -> None:
        view = upstream_view(records, [(b"a", b"", b"1"), (b"skipped", b"", b"2"), (b"a.b", b"", b"3")])
        log = appender(records, block=1 << 20, first=7)
        seqs = np.array([1, 3, 4], np.uint64)
        assert log.append_copies(view, seqs, 0, 9, -1, 0, SOURCE_HEADER, 50) == (2, 2)
        header = b"NATS/1.0\r\nSource: B %d > > %s\r\n\r\n"
        assert stored(records, log) == [
            (50, b"a", header % (1, b"a"), b"1"),
            (51, b"a.b", header % (3, b"a.b"), b"3"),
        ]
        assert log.last_seq == 8

    def test_stops_at_both_limits_and_at_the_end_of_the_view(self, records: ModuleType) -> None:
        view = upstream_view(records, [(b"a", b"", b"x" * 10)] * 3)
        for count_max, size_max, expected in (
            (2, -1, (2, 30)),
            (9, 14, (1, 15)),
            (9, 15, (2, 30)),
            (9, -1, (3, 45)),
        ):
            assert appender(records).append_copies(view, SEQS, 0, count_max, size_max, 5) == expected
        assert appender(records).append_copies(view[:-1], SEQS, 0, 9, -1, 5) == (2, 30)
        assert appender(records).append_copies(memoryview(b""), SEQS, 0, 9, -1, 5) == (0, 0)

    def test_leaves_what_the_frame_may_not_hold(self, records: ModuleType) -> None:
        view = upstream_view(records, [(b"a", b"", b"x" * 10)] * 2 + [(b"a", b"", b"x" * 5000)])
        log = records.LogWriter(records.OpenFrame(), 7, records.SubjectIndex(), 512, 1000, True)
        log.open_frame.max_bytes = 50
        assert log.append_copies(view, SEQS, 0, 9, -1, 0) == (1, 10)
        log.open_frame.max_bytes = 1 << 40
        assert log.append_copies(view, SEQS, 1, 9, -1, 0) == (1, 10)  # the third is large
        log.open_frame.closed = True
        assert log.append_copies(view, SEQS, 0, 9, -1, 0, SOURCE_HEADER) == (0, 0)


def test_bytes_follow_the_formula_of_nats_server(records: ModuleType) -> None:
    stored, memory = appender(records), appender(records, journaled=False)
    for log in (stored, memory):
        log.append_many([(b"abc", b"", b"12345"), (b"abc", b"hdr", b"12345")], 1)
    assert stored.bytes == (30 + 3 + 5) + (30 + 3 + 5 + 4 + 3)
    assert memory.bytes == (16 + 3 + 5) + (16 + 3 + 3 + 5)
    stored.subtract_rows(stored.columns, 0, 2)
    assert stored.bytes == 0


def test_removals_are_runs(records: ModuleType) -> None:
    log = appender(records)
    log.append_many([(b"a", b"", b"")] * 10, 1)
    gather(records, log.open_frame.dirty_logs)
    for seq in (3, 4, 5, 9):
        log.record_removals(seq, seq)
    log.record_trim(2)
    log.record_advance(20)
    log.mark_dirty()
    body, _ = gather(records, [log])
    assert [(kind, data) for kind, _, data in entries(body)] == [
        (4, struct.pack("<4Q", 3, 5, 9, 9)),
        (5, struct.pack("<Q", 2)),
        (6, struct.pack("<Q", 20)),
    ]


def test_gaps_make_columns_sparse(records: ModuleType) -> None:
    log = appender(records)
    for seq in (1, 2, 10, 11, 500):
        log.last_seq = seq - 1
        log.append(b"a", b"", b"", seq)
    columns = log.columns
    assert [columns.seq(row) for row in range(5)] == [1, 2, 10, 11, 500]
    assert [columns.find_row(seq) for seq in (0, 1, 3, 10, 500, 501, 1 << 50)] == [-1, 0, -1, 2, 4, -1, -1]
    assert [columns.lower_bound(seq) for seq in (0, 3, 11, 501)] == [0, 2, 3, 5]
    far = 1 << 40
    log.last_seq = far
    log.append(b"a", b"", b"", 1)
    assert log.columns.base == far + 1


def test_live_bits_come_back(records: ModuleType) -> None:
    log = appender(records)
    log.append_many([(b"a", b"", b"")] * 21, 1)
    assert log.columns.live_bits() == b""
    for row in (0, 7, 8, 20):
        assert log.columns.tombstone(row)
        assert not log.columns.tombstone(row)
    bits = log.columns.live_bits()
    other = appender(records)
    other.append_many([(b"a", b"", b"")] * 21, 1)
    other.columns.apply_live_bits(bits)
    assert other.columns.alive == 17
    assert [other.columns.is_live(row) for row in (0, 1, 7, 8, 20)] == [False, True, False, False, False]
    assert other.columns.live_bits(1, 7) == b""


def test_a_block_is_scanned_into_rows(records: ModuleType) -> None:
    log = appender(records, block=4096)
    log.append_many([(b"s.%d" % number, b"h", b"p" * number) for number in range(30)], 5, 9, 3)
    columns, subjects = records.SegmentIndex(), records.SubjectIndex()
    data = b"pad" + bytes(log.tail[: log.tail_used])
    assert columns.index_block(subjects, data, 3, log.tail_used, 1000) == 30
    assert columns.row(4)[1:] == log.columns.row(4)[1:]
    assert columns.row(0)[0] == 1000
    assert subjects.name(29) == b"s.29"
    assert columns.index_block(subjects, data, 3, log.tail_used, 1000) == -1  # not ascending
    assert records.SegmentIndex().index_block(subjects, data, 3, 40, 0) == -1  # ends within a record


def test_subjects_get_consecutive_ids(records: ModuleType) -> None:
    subjects = records.SubjectIndex()
    names = [b"a", b"a.b", b"a.b.c", b"b", b"b.x", b"x" * 300, b""]
    assert [subjects.add(name) for name in names] == list(range(len(names)))
    assert [subjects.add(name) for name in names] == list(range(len(names)))
    assert subjects.find(b"a.b") == 1
    assert subjects.find(b"zzz") == -1
    assert subjects.match(b"a.*").tolist() == [1]
    assert subjects.match(b"a.>").tolist() == [1, 2]
    assert subjects.match(b"*").tolist() == [0, 3, 5]
    assert subjects.match(b"*.*", 2).tolist() == [4]
    assert subjects.match(b">").tolist() == [0, 1, 2, 3, 4, 5]
    other = records.SubjectIndex()
    assert other.load(subjects.dump(0, 7))
    assert [other.name(sid) for sid in range(7)] == names
    assert not other.load(b"\5\0abc")
    with pytest.raises(IndexError):
        subjects.name(7)
    with pytest.raises(ValueError):
        subjects.add(b"x" * 65536)


def test_many_subjects_keep_their_ids(records: ModuleType) -> None:
    subjects = records.SubjectIndex()
    names = [b"devices.%d.state" % number for number in range(5000)]
    for name in names:
        subjects.add(name)
    assert [subjects.find(name) for name in names] == list(range(5000))
    assert len(subjects.counts) == 5000


@pytest.mark.skipif(compiled is None, reason="no compiled kernel")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"a.b", b"c.d.e", b"x"]),
            st.binary(max_size=5),
            st.binary(max_size=200),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 40)),
)
def test_the_twins_agree_byte_for_byte(messages, removals) -> None:
    logs = [appender(twin, block=300) for twin in TWINS]
    poured = []
    for twin, log in zip(TWINS, logs, strict=True):
        for number, (subject, header, payload, gap) in enumerate(messages):
            log.last_seq += gap
            log.append(subject, header, payload, number, number % 5, number % 7)
        for row in removals:
            if row < log.columns.rows:
                log.subtract_rows(log.columns, row, row + 1)
        poured.append(gather(twin, [log]))
    one, two = logs
    assert poured[0] == poured[1]
    assert (one.messages, one.bytes, one.last_seq, one.num_subjects) == (
        two.messages,
        two.bytes,
        two.last_seq,
        two.num_subjects,
    )
    assert [block.view for block in one.blocks] == [block.view for block in two.blocks]
    assert one.columns.live_bits() == two.columns.live_bits()
    if one.columns.rows:
        for left, right in zip(one.columns.to_arrays(), two.columns.to_arrays(), strict=True):
            assert np.array_equal(left, right)
    for name in ("counts", "firsts", "lasts"):
        assert np.array_equal(getattr(one.subject_index, name), getattr(two.subject_index, name))


@pytest.mark.parametrize("sparse", [False, True])
def test_sealed_columns_answer_like_growing_ones(records: ModuleType, sparse: bool) -> None:
    """Packed columns, in the compiled version, and arrays give the same results."""
    log = appender(records, 4096)
    for number in range(700):
        if sparse and number % 9 == 0:
            log.last_seq += number % 5
        header = b"H: 1" if number % 4 == 0 else b""
        log.append(b"s.%d" % (number * 7 % 13), header, b"x" * (number % 31), 10**9 + 13 * number, number % 3)
    columns, subjects = log.columns, log.subject_index
    for row in range(0, 700, 11):
        columns.tombstone(row)

    def answers() -> list[Any]:
        rows = np.arange(0, 700, 3)
        seqs = columns.get_seqs(rows)
        mask = np.ones(8, np.uint8)
        seen = np.zeros(len(subjects), np.uint8)
        return [
            [columns.row(row) for row in range(700)],
            [(columns.get_offset(row), columns.get_end(row), columns.get_time(row)) for row in range(700)],
            [columns.find_offset(offset, 5, 650) for offset in (0, 600, 5000, 5001, 20_000, 1 << 40)],
            [columns.lower_bound(seq) for seq in range(0, 1800, 7)],
            [columns.find_live_row(seq) for seq in range(0, 1800, 7)],
            [columns.first_at_time(10**9 + step) for step in (0, 1, 5000, 10**6)],
            columns.find_latest_time(),
            *(found.tolist() for found in (seqs, columns.find_rows(seqs), columns.get_times(rows))),
            *(found.tolist() for found in (columns.get_subjects(rows), columns.get_ttls(rows))),
            columns.get_sizes(3, 600, -2, 4).tolist(),
            columns.seqs(subjects, mask, 0, 700).tolist(),
            *(
                columns.seqs(subjects, each, 5, 700, most).tolist()
                for each in (None, mask)
                for most in (0, 3, 900)
            ),
            columns.next_for_subject(2, 100, 700),
            columns.prev_for_subject(2, 100, 700),
            columns.last_per_subject(subjects, mask, seen, 690).tolist(),
            columns.live_bits(),
            columns.is_sound(len(subjects), 1 << 20),
            [None if each is None else each.tolist() for each in columns.to_arrays()],
            (columns.alive, columns.alive_bytes),
        ]

    before = answers()
    columns.seal()
    assert answers() == before
    moved = np.arange(len(subjects), dtype=np.uint32)[::-1].copy()
    columns.set_subjects(columns.encode_subjects(columns.map_subjects(moved)))
    assert columns.get_subjects(np.arange(700)).tolist() == [moved[row[2]] for row in before[0]]
    for rows in ([-1], [700]):
        if records is compiled:
            with pytest.raises(IndexError):
                columns.get_times(np.array(rows))


def test_packed_columns_that_are_none(records: ModuleType) -> None:
    good = [b"", b"", b"", b"", b"", b"", b""]
    assert records.SegmentIndex.from_packed(1, 0, good).rows == 0
    with pytest.raises(ValueError, match="packed"):
        records.SegmentIndex.from_packed(1, 5, good)
    # Every column may have 64 bits when it is packed; rows with so large values are not sound.
    huge = struct.pack("<QII", 1 << 40, 0, 0)
    fine = [struct.pack("<QII", value, 0, 0) for value in (1, 544, 40, 0, 0, 0)]
    for at in range(1, 6):
        found = records.SegmentIndex.from_packed(1, 1, [*fine[:at], huge, *fine[at + 1 :], b""])
        assert not found.is_sound(1, 1 << 50)
    assert records.SegmentIndex.from_packed(1, 1, [*fine, b""]).is_sound(1, 4096)


def test_pairs_of_subjects_and_sequences_are_message_pack(records: ModuleType) -> None:
    subjects = records.SubjectIndex()
    names = [b"a", b"b." + b"x" * 300, b"c" * 40, b"\xff"]
    for name in names:
        subjects.add(name)
    ids, seqs = np.array([2, 0, 1, 3], np.uint32), np.array([1, 1 << 40, (1 << 63) - 1, 200], np.uint64)
    encoded = b"\x94" + subjects.encode_names(ids, seqs)
    expected = [(names[sid], seq) for sid, seq in zip(ids.tolist(), seqs.tolist(), strict=True)]
    assert msgspec.msgpack.decode(encoded, type=list[tuple[bytes, int]]) == expected
    assert subjects.encode_names(ids[:0], seqs[:0]) == b""
    with pytest.raises(ValueError, match=r"sequences|shorter"):
        subjects.encode_names(ids, seqs[:3])
    with pytest.raises(IndexError):
        subjects.encode_names(np.array([4], np.uint32), seqs[:1])


def test_an_index_becomes_another_one_with_fewer_subjects(records: ModuleType) -> None:
    log = records.LogWriter(records.OpenFrame(), 1, records.SubjectIndex(), 1 << 16, 1 << 20, False, 1)
    for number in range(40):
        log.append(b"k.%d" % (number % 10), b"", b"", 1)
    subjects, fresh, old_ids = log.subject_index, records.SubjectIndex(), np.arange(9, -1, -3)
    before = [
        [getattr(subjects, part)[sid] for part in ("counts", "firsts", "lasts")] for sid in old_ids.tolist()
    ]
    fresh.copy_subjects(subjects, old_ids[:2])
    fresh.copy_subjects(subjects, old_ids[2:])
    with pytest.raises(ValueError, match="3 ids for 4"):
        subjects.replace(fresh, old_ids[:3])
    with pytest.raises(IndexError):
        fresh.copy_subjects(subjects, np.array([10]))
    subjects.replace(fresh, old_ids)
    assert [subjects.name(sid) for sid in range(len(subjects))] == [b"k.9", b"k.6", b"k.3", b"k.0"]
    assert [subjects.find(b"k.%d" % number) for number in (9, 6, 5, 0)] == [0, 1, -1, 3]
    after = [[getattr(subjects, part)[sid] for part in ("counts", "firsts", "lasts")] for sid in range(4)]
    assert after == before
    assert [subjects.add(b"k.%d" % number) for number in range(20, 40)] == list(range(4, 24))
