"""Compressed blocks, compiled and pure: vectors of the format, arbitrary bytes, and round trips."""

from __future__ import annotations

import importlib
import random
import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.backup_archive import BackupEntry, encode_entry

TWINS = [importlib.import_module(f"headrace._native.{name}") for name in ("snappy", "snappy_pure")]
both = pytest.mark.parametrize("twin", TWINS, ids=["compiled", "pure"])
TEXTS = st.one_of(
    st.binary(max_size=600),
    st.lists(st.sampled_from([b"abc", b"headrace ", b"\x00" * 40, b"x"]), max_size=400).map(b"".join),
)


@both
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_matches_the_vectors_of_rfc_3720(twin: ModuleType, data: bytes, expected: int) -> None:
    """Check the vectors of RFC 3720."""
    assert twin.crc32c(data) == expected
    assert twin.crc32c(memoryview(b"." + data)[1:]) == expected


@both
@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        (b"\x64\xf0\x63" + b"y" * 100, b"y" * 100),
        (b"\x64\xf4\x63\x00" + b"y" * 100, b"y" * 100),
        (b"\x64\xf8\x63\x00\x00" + b"y" * 100, b"y" * 100),
        (b"\x64\xfc\x63\x00\x00\x00" + b"y" * 100, b"y" * 100),
        (b"\x0a\x08abc" + b"\x0d\x03", b"abcabcabca"),  # a copy of 7 bytes, 3 back
        (b"\x0a\x08abc" + b"\x1a\x03\x00", b"abcabcabca"),
        (b"\x0a\x08abc" + b"\x1b\x03\x00\x00\x00", b"abcabcabca"),
        # the same offset again: 4 bytes, 8 + 2, 260 + 1
        (b"\x0e\x08abc" + b"\x0d\x03" + b"\x01\x00", b"abcabcabcabcab"),
        (b"\x14\x08abc" + b"\x0d\x03" + b"\x15\x00\x02", b"abc" * 6 + b"ab"),
        (b"\x8f\x02\x08abc" + b"\x0d\x03" + b"\x19\x00\x01\x00", (b"abc" * 100)[:271]),
        (b"\x8e\x80\x04\x08abc" + b"\x0d\x03" + b"\x1d\x00\x00\x00\x00", (b"abc" * 30000)[:65550]),
    ],
)
def test_what_blocks_hold(twin: ModuleType, block: bytes, expected: bytes) -> None:
    assert twin.decompress(block, 1 << 22) == expected


@both
@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x80",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x05\x08abc",
        b"\x02\x08abc",
        b"\x03\x0cabc",
        b"\x03\xf0",
        b"\x08\x08abc\x05",
        b"\x08\x08abc\x05\x04",
        b"\x08\x01\x00",
        b"\x08\x08abc\x01\x00",
        b"\x09\x08abc\x0d\x03",
        b"\x0a\x08abc\x1a\x00\x00",
        b"\x0a\x08abc\x1a\x03",
        b"\xff\xff\xff\x7f\x08abc",
    ],
)
def test_damaged_blocks_are_refused(twin: ModuleType, block: bytes) -> None:
    with pytest.raises(ValueError):
        twin.decompress(block, 1 << 22)


@both
def test_no_larger_than_allowed(twin: ModuleType) -> None:
    with pytest.raises(ValueError):
        twin.decompress(b"\x03\x08abc", 2)
    with pytest.raises(ValueError):
        twin.compress(bytes((1 << 20) + 1))


@both
@settings(max_examples=150, deadline=None)
@given(data=TEXTS)
def test_there_and_back(twin: ModuleType, data: bytes) -> None:
    assert twin.decompress(twin.compress(data), len(data)) == data


@pytest.mark.parametrize(
    "size", [0, 1, 3, 4, 5, 59, 60, 61, 64, 255, 256, 257, 65_535, 65_536, 65_537, 200_000, 1 << 20]
)
def test_blocks_of_every_size_round_trip(size: int) -> None:
    for data in (bytes(size), bytes(number * number % 251 for number in range(size))):
        for writer in TWINS:
            for reader in TWINS:
                assert reader.decompress(writer.compress(data), size) == data


@both
def test_repetitive_data_is_compressed(twin: ModuleType) -> None:
    assert len(twin.compress(b"headrace " * 5000)) < 3000


@both
@pytest.mark.parametrize("seed", range(20))
def test_records_are_compressed_and_come_back(twin: ModuleType, seed: int) -> None:
    """Structured data with copies of every length and distance, near and far, and literals between them."""
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.choice((3, 5, 9, 13, 62, 70, 300, 5000))) for _ in range(12)]
    data = b"".join(
        rng.choice(pieces) if rng.random() < 0.8 else rng.randbytes(rng.choice((1, 2, 61, 257)))
        for _ in range(60)
    )
    block = twin.compress(memoryview(bytearray(data)))
    assert len(block) <= len(data) + len(data) // 6 + 32
    assert [reader.decompress(block, len(data)) for reader in TWINS] == [data, data]


@both
def test_data_without_repetitions_grows_little(twin: ModuleType) -> None:
    data = random.Random(7).randbytes(100_000)
    assert len(twin.compress(data)) < len(data) + 200


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60), st.binary(min_size=1, max_size=40).map(lambda tail: b"\x20\x10abcde" + tail)
    )
)
def test_twins_agree_on_anything(block: bytes) -> None:
    outcomes = []
    for twin in TWINS:
        try:
            outcomes.append(twin.decompress(block, 4096))
        except ValueError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


@both
def test_records_become_entries(twin: ModuleType) -> None:
    """Only the live records of a block."""
    rows = [(seq, b"s.%d" % seq, b"NATS/1.0\r\n\r\n" if seq % 2 else b"", b"x" * seq) for seq in range(1, 9)]
    view = b"".join(
        struct.pack("<IHHIIQQ", 32 + len(s) + len(h) + len(p), len(s), 0, len(h), 0, seq, 10**18 + seq)
        + s
        + h
        + p
        for seq, s, h, p in rows
    )
    live = np.array([2, 3, 7, 30], dtype=np.uint64)
    data, count = twin.encode_entries(memoryview(view), live)
    wanted = [row for row in rows if row[0] in (2, 3, 7)]
    assert data == b"".join(encode_entry(BackupEntry(s, 10**18 + seq, seq, h, p)) for seq, s, h, p in wanted)
    assert count == 3
    assert twin.encode_entries(memoryview(view[:-3]), np.array([8], dtype=np.uint64)) == (b"", 0)
    assert twin.encode_entries(memoryview(b""), live) == (b"", 0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=9),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 2**64 - 1),
            st.binary(max_size=9),
        ),
        max_size=5,
    ),
    st.binary(max_size=30),
    st.integers(0, 40),
)
def test_twins_parse_alike(rows: list[tuple[bytes, int, int, bytes]], tail: bytes, cut: int) -> None:
    whole = b"".join(
        encode_entry(BackupEntry(name, time_ns, seq, body, body)) for name, time_ns, seq, body in rows
    )
    data = (whole + tail)[: len(whole) + len(tail) - cut] if cut <= len(whole) + len(tail) else b""
    outcomes = []
    for twin in TWINS:
        try:
            outcomes.append(twin.parse_entries(bytearray(data), 0, 100, 1000, 4))
        except ValueError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]
    if not cut and not tail and len(rows) <= 4:
        assert outcomes[0] == ([(n, t, s, b, b) for n, t, s, b in rows], len(data))
