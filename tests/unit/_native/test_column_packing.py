"""Packed columns, compiled and pure: round trips, sizes, and bytes that are no column."""

from __future__ import annotations

import importlib
import random
import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TWINS = [
    importlib.import_module(f"headrace._native.{name}") for name in ("column_packing", "column_packing_pure")
]
both = pytest.mark.parametrize("twin", TWINS, ids=["compiled", "pure"])
U64 = st.integers(0, (1 << 64) - 1)
HEAD = struct.Struct("<QII")


def accumulate(first: int, steps: list[int]) -> list[int]:
    return list(np.cumsum([first, *steps]))


COLUMNS = st.one_of(
    st.lists(U64, max_size=400),
    st.builds(accumulate, st.integers(0, 1 << 60), st.lists(st.integers(0, 1 << 40), max_size=400)),
    st.builds(lambda value, count: [value] * count, U64, st.integers(0, 400)),
    st.lists(st.integers(0, 3), min_size=100, max_size=300),
)


@settings(max_examples=200, deadline=None)
@given(COLUMNS)
def test_both_versions_write_the_same_bytes_and_read_them_back(values: list[int]) -> None:
    array = np.array(values, np.uint64)
    packed = [twin.pack_column(array) for twin in TWINS]
    assert packed[0] == packed[1]
    for twin in TWINS:
        assert twin.is_packed_column(packed[0], len(values))
        assert twin.unpack_column(packed[0], len(values)).tolist() == array.tolist()


@both
def test_columns_of_a_segment_take_a_few_bits_for_each_row(twin: ModuleType) -> None:
    source = random.Random(1)
    rows = 128 * 20
    times = np.cumsum([1_800_000_000_000_000_000, *(source.randrange(1000, 3000) for _ in range(rows - 1))])
    sizes = np.array([160 + source.randrange(3) for _ in range(rows)], np.uint64)
    offsets = np.cumsum(sizes)
    subjects = np.array([source.randrange(1000) for _ in range(rows)], np.uint32)

    def bits(values: np.ndarray) -> float:
        return 8 * len(twin.pack_column(values)) / rows

    assert bits(np.zeros(rows, np.uint32)) < 0.1
    assert bits(np.arange(rows)) < 1.1  # a head for each 128 rows
    assert bits(sizes) < 3.1
    assert bits(subjects) < 11.1
    assert bits(offsets) < 8
    assert bits(times) < 16


@both
def test_bytes_that_are_no_column_are_refused(twin: ModuleType) -> None:
    packed = twin.pack_column(np.arange(300, dtype=np.uint64) ** 2)
    assert twin.is_packed_column(packed, 300)
    assert twin.is_packed_column(b"", 0)
    for data, rows in (
        (packed, 500),
        (packed, 0),
        (packed, -1),
        (packed[:-8], 300),
        (packed + bytes(8), 300),
        (b"", 300),
        (HEAD.pack(1, 1, 0), 300),  # the same value in every row has no slope
        (HEAD.pack(1, 0, 1), 300),
        (packed[:12] + struct.pack("<I", 65) + packed[16:], 300),  # wider than a value
        (packed[:28] + b"\xff\xff" + packed[30:], 300),  # a chunk somewhere else
        (HEAD.pack(0, 0, 0), 1 << 40),
    ):
        assert not twin.is_packed_column(data, rows)
        with pytest.raises(ValueError, match="no packed column"):
            twin.unpack_column(data, rows)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_both_versions_agree_about_arbitrary_bytes(data: bytes, rows: int) -> None:
    assert TWINS[0].is_packed_column(data, rows) == TWINS[1].is_packed_column(data, rows)
    if TWINS[0].is_packed_column(data, rows):
        assert TWINS[0].unpack_column(data, rows).tolist() == TWINS[1].unpack_column(data, rows).tolist()


@both
def test_a_column_that_is_too_long(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="too long"):
        twin.pack_column(np.broadcast_to(np.uint8(1), twin.ROWS_MAX + 1))
