"""Compressed blocks of backups, in plain Python; see `blocks.pyx`."""

from __future__ import annotations

_LENGTH_BYTES_MAX = 5


def _make_table() -> list[int]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _make_table()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def expand(block: bytes, size_max: int) -> bytes:
    """What a block holds; ValueError if it is damaged or holds more than `size_max` bytes."""
    size, at = _length(block)
    if size > size_max:
        raise ValueError("too large")
    made = bytearray()
    offset = 0
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == 0:
            length, at = _literal(block, tag, at)
            made += block[at : at + length]
            at += length
        else:
            offset, length, at = _copy(block, tag, at, offset)
            _repeat(made, offset, length, size)
        if len(made) > size:
            raise ValueError("cut short")
    if len(made) != size:
        raise ValueError("cut short")
    return bytes(made)


def _length(block: bytes) -> tuple[int, int]:
    size = 0
    for at, byte in enumerate(block[:_LENGTH_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return size, at + 1
    raise ValueError("no length")


def _literal(block: bytes, tag: int, at: int) -> tuple[int, int]:
    length = tag >> 2
    if length >= 60:
        length, at = _little(block, at, length - 59)
    length += 1
    if length > len(block) - at:
        raise ValueError("cut short")
    return length, at


def _copy(block: bytes, tag: int, at: int, offset: int) -> tuple[int, int, int]:
    """Offset and length of a copy; one without an offset of its own has that of the copy before."""
    if tag & 3 != 1:
        found, at = _little(block, at, 2 if tag & 3 == 2 else 4)
        return found, (tag >> 2) + 1, at
    low, at = _little(block, at, 1)
    found, length = (tag & 0xE0) << 3 | low, tag >> 2 & 7
    if not found and length >= 5:
        extra = length - 4
        length, at = _little(block, at, extra)
        length += 4 if extra == 1 else 1 << (8 * (extra - 1))
    return found or offset, length + 4, at


def _little(block: bytes, at: int, count: int) -> tuple[int, int]:
    if at + count > len(block):
        raise ValueError("cut short")
    return int.from_bytes(block[at : at + count], "little"), at + count


def _repeat(made: bytearray, offset: int, length: int, size: int) -> None:
    if not 0 < offset <= len(made) or length > size - len(made):
        raise ValueError("a copy of nothing")
    piece = bytes(made[-offset:][:length])
    made += (piece * (length // len(piece) + 1))[:length]


def shrink(data: bytes) -> bytes:
    """A block that holds `data`, at most 65,536 bytes; as it is, because looking for repetitions takes too long here."""
    size = len(data)
    if size > 65536:
        raise ValueError("too large")
    head = bytearray()
    left = size
    while left >= 0x80:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    if size:
        head += b"\xf4" + (size - 1).to_bytes(2, "little")
    return bytes(head) + data
