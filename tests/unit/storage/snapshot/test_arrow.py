"""Records become the Arrow columns that they represent."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from headrace.storage.snapshot.arrow import (
    COLUMNS,
    ArrowLayout,
    gather_headers,
    make_batch,
    make_binary_views,
    make_subject_dictionary,
    parse_headers,
)

HEAD = struct.Struct("<IHHIIQQ")
T0 = 1_700_000_000_123_456_789


def record(seq, subject, header, payload, ttl_s=0, time_ns=T0):
    size = 32 + len(subject) + len(header) + len(payload)
    return (
        HEAD.pack(size, len(subject), 0, len(header), ttl_s, seq, time_ns + seq) + subject + header + payload
    )


def decode(rows, shape=None, lead=b""):
    subjects = sorted({row[1] for row in rows})
    data, offsets = bytearray(lead), []
    for row in rows:
        offsets.append(len(data))
        data += record(*row)
    at = np.array(offsets, np.intp)
    view = memoryview(bytes(data))
    ids = np.array([subjects.index(row[1]) for row in rows], np.uint32)
    out = make_batch(
        shape or ArrowLayout(), view, at, gather_headers(view, at), ids, make_subject_dictionary(subjects)
    )
    out.validate(full=True)
    return out


@pytest.mark.parametrize("views", [False, True])
def test_every_column_holds_what_the_record_says(views):
    rows = [
        (1, b"a.b", b"", b""),
        (2, b"a.c", b"NATS/1.0\r\nK: v\r\n\r\n", b"x" * 12),
        (5, b"a.b", b"", b"y" * 13, 7),
        (6, b"a.b", b"short", b"z" * 300, 0xFFFFFFFF),
        (9, b"a.d", b"", b"end"),
    ]
    out = decode(rows, ArrowLayout(views=views), lead=b"\xff" * 17)
    assert out.schema.names == list(COLUMNS)
    assert out["seq"].to_pylist() == [1, 2, 5, 6, 9]
    assert out["time"].cast(pa.int64()).to_pylist() == [T0 + row[0] for row in rows]
    assert out["subject"].to_pylist() == ["a.b", "a.c", "a.b", "a.b", "a.d"]
    assert out["headers"].to_pylist() == [None, b"NATS/1.0\r\nK: v\r\n\r\n", None, b"short", None]
    assert out["data"].to_pylist() == [row[3] for row in rows]
    assert out["expires_at"].cast(pa.int64()).to_pylist() == [None, None, T0 + 5 + 7 * 10**9, None, None]
    assert out["size"].to_pylist() == [len(row[1]) + len(row[2]) + len(row[3]) for row in rows]


def test_microseconds_are_for_spark():
    out = decode([(1, b"a", b"", b"x", 3)], ArrowLayout(columns=("time", "expires_at"), unit="us"))
    assert out["time"].cast(pa.int64()).to_pylist() == [(T0 + 1) // 1000]
    assert out["expires_at"].cast(pa.int64()).to_pylist() == [(T0 + 1 + 3 * 10**9) // 1000]


def test_nothing_becomes_an_empty_batch():
    assert decode([]).num_rows == 0


def test_columns_come_in_the_order_asked_for():
    out = decode([(1, b"a", b"", b"x")], ArrowLayout(columns=("data", "seq")))
    assert out.to_pydict() == {"data": [b"x"], "seq": [1]}


@pytest.mark.parametrize("columns", [("seq", "sequence"), ()])
def test_unknown_or_no_columns_are_refused(columns):
    with pytest.raises(ValueError, match="available: seq"):
        ArrowLayout(columns=columns)


def test_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="must be"):
        ArrowLayout(unit="s")


def test_subjects_that_are_no_utf8_are_replaced_not_passed_on():
    out = decode([(1, b"a.\xff", b"", b"x"), (2, b"b", b"", b"")])
    assert out["subject"].to_pylist() == ["a.\ufffd", "b"]


def test_all_lengths_around_the_inline_limit_at_the_end_of_the_file():
    source = bytes(range(1, 41))
    for length in range(20):
        starts = np.array([0, 40 - length], np.int64)
        array = make_binary_views(memoryview(source), starts, np.array([length, length], np.int64), None)
        array.validate(full=True)
        assert array.to_pylist() == [source[:length], source[40 - length :]]


def test_headers_become_maps_with_repeated_names_gathered():
    blocks = pa.array(
        [
            b"NATS/1.0\r\nA: 1\r\nB: x:y\r\nA:2\r\n\r\n",
            None,
            b"NATS/1.0 503 No: Responders\r\n\r\n",
            b"NATS/1.0\r\nb:  \r\nZ: \xff\r\nA: 3\r\n\r\n",
        ],
        pa.binary(),
    )
    parsed = parse_headers(blocks)
    parsed.validate(full=True)
    assert parsed.to_pylist() == [
        [("A", ["1", "2"]), ("B", ["x:y"])],
        None,
        [],
        [("b", [""]), ("Z", ["\ufffd"]), ("A", ["3"])],
    ]


def test_headers_are_parsed_within_a_batch():
    rows = [(1, b"a", b"", b""), (2, b"a", b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n", b"")]
    out = decode(rows, ArrowLayout(columns=("headers",), parse_headers=True))
    assert out["headers"].to_pylist() == [None, [("Nats-TTL", ["5s"])]]
    assert decode([], ArrowLayout(columns=("headers",), parse_headers=True)).num_rows == 0
