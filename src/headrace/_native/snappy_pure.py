"""S2 blocks and the entries of a backup archive, in pure Python; the compiled version is `snappy.pyx`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._native.record_header import RECORD_HEADER, RECORD_HEADER_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


#: The maximum that `compress` accepts.
BLOCK_MAX = 1 << 20
_LENGTH_BYTES_MAX = 5
_KEY_BYTES = 6
_OFFSET_MAX = 65_535
_SKIP_SHIFT = 5


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
    """Return the Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def decompress(block: bytes | bytearray | memoryview, size_max: int) -> bytes:
    """Decompress a block; raise ValueError if it is damaged or has more than `size_max` bytes."""
    block = bytes(block)
    size, at = _read_length(block)
    if size > size_max:
        raise ValueError("the block is too large")
    made = bytearray()
    offset = 0
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == 0:
            length, at = _read_literal_length(block, tag, at)
            made += block[at : at + length]
            at += length
        else:
            offset, length, at = _read_copy(block, tag, at, offset)
            _copy_back(made, offset, length, size)
        if len(made) > size:
            raise ValueError("the block's length does not match its header")
    if len(made) != size:
        raise ValueError("the block's length does not match its header")
    return bytes(made)


def _read_length(block: bytes) -> tuple[int, int]:
    size = 0
    for at, byte in enumerate(block[:_LENGTH_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return size, at + 1
    raise ValueError("the length of a block is missing or too long")


def _read_literal_length(block: bytes, tag: int, at: int) -> tuple[int, int]:
    length = tag >> 2
    if length >= 60:
        length, at = _read_little_endian(block, at, length - 59)
    length += 1
    if length > len(block) - at:
        raise ValueError("the block's length does not match its header")
    return length, at


def _read_copy(block: bytes, tag: int, at: int, offset: int) -> tuple[int, int, int]:
    """Return offset and length of a copy; one without an offset repeats that of the previous copy."""
    if tag & 3 != 1:
        found, at = _read_little_endian(block, at, 2 if tag & 3 == 2 else 4)
        return found, (tag >> 2) + 1, at
    low, at = _read_little_endian(block, at, 1)
    found, length = (tag & 0xE0) << 3 | low, tag >> 2 & 7
    if not found and length >= 5:
        extra = length - 4
        length, at = _read_little_endian(block, at, extra)
        length += 4 if extra == 1 else 1 << (8 * (extra - 1))
    return found or offset, length + 4, at


def _read_little_endian(block: bytes, at: int, count: int) -> tuple[int, int]:
    if at + count > len(block):
        raise ValueError("the block's length does not match its header")
    return int.from_bytes(block[at : at + count], "little"), at + count


def _copy_back(made: bytearray, offset: int, length: int, size: int) -> None:
    if not 0 < offset <= len(made) or length > size - len(made):
        raise ValueError("a copy refers to bytes outside of the block")
    piece = bytes(made[-offset:][:length])
    made += (piece * (length // len(piece) + 1))[:length]


def compress(data: bytes | bytearray | memoryview) -> bytes:
    """Compress `data`, at most 1 MiB, to an S2 block; with fewer matches than the compiled version finds."""
    source = bytes(data)
    if len(source) > BLOCK_MAX:
        raise ValueError("the block is too large")
    made = bytearray(encode_varint(len(source)))
    latest: dict[bytes, int] = {}  # the latest position of the bytes at each position that was visited
    at = start = 0
    while at + _KEY_BYTES <= len(source):
        key = source[at : at + _KEY_BYTES]
        found = latest.get(key, -1)
        latest[key] = at
        if found < 0 or at - found > _OFFSET_MAX:
            at += 1 + (at - start >> _SKIP_SHIFT)
            continue
        length = _match_length(source, at, found)
        _put_literal(made, source[start:at])
        _put_copy(made, at - found, length)
        at += length
        start = at
    _put_literal(made, source[start:])
    return bytes(made)


def _match_length(source: bytes, at: int, found: int) -> int:
    """Return how many bytes at `at` and at `found`, which is before it, are equal."""
    length, step = _KEY_BYTES, 64
    while step:
        if (
            at + length + step <= len(source)
            and source[at + length : at + length + step] == source[found + length : found + length + step]
        ):
            length += step
        else:
            step >>= 1
    return length


def _put_literal(made: bytearray, literal: bytes) -> None:
    length = len(literal) - 1
    if length < 0:
        return
    if length < 60:
        made.append(length << 2)
    else:
        size = (length.bit_length() + 7) // 8
        made.append((59 + size) << 2)
        made += length.to_bytes(size, "little")
    made += literal


def _put_copy(made: bytearray, offset: int, length: int) -> None:
    while length > 0:
        part = min(length, 64)
        made += bytes(((part - 1) << 2 | 2, offset & 0xFF, offset >> 8))
        length -= part


def encode_varint(value: int) -> bytes:
    """Encode with seven bits per byte, the lowest first."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def encode_entries(view: memoryview, seqs: npt.NDArray[np.uint64]) -> tuple[bytes, int]:
    """Encode the records of `view` that are in `seqs`, ascending, as archive entries; return them and their number."""
    made: list[bytes] = []
    wanted, done, at, end = seqs.tolist(), 0, 0, len(view)
    while done < len(wanted) and end - at >= RECORD_HEADER_BYTES:
        size, subject_size, _, header_size, _, seq, time_ns = RECORD_HEADER.unpack_from(view, at)
        payload_size = size - RECORD_HEADER_BYTES - subject_size - header_size
        if size < RECORD_HEADER_BYTES or end - at < size or payload_size < 0 or seq > wanted[done]:
            break
        if seq == wanted[done]:
            made += map(
                encode_varint, (subject_size, time_ns << 1 & _U64_MAX, seq, header_size, payload_size)
            )
            made.append(bytes(view[at + RECORD_HEADER_BYTES : at + size]))
            done += 1
        at += size
    return b"".join(made), done


EntryFields = tuple[bytes, int, int, bytes, bytes]
_U64_MAX = 2**64 - 1


def _read_varint(plain: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number and where it ends; -1 if it is incomplete."""
    value = shift = 0
    while at < len(plain):
        byte = plain[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if value > _U64_MAX or (shift >= 63 and byte >= 0x80):
            raise ValueError("a number has more than 64 bits")
        if byte < 0x80:
            return value, at
        shift += 7
    return value, -1


def parse_entries(
    plain: bytes | bytearray, at: int, name_max: int, entry_max: int, most: int
) -> tuple[list[EntryFields], int]:
    """Parse complete entries from `at` on, at most `most`, as (name, time, sequence, header, payload).

    Returns them and their end. Raises ValueError if one is too large or invalid.
    """
    if at < 0 or name_max < 0 or entry_max < 0:
        raise ValueError("position and limits must not be negative")
    found: list[EntryFields] = []
    while len(found) < most:
        numbers: list[int] = []
        place = at
        while len(numbers) < 5 and place >= 0:
            number, place = _read_varint(plain, place)
            numbers.append(number)
        if place < 0:
            break
        name_size, zigzag, seq, header_size, payload_size = numbers
        if name_size > name_max or header_size + payload_size > entry_max:
            raise ValueError("an entry is too large")
        head, body = place + name_size, place + name_size + header_size
        end = body + payload_size
        if end > len(plain):
            break
        time_ns = ~(zigzag >> 1) if zigzag & 1 else zigzag >> 1
        found.append(
            (bytes(plain[place:head]), time_ns, seq, bytes(plain[head:body]), bytes(plain[body:end]))
        )
        at = end
    return found, at
