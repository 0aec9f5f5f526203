"""Fuzz target: blocks and entries of a backup: their content or a ValueError, the same from both cores."""

from __future__ import annotations

from typing import Any

from headrace._native import load_native, snappy_pure

from .input_generator import Maker
from .target import Pair

SIZE_MAX = 70_000
_kernel = load_native("snappy")
_LENGTHS = (0, 1, 4, 5, 59, 60, 61, 62, 63, 64, 255, 256, 65_535, 65_536, 69_999, 1 << 28, (1 << 35) - 1)


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> bytes:
    if maker.chance(0.3):
        return _entries(maker)
    made: bytes = snappy_pure.encode_varint(maker.pick(_LENGTHS) if maker.chance(0.3) else maker.below(300))
    if maker.chance(0.2):
        made = _kernel.compress(maker.pick((b"abcd" * 40, maker.bytes(300), b"\0" * 3000)))
    for _ in range(maker.below(8)):
        made += _element(maker)
    return (
        maker.damaged(made, (b"\xff\xff\xff\xff", b"\x00", b"\xf4", b"\xfc")) if maker.chance(0.4) else made
    )


def _element(maker: Maker) -> bytes:
    """Return a literal or a copy, with a correct or a wrong length."""
    kind, size = maker.below(4), maker.below(64)
    tag = bytes((size << 2 | kind,))
    if kind == 0:
        extra = maker.bytes(4) if size >= 60 else b""
        return tag + extra + maker.rng.randbytes(size + 1 if maker.chance(0.8) else maker.below(70))
    return tag + maker.pick((b"\x01", b"\x00", b"\x04\x00", b"\x01\x00\x00\x00", maker.bytes(5)))


def _entries(maker: Maker) -> bytes:
    made = b""
    for _ in range(maker.below(4)):
        name, header, payload = maker.bytes(9), maker.bytes(9), maker.bytes(20)
        numbers = [len(name), maker.below(1 << 40), maker.below(1 << 40), len(header), len(payload)]
        if maker.chance(0.3):
            numbers[maker.below(5)] = maker.pick(
                (0, 127, 128, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
            )
        made += b"".join(map(snappy_pure.encode_varint, numbers)) + name + header + payload
    return maker.damaged(made, (b"\xff" * 9, b"\x80", b"\x00")) if maker.chance(0.5) else made


def check(data: bytes) -> None:
    for limits in ((SIZE_MAX,), (100,)):
        assert _outcome(_kernel.decompress, data, *limits) == _outcome(snappy_pure.decompress, data, *limits)
    for arguments in ((0, 64, 1 << 20, 10), (1, 5, 30, 2), (0, (1 << 63) - 1, (1 << 63) - 1, 3)):
        assert _outcome(_kernel.parse_entries, data, *arguments) == _outcome(
            snappy_pure.parse_entries, data, *arguments
        )
    assert _kernel.crc32c(data) == snappy_pure.crc32c(data)
    piece = data[:65_536]
    assert snappy_pure.decompress(_kernel.compress(piece), SIZE_MAX) == piece


def _outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError:
        return "refused"
