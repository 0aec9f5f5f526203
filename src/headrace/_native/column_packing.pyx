# cython: language_level=3
"""Packed columns, compiled: numbers of one column in as few bits as their differences need.

A column is cut into chunks of 128 rows. The value of row k of a chunk is `base + slope * k` plus a few bits, as many for
each row as the largest needs. So one value is read without its neighbours. Must not know what the numbers mean.
`column_packing_pure` is the same in pure Python; the same tests run on both.
"""

import numpy as np

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from headrace._native.packed_column cimport (
    CHUNK_ROWS,
    CHUNK_SHIFT,
    HEAD_BYTES,
    PLACE_AT,
    SLOPE_AT,
    WIDTH_BITS,
    Packed,
    packed_get,
    set_packed,
)
from headrace._native.record_layout cimport u32

#: Maximum number of rows of a column: the place of a chunk has 25 bits.
ROWS_MAX = 1 << 25

cdef struct Line:
    uint64_t base
    uint32_t slope, width


cdef inline uint32_t bit_length(uint64_t value) noexcept nogil:
    cdef uint32_t found = 0
    while value:
        found += 1
        value >>= 1
    return found


cdef void fit(const uint64_t *values, Py_ssize_t count, Line *line) noexcept nogil:
    """Find the line below all values of a chunk that needs the fewest bits: level, or with the average slope."""
    cdef Py_ssize_t k
    cdef uint64_t low = values[0], high = values[0], slope
    cdef int64_t step, least = 0, most = 0
    for k in range(1, count):
        if values[k] < low:
            low = values[k]
        if values[k] > high:
            high = values[k]
    line.base, line.slope, line.width = low, 0, bit_length(high - low)
    if high - low >= (<uint64_t>1 << 62) or values[count - 1] <= values[0]:
        return
    slope = (values[count - 1] - values[0]) // <uint64_t>(count - 1)
    if slope == 0 or slope >> 32:
        return
    for k in range(count):
        step = <int64_t>(values[k] - values[0]) - <int64_t>(slope * <uint64_t>k)
        if step < least:
            least = step
        if step > most:
            most = step
    if bit_length(<uint64_t>(most - least)) < line.width:
        line.base, line.slope = values[0] + <uint64_t>least, <uint32_t>slope
        line.width = bit_length(<uint64_t>(most - least))


cdef inline void write_head(char *head, uint64_t base, uint32_t slope, uint32_t place) noexcept nogil:
    memcpy(head, &base, 8)
    memcpy(head + SLOPE_AT, &slope, 4)
    memcpy(head + PLACE_AT, &place, 4)


cdef void write_bits(char *words, const uint64_t *values, Py_ssize_t count, const Line *line) noexcept nogil:
    """Write what the line lacks of each value; the words are zero before."""
    cdef Py_ssize_t k
    cdef uint32_t bit = 0, shift
    cdef uint64_t bits, word = 0
    cdef char *at = words
    for k in range(count):
        bits = values[k] - line.base - <uint64_t>line.slope * <uint64_t>k
        shift = bit & 63
        word |= bits << shift
        if shift + line.width >= 64:
            memcpy(at, &word, 8)
            at += 8
            word = bits >> (64 - shift) if shift else 0
        bit += line.width
    if bit & 63:
        memcpy(at, &word, 8)


cdef bint is_constant(const uint64_t *values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(1, count):
        if values[k] != values[0]:
            return False
    return True


def pack_column(values):
    """Encode an array of unsigned integers, at most ROWS_MAX of them."""
    cdef const uint64_t[::1] view = np.ascontiguousarray(values, np.uint64)
    cdef Py_ssize_t rows = view.shape[0], chunk, chunks = (rows + CHUNK_ROWS - 1) >> CHUNK_SHIFT
    cdef const uint64_t *p
    cdef bint constant
    cdef bytes heads, out
    cdef char *head
    cdef char *to
    cdef uint32_t words = 0
    cdef Line line
    if rows == 0:
        return b""
    if rows > ROWS_MAX:
        raise ValueError(f"a column of {rows:,} rows is too long to be packed")
    p = &view[0]
    with nogil:
        constant = is_constant(p, rows)
    heads = PyBytes_FromStringAndSize(NULL, HEAD_BYTES if constant else HEAD_BYTES * chunks)
    head = PyBytes_AS_STRING(heads)
    if constant:
        write_head(head, p[0], 0, 0)
        return heads
    with nogil:
        for chunk in range(chunks):
            fit(p + chunk * CHUNK_ROWS, min(CHUNK_ROWS, rows - chunk * CHUNK_ROWS), &line)
            write_head(head + chunk * HEAD_BYTES, line.base, line.slope, (words << WIDTH_BITS) | line.width)
            words += 2 * line.width
    # One more word, so that reading the two words of a value never reads beyond the end.
    out = PyBytes_FromStringAndSize(NULL, HEAD_BYTES * chunks + 8 * (<Py_ssize_t>words + 1))
    to = PyBytes_AS_STRING(out)
    with nogil:
        memcpy(to, head, HEAD_BYTES * chunks)
        memset(to + HEAD_BYTES * chunks, 0, 8 * (<Py_ssize_t>words + 1))
        for chunk in range(chunks):
            memcpy(&line.base, head + chunk * HEAD_BYTES, 8)
            line.slope = u32(head + chunk * HEAD_BYTES + SLOPE_AT)
            words = u32(head + chunk * HEAD_BYTES + PLACE_AT)
            line.width = words & 127
            write_bits(to + HEAD_BYTES * chunks + 8 * <Py_ssize_t>(words >> WIDTH_BITS), p + chunk * CHUNK_ROWS,
                       min(CHUNK_ROWS, rows - chunk * CHUNK_ROWS), &line)
    return out


def pack_columns(tuple arrays not None):
    """Pack the result of `SegmentIndex.to_arrays`; b"" stands for a column that is None. Most of it needs no GIL."""
    return [b"" if array is None else pack_column(array) for array in arrays]


def is_packed_column(bytes data not None, Py_ssize_t rows):
    """Return whether these bytes are a column of this many rows: whether each value can be read within them."""
    cdef const char *head = PyBytes_AS_STRING(data)
    cdef Py_ssize_t chunks = (rows + CHUNK_ROWS - 1) >> CHUNK_SHIFT, size = PyBytes_GET_SIZE(data), chunk
    cdef uint64_t words = 0
    cdef uint32_t place
    if rows <= 0 or rows > ROWS_MAX:
        return rows == 0 and size == 0
    if size == HEAD_BYTES:
        return u32(head + SLOPE_AT) == 0 and u32(head + PLACE_AT) == 0
    if size < HEAD_BYTES * chunks + 8:
        return False
    for chunk in range(chunks):
        place = u32(head + chunk * HEAD_BYTES + PLACE_AT)
        if place & 127 > 64 or place >> WIDTH_BITS != words:
            return False
        words += 2 * (place & 127)
    return <uint64_t>size == <uint64_t>(HEAD_BYTES * chunks) + 8 * (words + 1)


def unpack_column(bytes data not None, Py_ssize_t rows):
    """Return the values of a column as an array of u64; raise ValueError if they are not a column of this many rows."""
    cdef Packed column
    cdef Py_ssize_t i
    if not is_packed_column(data, rows):
        raise ValueError("the bytes are no packed column of this many rows")
    out = np.empty(rows, np.uint64)
    cdef uint64_t[::1] values = out
    if rows:
        set_packed(&column, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), rows)
        for i in range(rows):
            values[i] = packed_get(&column, i)
    return out
