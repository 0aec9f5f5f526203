"""Packed columns in pure Python: numbers of one column in as few bits as their differences need.

A column is cut into chunks of 128 rows. The value of row k of a chunk is `base + slope * k` plus a few bits, as many for
each row as the largest needs. So one value is read without its neighbours. Must not know what the numbers mean.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

#: Maximum number of rows of a column: the place of a chunk has 25 bits.
ROWS_MAX = 1 << 25

_CHUNK_ROWS = 128
_WIDTH_BITS = 7
_WIDTH_MAX = 64
#: Base, slope, and place: the number of words before the chunk, and in the lowest 7 bits the width of a row.
_HEAD = struct.Struct("<QII")
_WORD_BYTES = 8
_U64_MASK = (1 << 64) - 1

Values = npt.NDArray[np.uint64]


def pack_column(values: npt.NDArray[Any]) -> bytes:
    """Encode an array of unsigned integers, at most ROWS_MAX of them."""
    column = np.ascontiguousarray(values, np.uint64)
    if not len(column):
        return b""
    if len(column) > ROWS_MAX:
        raise ValueError(f"a column of {len(column):,} rows is too long to be packed")
    if (column == column[0]).all():
        return _HEAD.pack(int(column[0]), 0, 0)
    heads, words, word_count = [], [], 0
    for at in range(0, len(column), _CHUNK_ROWS):
        chunk = column[at : at + _CHUNK_ROWS]
        base, slope, width = _fit(chunk)
        heads.append(_HEAD.pack(base, slope, word_count << _WIDTH_BITS | width))
        words.append(_pack_bits(chunk, base, slope, width))
        word_count += 2 * width
    # One more word, so that reading the two words of a value never reads beyond the end.
    return b"".join((*heads, *words, bytes(_WORD_BYTES)))


def _fit(chunk: Values) -> tuple[int, int, int]:
    """Return base, slope and width of the line below all values that needs the fewest bits.

    It is level, or has the average slope.
    """
    low, high = int(chunk.min()), int(chunk.max())
    first, last = int(chunk[0]), int(chunk[-1])
    level = low, 0, (high - low).bit_length()
    if high - low >= 1 << 62 or last <= first:
        return level
    slope = (last - first) // (len(chunk) - 1)
    if not 0 < slope <= 0xFFFFFFFF:
        return level
    steps = (chunk - np.uint64(first)).astype(np.int64) - slope * np.arange(len(chunk))
    least, most = int(steps.min()), int(steps.max())
    width = (most - least).bit_length()
    return ((first + least) & _U64_MASK, slope, width) if width < level[2] else level


def _line(base: int, slope: int, count: int) -> Values:
    return np.uint64(base) + np.arange(count, dtype=np.uint64) * np.uint64(slope)


def _pack_bits(chunk: Values, base: int, slope: int, width: int) -> bytes:
    """Encode what the line lacks of each value."""
    if not width:
        return b""
    rest = np.zeros(_CHUNK_ROWS, "<u8")
    rest[: len(chunk)] = chunk - _line(base, slope, len(chunk))
    bits = np.unpackbits(rest.view(np.uint8).reshape(_CHUNK_ROWS, 8), axis=1, bitorder="little")
    return np.packbits(bits[:, :width].reshape(-1), bitorder="little").tobytes()


def pack_columns(arrays: tuple[npt.NDArray[Any] | None, ...]) -> list[bytes]:
    """Pack the result of `SegmentIndex.to_arrays`; b"" stands for a column that is None."""
    return [b"" if array is None else pack_column(array) for array in arrays]


def is_packed_column(data: bytes, rows: int) -> bool:
    """Return whether these bytes are a column of this many rows: whether each value can be read within them."""
    chunks = -(-rows // _CHUNK_ROWS)
    if not 0 < rows <= ROWS_MAX:
        return rows == 0 and not data
    if len(data) == _HEAD.size:
        return _HEAD.unpack(data)[1:] == (0, 0)
    if len(data) < _HEAD.size * chunks + _WORD_BYTES:
        return False
    words = 0
    for chunk in range(chunks):
        place = _HEAD.unpack_from(data, chunk * _HEAD.size)[2]
        width = place & 127
        if width > _WIDTH_MAX or place >> _WIDTH_BITS != words:
            return False
        words += 2 * width
    return len(data) == _HEAD.size * chunks + _WORD_BYTES * (words + 1)


def unpack_column(data: bytes, rows: int) -> Values:
    """Return the values of a column as an array of u64; raise ValueError if they are not a column of this many rows."""
    if not is_packed_column(data, rows):
        raise ValueError("the bytes are no packed column of this many rows")
    if rows and len(data) == _HEAD.size:
        return np.full(rows, _HEAD.unpack(data)[0], np.uint64)
    chunks = -(-rows // _CHUNK_ROWS)
    values = np.empty(chunks * _CHUNK_ROWS, np.uint64)
    for chunk in range(chunks):
        base, slope, place = _HEAD.unpack_from(data, chunk * _HEAD.size)
        words = data[_HEAD.size * chunks + _WORD_BYTES * (place >> _WIDTH_BITS) :]
        at = chunk * _CHUNK_ROWS
        values[at : at + _CHUNK_ROWS] = _line(base, slope, _CHUNK_ROWS) + _unpack_bits(words, place & 127)
    return values[:rows]


def _unpack_bits(words: bytes, width: int) -> Values:
    bits = np.zeros((_CHUNK_ROWS, _WIDTH_MAX), np.uint8)
    packed = np.frombuffer(words, np.uint8, _CHUNK_ROWS * width // 8)
    bits[:, :width] = np.unpackbits(packed, bitorder="little").reshape(_CHUNK_ROWS, width)
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").reshape(-1).astype(np.uint64)
