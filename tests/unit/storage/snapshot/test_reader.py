"""A snapshot has exactly the rows of its manifest, or reports what is damaged."""

import pytest

from headrace.errors import CorruptData, StoreError
from headrace.storage.damage_report import Damage
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.snapshot import reader as reader_module
from headrace.storage.snapshot.arrow import ArrowLayout
from headrace.storage.snapshot.selection import Selection

T0 = 1_700_000_000_000_000_000
FEW = ArrowLayout(columns=("seq", "subject", "data"))


def read(snapshot, shape=FEW, rows_max=4, **selection):
    out = []
    for batch in snapshot.batches(Selection(**selection), shape, rows_max):
        batch.validate(full=True)
        assert 0 < batch.num_rows <= rows_max
        out += [tuple(row.values()) for row in batch.to_pylist()]
    return out


def expected(rows):
    return [(seq, subject.decode(), payload) for seq, subject, payload, *_ in rows]


@pytest.mark.parametrize("columns", [True, False])
def test_segments_and_loose_records_come_in_order(pin, make_rows, columns):
    pin.segment(make_rows(1, 10), columns=columns)
    pin.segment(make_rows(11, 7), columns=columns)
    pin.add_loose(make_rows(18, 3, subjects=(b"new", b"a.x")))
    snapshot = pin.snapshot()
    wanted = expected(make_rows(1, 17) + make_rows(18, 3, subjects=(b"new", b"a.x")))
    assert read(snapshot) == wanted
    assert read(snapshot) == wanted


@pytest.mark.parametrize("columns", [True, False])
def test_only_live_rows_of_sparse_segments(pin, make_rows, columns):
    rows = [row for row in make_rows(5, 40) if row[0] % 3]
    live = {row[0] for row in rows if row[0] % 4}
    pin.segment(rows, live, columns=columns)
    pin.add_loose(make_rows(50, 5), live={51, 54})
    assert [row[0] for row in read(pin.snapshot())] == [*sorted(live), 51, 54]


def test_selection_reaches_across_segments(pin, make_rows):
    pin.segment(make_rows(1, 10))
    pin.segment(make_rows(11, 10))
    pin.add_loose(make_rows(21, 10))
    snapshot, rows = pin.snapshot(), make_rows(1, 30)
    assert read(snapshot, first_seq=8, end_seq=23) == expected(rows[7:22])
    assert read(snapshot, patterns=(b"a.*",)) == expected([row for row in rows if row[1] != b"b"])
    assert read(snapshot, patterns=(b"b",), first_seq=9) == expected(
        [r for r in rows if r[1] == b"b" and r[0] >= 9]
    )
    assert read(snapshot, first_ns=T0 + 12, end_ns=T0 + 14) == expected(rows[11:13])
    assert read(snapshot, first_seq=100) == []
    assert read(snapshot, patterns=(b"none",)) == []


def test_the_expired_are_left_out_as_of_the_snapshot(pin, make_rows):
    pin.segment(make_rows(1, 5, ttl_s=1) + make_rows(6, 2))
    pin.add_loose(make_rows(8, 2, ttl_s=1))
    assert len(read(pin.snapshot(T0 + 10**9))) == 9
    assert [row[0] for row in read(pin.snapshot(T0 + 10**9 + 3))] == [4, 5, 6, 7, 8, 9]
    assert [row[0] for row in read(pin.snapshot(T0 + 10**10))] == [6, 7]


def test_a_batch_holds_a_bounded_number_of_bytes(pin, make_rows, monkeypatch):
    monkeypatch.setattr(reader_module, "BATCH_BYTES_MAX", 100)
    pin.segment(make_rows(1, 20))
    sizes = [batch.num_rows for batch in pin.snapshot().batches(Selection(), FEW, 20)]
    assert sum(sizes) == 20
    assert max(sizes) <= 3


def test_a_flipped_bit_in_a_block_is_named_and_confined(pin, make_rows):
    pin.segment(make_rows(1, 9))
    path = pin.folder / "00000001.seg"
    data = bytearray(path.read_bytes())
    data[1024 + 60] ^= 4
    path.write_bytes(data)
    snapshot = pin.snapshot()
    assert [row[0] for row in read(snapshot, end_seq=4)] == [1, 2, 3]
    assert [row[0] for row in read(snapshot, first_seq=7)] == [7, 8, 9]
    with pytest.raises(CorruptData, match=r"stream S, segment 00000001 .* block at 1024"):
        read(snapshot)


def test_every_flipped_bit_of_the_columns_leads_to_a_rebuild(pin, make_rows):
    pin.segment(make_rows(1, 4))
    path = pin.folder / "00000001.col"
    good = path.read_bytes()
    assert len(good) > 96
    for at in [*range(68), *range(96, len(good))]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        assert read(pin.snapshot()) == expected(make_rows(1, 4))
    for length in range(0, len(good), 7):
        path.write_bytes(good[:length])
        assert read(pin.snapshot()) == expected(make_rows(1, 4))


def test_columns_of_another_segment_are_not_believed(pin, make_rows):
    pin.segment(make_rows(1, 4))
    pin.segment(make_rows(5, 4))
    (pin.folder / "00000001.col").write_bytes((pin.folder / "00000002.col").read_bytes())
    assert read(pin.snapshot()) == expected(make_rows(1, 8))


@pytest.mark.parametrize("columns", [True, False])
def test_a_short_missing_or_swapped_segment_is_corrupt(pin, make_rows, columns):
    pin.segment(make_rows(1, 9), columns=columns)
    pin.segment(make_rows(10, 9), columns=columns)
    first, second = pin.folder / "00000001.seg", pin.folder / "00000002.seg"
    good = first.read_bytes()
    for bad in (good[:1000], b"", second.read_bytes()):
        first.write_bytes(bad)
        with pytest.raises(CorruptData, match="segment 00000001"):
            read(pin.snapshot())
        assert read(pin.snapshot(), first_seq=10) == expected(make_rows(10, 9))
    first.unlink()
    with pytest.raises(CorruptData, match="cannot be read"):
        pin.snapshot()


def test_damage_without_columns_is_found_too(pin, make_rows):
    pin.segment(make_rows(1, 9), columns=False)
    path = pin.folder / "00000001.seg"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="block at 512"):
        read(pin.snapshot())


def test_a_damaged_subject_table_leads_to_a_rebuild(pin, make_rows):
    pin.segment(make_rows(1, 9))
    manifest = pin.manifest()
    path = pin.folder / "subjects.1"
    good = path.read_bytes()
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(bad)
            snapshot = reader_module.StreamSnapshot(ReadonlyDisk(pin.root, exclusive=False), manifest)
            assert read(snapshot) == expected(make_rows(1, 9))


def test_rows_known_to_be_lost_are_never_skipped_in_silence(pin, make_rows):
    pin.segment(make_rows(1, 9))
    pin.segment(make_rows(15, 5))
    pin.lost.append(Damage("a frame is damaged", "S", 10, 14, "journal/1.jnl"))
    snapshot = pin.snapshot()
    with pytest.raises(CorruptData, match="10 to 14"):
        read(snapshot)
    assert read(snapshot, end_seq=10) == expected(make_rows(1, 9))
    assert read(snapshot, first_seq=15) == expected(make_rows(15, 5))


def test_a_closed_snapshot_is_released_once_and_refuses(pin, make_rows):
    pin.segment(make_rows(1, 3))
    released = []
    snapshot = reader_module.StreamSnapshot(
        ReadonlyDisk(pin.root, exclusive=False), pin.manifest(), lambda: released.append(1)
    )
    kept = list(snapshot.batches(Selection(), ArrowLayout(views=True)))
    snapshot.close()
    snapshot.close()
    assert released == [1]
    for path in pin.folder.iterdir():
        path.unlink()
    assert kept[0]["seq"].to_pylist() == [1, 2, 3]
    with pytest.raises(StoreError, match="closed"):
        read(snapshot)
