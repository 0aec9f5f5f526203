# cython: language_level=3
"""The header of a stored record, and helpers to read and write bytes; all inline, so there is nothing to link.

The only definition of the header in the compiled modules; `record_header.py` is the one in Python.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    RECORD_HEADER = 32  # bytes before a record's subject
    SUBJECT_SIZE_AT = 4  # the size of the whole record is at 0
    FLAGS_AT = 6
    HEADER_SIZE_AT = 8
    TTL_AT = 12
    SEQ_AT = 16
    TIME_AT = 24


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


cdef inline uint32_t record_size(const char *record) noexcept nogil:
    return u32(record)


cdef inline uint16_t record_subject_size(const char *record) noexcept nogil:
    return u16(record + SUBJECT_SIZE_AT)


cdef inline uint16_t record_flags(const char *record) noexcept nogil:
    return u16(record + FLAGS_AT)


cdef inline uint32_t record_header_size(const char *record) noexcept nogil:
    return u32(record + HEADER_SIZE_AT)


cdef inline uint32_t record_ttl(const char *record) noexcept nogil:
    return u32(record + TTL_AT)


cdef inline uint64_t record_seq(const char *record) noexcept nogil:
    return u64(record + SEQ_AT)


cdef inline uint64_t record_time(const char *record) noexcept nogil:
    return u64(record + TIME_AT)


cdef inline void write_record_header(char *to, uint32_t size, uint16_t subject_size, uint16_t flags, uint32_t header_size,
                                     uint32_t ttl, uint64_t seq, uint64_t time) noexcept nogil:
    memcpy(to, &size, 4)
    memcpy(to + SUBJECT_SIZE_AT, &subject_size, 2)
    memcpy(to + FLAGS_AT, &flags, 2)
    memcpy(to + HEADER_SIZE_AT, &header_size, 4)
    memcpy(to + TTL_AT, &ttl, 4)
    memcpy(to + SEQ_AT, &seq, 8)
    memcpy(to + TIME_AT, &time, 8)


cdef inline bint read(const char *at, const char *end, Record *record) noexcept nogil:
    """Decode the record at `at`; return False if there is no complete one."""
    if end - at < RECORD_HEADER:
        return False
    record.size = record_size(at)
    if record.size < RECORD_HEADER or end - at < record.size:
        return False
    record.subject_size = record_subject_size(at)
    record.header_size = record_header_size(at)
    record.seq = record_seq(at)
    record.time_ns = record_time(at)
    record.subject = at + RECORD_HEADER
    record.header = record.subject + record.subject_size
    record.payload = record.header + record.header_size
    record.payload_size = record.size - RECORD_HEADER - record.subject_size - record.header_size
    return record.payload_size >= 0


cdef inline char *put(char *to, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef inline char *digits(char *to, uint64_t value) noexcept nogil:
    """Write a number in decimal; return where it ends."""
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
