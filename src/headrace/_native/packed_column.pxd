# cython: language_level=3
"""How to read one value of a packed column; all inline, so there is nothing to link. `column_packing` writes them."""

from libc.stdint cimport uint32_t, uint64_t

from headrace._native.record_layout cimport u32, u64

cdef enum:
    CHUNK_SHIFT = 7
    CHUNK_ROWS = 128
    HEAD_BYTES = 16
    SLOPE_AT = 8  # in a head; the base is at 0
    PLACE_AT = 12
    WIDTH_BITS = 7  # of a place: the lowest ones; the others count words before the chunk
    ONE_LOAD_WIDTH = 57  # so many bits are always within the 8 bytes from the first one on
    ONE_CHUNK = 62  # shift of a column with the same value in every row: all of them are in chunk 0


cdef struct Packed:
    const char *heads  # NULL: there is no such column
    const char *words
    int shift


cdef inline void set_packed(Packed *column, const char *data, Py_ssize_t size, Py_ssize_t rows) noexcept nogil:
    """Refer to a packed column of this many rows, which must be valid and must not be empty."""
    column.heads = data
    if size == HEAD_BYTES:
        column.shift = ONE_CHUNK
        column.words = data
    else:
        column.shift = CHUNK_SHIFT
        column.words = data + ((rows + CHUNK_ROWS - 1) >> CHUNK_SHIFT) * HEAD_BYTES


cdef inline uint64_t packed_get(const Packed *column, Py_ssize_t i) noexcept nogil:
    cdef const char *head = column.heads + (i >> column.shift) * HEAD_BYTES
    cdef const char *at
    cdef uint32_t place = u32(head + PLACE_AT), width = place & 127, k = i & (CHUNK_ROWS - 1), bit
    cdef uint64_t value = u64(head) + <uint64_t>u32(head + SLOPE_AT) * k, bits
    if width == 0:
        return value
    bit = k * width
    at = column.words + <Py_ssize_t>(place >> WIDTH_BITS) * 8
    if width <= ONE_LOAD_WIDTH:
        return value + ((u64(at + (bit >> 3)) >> (bit & 7)) & ((<uint64_t>1 << width) - 1))
    at += (bit >> 6) * 8
    bit &= 63
    bits = u64(at) >> bit
    if bit + width > 64:
        bits |= u64(at + 8) << (64 - bit)
    if width < 64:
        bits &= (<uint64_t>1 << width) - 1
    return value + bits


cdef inline void packed_run(const Packed *column, Py_ssize_t first, Py_ssize_t count, uint32_t *out) noexcept nogil:
    """Read `count` values of one chunk from row `first` on; they must have 32 bits at most."""
    cdef const char *head = column.heads + (first >> column.shift) * HEAD_BYTES
    cdef uint32_t place = u32(head + PLACE_AT), width = place & 127, slope = u32(head + SLOPE_AT)
    cdef uint32_t k = first & (CHUNK_ROWS - 1), bit = k * width
    cdef uint64_t value = u64(head) + <uint64_t>slope * k, mask = (<uint64_t>1 << (width & 63)) - 1
    cdef const char *at = column.words + <Py_ssize_t>(place >> WIDTH_BITS) * 8
    cdef Py_ssize_t i
    if width > ONE_LOAD_WIDTH:
        for i in range(count):
            out[i] = <uint32_t>packed_get(column, first + i)
        return
    for i in range(count):
        out[i] = <uint32_t>(value + ((u64(at + (bit >> 3)) >> (bit & 7)) & mask))
        value += slope
        bit += width
