"""The headers of frames, entries and the sync marker: compiled and pure give the same bytes."""

from __future__ import annotations

import importlib
import random
import struct
import zlib
from typing import Any

import pytest


@pytest.fixture(params=["", "_pure"], ids=["compiled", "pure"])
def encoding(request: pytest.FixtureRequest) -> Any:
    name = f"headrace._native.frame_encoding{request.param}"
    pytest.importorskip(name)
    return importlib.import_module(name)


def test_the_header_of_a_frame_covers_its_identity_and_its_body(encoding: Any) -> None:
    rng = random.Random(1)
    pieces = [rng.randbytes(28), bytearray(rng.randbytes(300)), memoryview(rng.randbytes(70_000))[5:], b""]
    for body in ([], pieces[:1], pieces):
        head, crc = encoding.encode_frame_header(3, 2**64 - 1, 2, 2**63, body, 2**32 - 1)
        length = sum(map(len, body))
        fields = (0x72665248, 3, 0, 2**64 - 1, 2, 2**63, length, 2**32 - 1, 0)
        assert head[:44] == struct.pack("<IHHQQQIII", *fields)
        assert crc == zlib.crc32(b"".join([head[:44], *body]))
        assert head[44:] == crc.to_bytes(4, "little")


def test_an_entry_states_its_length(encoding: Any) -> None:
    for body in (b"", b"body", bytes(70_000)):
        assert encoding.encode_entry(12, 2**32 - 1, body) == struct.pack(
            "<HHIQ", 12, 0, 2**32 - 1, len(body)
        ) + bytes(body)


@pytest.mark.parametrize("size", [0, 12, 479, 480, 481, 5_000])
def test_a_slot_has_the_watermarks_if_they_fit(encoding: Any, size: int) -> None:
    watermarks = random.Random(size).randbytes(size)
    slot = encoding.encode_sync_slot(2**64 - 1, 7, watermarks)
    stored, length = (watermarks, size) if size <= 480 else (b"", 0xFFFFFFFF)
    head = struct.pack("<IIQQI", 0x79735248, length, 2**64 - 1, 7, 0)
    assert slot == head + zlib.crc32(head + stored).to_bytes(4, "little") + stored


def test_numbers_that_do_not_fit_are_refused(encoding: Any) -> None:
    with pytest.raises((OverflowError, struct.error)):
        encoding.encode_entry(1 << 16, 0, b"")
    with pytest.raises((OverflowError, struct.error)):
        encoding.encode_frame_header(1, 0, 1 << 64, 1, [], 0)
