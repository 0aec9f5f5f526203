# cython: language_level=3
"""Bytes in and out, for the modules that read stored records and write lines: all inline, so there is nothing to link."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    RECORD_HEADER = 32  # what stands before a record's subject


cdef struct Record:
    Py_ssize_t size, subject_size, header_size, payload_size
    const char *subject
    const char *header
    const char *payload
    uint64_t seq, time_ns


cdef inline uint16_t u16(const char *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint32_t u32(const char *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t u64(const char *at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline bint read(const char *at, const char *end, Record *record) noexcept nogil:
    """Take one record apart; False where there is none."""
    if end - at < RECORD_HEADER:
        return False
    record.size = u32(at)
    if record.size < RECORD_HEADER or end - at < record.size:
        return False
    record.subject_size = u16(at + 4)
    record.header_size = u32(at + 8)
    record.seq = u64(at + 16)
    record.time_ns = u64(at + 24)
    record.subject = at + RECORD_HEADER
    record.header = record.subject + record.subject_size
    record.payload = record.header + record.header_size
    record.payload_size = record.size - RECORD_HEADER - record.subject_size - record.header_size
    return record.payload_size >= 0


cdef inline char *put(char *to, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef inline char *digits(char *to, uint64_t value) noexcept nogil:
    """Write a number; where it ends."""
    cdef char scratch[20]
    cdef int size = 0, i
    while True:
        scratch[size] = <char>(48 + value % 10)
        size += 1
        value //= 10
        if value == 0:
            break
    for i in range(size):
        to[i] = scratch[size - 1 - i]
    return to + size
