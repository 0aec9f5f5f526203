"""The checksum of frames and blocks equals zlib's."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest


@pytest.fixture(params=["crc32", "crc32_pure"])
def kernel(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(f"headrace._native.{request.param}")


def test_every_length_and_alignment(kernel: Any) -> None:
    data = random.Random(1).randbytes(1_200)
    for size in range(700):
        for at in (0, 1, 7, 500):
            part = data[at : at + size]
            assert kernel.crc32(part) == zlib.crc32(part)


@pytest.mark.parametrize("size", [4_096, 65_504, 65_536, 1_000_003])
def test_checksums_of_large_buffers_match_zlib(kernel: Any, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert kernel.crc32(data) == zlib.crc32(data)
    assert kernel.crc32(bytes(size)) == zlib.crc32(bytes(size))
    assert kernel.crc32(b"\xff" * size) == zlib.crc32(b"\xff" * size)


def test_a_checksum_continues_an_earlier_one(kernel: Any) -> None:
    data = random.Random(2).randbytes(10_000)
    for cut in (0, 1, 255, 256, 257, 5_000, 9_999, 10_000):
        for start in (0, 1, 0xFFFFFFFF, 0x12345678):
            crc = kernel.crc32(data[cut:], kernel.crc32(data[:cut], start))
            assert crc == zlib.crc32(data, start)


def test_any_buffer_will_do(kernel: Any) -> None:
    data = random.Random(3).randbytes(1_000)
    for kind in (bytes, bytearray, memoryview):
        assert kernel.crc32(kind(data)) == zlib.crc32(data)
    assert kernel.crc32(memoryview(data)[3:900]) == zlib.crc32(data[3:900])
    with pytest.raises(TypeError):
        kernel.crc32("text")


def test_a_flipped_bit_shows(kernel: Any) -> None:
    data = bytearray(random.Random(4).randbytes(2_000))
    before = kernel.crc32(data)
    for bit in range(0, 16_000, 37):
        data[bit // 8] ^= 1 << bit % 8
        assert kernel.crc32(data) != before
        data[bit // 8] ^= 1 << bit % 8
