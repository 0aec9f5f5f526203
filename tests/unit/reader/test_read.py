"""`headrace.read` gives one snapshot to every engine that supports Arrow."""

import itertools
from datetime import UTC, datetime, timedelta

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.errors import CorruptData, StoreError
from headrace.reader import StreamScan

T0 = 1_700_000_000_000_000_000


@pytest.fixture
def source(pin, make_rows):
    """A folder with one pin: messages 1 to 20, of which 3 was removed; the last two are not in a segment yet."""
    pin.segment(make_rows(1, 10), live={1, 2, 4, 5, 6, 7, 8, 9, 10})
    pin.segment(make_rows(11, 8))
    pin.add_loose([(19, b"b", b"", b"NATS/1.0\r\nK: v\r\n\r\n", 60), (20, b"a.x", b"\x00\xff", b"", 0)])
    (pin.folder / "manifest").write_bytes(pin.manifest().encode())
    return pin.root


SEQS = [1, 2, *range(4, 21)]


def test_read_returns_an_arrow_table_of_the_snapshot(source):
    with headrace.read(source, "S", pin="p1") as reading:
        table = reading.to_table()
        assert table.schema == reading.schema
        assert (reading.position, reading.as_of) == (20, datetime.fromtimestamp(T0 / 1e9, UTC))
    assert table["seq"].to_pylist() == SEQS
    assert table["data"].to_pylist()[-1] == b"\x00\xff"
    assert table["headers"].null_count == 18
    assert table["expires_at"][17].as_py() == pd.Timestamp(T0 + 19 + 60 * 10**9, tz="UTC")


@pytest.mark.parametrize("views", [False, True])
def test_pandas_polars_and_duckdb_take_it_as_it_is(source, views):
    reading = headrace.read(source, "S", pin="p1", views=views)
    frame = reading.to_pandas()
    assert frame["seq"].tolist() == SEQS
    assert frame["time"].iloc[0] == pd.Timestamp(T0 + 1, tz="UTC")
    assert frame["subject"].tolist()[:3] == ["a.y", "b", "a.y"]
    polars = pl.DataFrame(reading)
    assert polars["seq"].to_list() == SEQS
    assert polars["data"].to_list() == frame["data"].tolist()
    rows = duckdb.sql("select seq, subject, data from reading where subject = 'b' order by seq").fetchall()
    assert rows == [(row.seq, row.subject, row.data) for row in frame.itertuples() if row.subject == "b"]
    assert pa.table(reading)["seq"].to_pylist() == SEQS


def test_polars_keeps_the_reading_alive_by_itself(source):
    assert pl.DataFrame(headrace.read(source, "S", pin="p1", columns=["seq"]))["seq"].to_list() == SEQS


def test_batches_can_be_iterated_twice(source):
    reading = headrace.read(source, "S", pin="p1", columns=["seq"], batch_rows=4)
    first = [batch["seq"].to_pylist() for batch in reading]
    assert max(map(len, first)) == 4
    assert list(itertools.chain(*first)) == SEQS
    assert [batch["seq"].to_pylist() for batch in reading] == first


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        ({"start": 18}, [18, 19, 20]),
        ({"start": 5, "end": 7}, [5, 6]),
        ({"subject": "b"}, [2, 5, 8, 11, 14, 17, 19]),
        ({"subject": ["b", "none.>"], "end": 6}, [2, 5]),
        ({"subject": "a.>", "end": 6}, [1, 4]),
        ({"start": datetime.fromtimestamp(T0 / 1e9, UTC) + timedelta(seconds=1)}, []),
        ({"end": datetime.fromtimestamp(T0 / 1e9, UTC) + timedelta(seconds=1)}, SEQS),
    ],
)
def test_rows_are_chosen(source, options, seqs):
    assert headrace.read(source, "S", pin="p1", **options).to_table()["seq"].to_pylist() == seqs


def test_spark_gets_microseconds_and_parsed_headers_on_request(source):
    reading = headrace.read(source, "S", pin="p1", time_unit="us", parse_headers=True, start=19)
    assert reading.schema.field("time").type == pa.timestamp("us", tz="UTC")
    assert reading.to_table()["headers"].to_pylist() == [[("K", ["v"])], None]


def test_a_time_without_a_zone_is_refused(source):
    with pytest.raises(ValueError, match="no time zone"):
        headrace.read(source, "S", pin="p1", start=datetime(2026, 1, 1))


def test_the_error_names_an_unknown_stream_or_pin(source):
    with pytest.raises(StoreError, match="pin p1 belongs to stream S"):
        headrace.read(source, "T", pin="p1")
    with pytest.raises(StoreError, match="no pin p2"):
        headrace.read(source, "S", pin="p2")
    with pytest.raises(StoreError, match="not a valid pin name"):
        headrace.read(source, "S", pin="../p1")


def test_a_damaged_manifest_is_not_believed(source):
    path = source / "pins/p1/manifest"
    good = path.read_bytes()
    for at in range(0, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 8]) + good[at + 1 :])
        with pytest.raises(CorruptData):
            headrace.read(source, "S", pin="p1")
    path.write_bytes(good[:10])
    with pytest.raises(CorruptData, match="truncated"):
        headrace.read(source, "S", pin="p1")


def test_a_pin_that_goes_while_it_is_opened_is_an_expired_one(source):
    (source / "pins/p1/00000002.seg").unlink()
    with pytest.raises(CorruptData, match="cannot be read"):
        headrace.read(source, "S", pin="p1")


def test_closing_ends_it(source):
    reading = headrace.read(source, "S", pin="p1")
    reading.close()
    with pytest.raises(StoreError, match="closed"):
        reading.to_table()
    assert isinstance(reading, StreamScan)


def test_a_folder_without_a_store_is_left_as_it_is(tmp_path):
    with pytest.raises(StoreError, match="there is no store in"):
        headrace.read(tmp_path, "S")
    assert list(tmp_path.iterdir()) == []
