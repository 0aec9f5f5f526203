# cython: language_level=3
"""Encodes stored records as direct-get replies, compiled.

Owns the format of these replies and of their time stamps. Must not know streams or receivers. `direct_get_pure` is the
same in pure Python; the same tests run on both. See ADR 9.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr

from headrace._native.record_layout cimport RECORD_HEADER, Record, digits, put, read
from headrace._native.records cimport LogWriter, SegmentIndex

cdef enum:
    BLOCK = 32
    TAIL = 256  # enough for the headers of a reply whose size is bounded
    SECOND_NS = 1000000000


cdef inline char *padded(char *to, uint64_t value, int width) noexcept nogil:
    cdef int i
    for i in range(width - 1, -1, -1):
        to[i] = <char>(48 + value % 10)
        value //= 10
    return to + width


cdef char *format_time(char *to, uint64_t time_ns) noexcept nogil:
    """Format as RFC 3339 in UTC with up to nine digits, trailing zeros trimmed; return the end."""
    cdef uint64_t second = time_ns // SECOND_NS, fraction = time_ns % SECOND_NS
    cdef uint64_t days = second // 86400, rest = second % 86400
    # Years begin in March and repeat every 400 years, so that a leap day is the last day of its cycle.
    cdef uint64_t shifted = days + 719468, cycle = shifted // 146097, day = shifted % 146097
    cdef uint64_t year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    cdef uint64_t month
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month = month + 3 if month < 10 else month - 9
    year += cycle * 400 + (1 if month <= 2 else 0)
    to = padded(to, year, 4)
    to[0] = 45
    to = padded(to + 1, month, 2)
    to[0] = 45
    to = padded(to + 1, day + 1, 2)
    to[0] = 84
    to = padded(to + 1, rest // 3600, 2)
    to[0] = 58
    to = padded(to + 1, rest // 60 % 60, 2)
    to[0] = 58
    to = padded(to + 1, rest % 60, 2)
    if fraction:
        to[0] = 46
        to = padded(to + 1, fraction, 9)
        while (to - 1)[0] == 48:
            to -= 1
    to[0] = 90
    return to + 1


cdef bytes encode_headers(Record *record, bytes fixed, int64_t pending, uint64_t last):
    """Return the stored headers plus those that describe the record, and those of a batch if `pending` is not negative."""
    cdef char tail[TAIL]
    cdef char *to = tail
    cdef Py_ssize_t stored = max(record.header_size - 2, 0) if record.header_size else 10
    cdef Py_ssize_t tail_size, fixed_size = PyBytes_GET_SIZE(fixed)
    cdef bytes made
    to = put(to, b"\r\nNats-Sequence: ", 17)
    to = digits(to, record.seq)
    to = put(to, b"\r\nNats-Time-Stamp: ", 19)
    to = format_time(to, record.time_ns)
    to = put(to, b"\r\n", 2)
    if pending >= 0:
        to = put(to, b"Nats-Num-Pending: ", 18)
        to = digits(to, <uint64_t>pending)
        to = put(to, b"\r\nNats-Last-Sequence: ", 22)
        to = digits(to, last)
        to = put(to, b"\r\n", 2)
    to = put(to, b"\r\n", 2)
    tail_size = to - tail
    made = PyBytes_FromStringAndSize(NULL, stored + fixed_size + record.subject_size + tail_size)
    to = PyBytes_AS_STRING(made)
    if record.header_size:
        to = put(to, record.header, stored)
    else:
        to = put(to, b"NATS/1.0\r\n", 10)
    to = put(to, PyBytes_AS_STRING(fixed), fixed_size)
    to = put(to, record.subject, record.subject_size)
    put(to, tail, tail_size)
    return made


cpdef encode_reply(data, Py_ssize_t at, bytes fixed):
    """Return header block and payload of the reply for the record at `at`; `fixed` goes before its subject."""
    cdef const unsigned char[::1] view
    cdef const char *start = NULL
    cdef Py_ssize_t size
    cdef Record record
    if type(data) is bytearray:
        start, size = PyByteArray_AS_STRING(data), PyByteArray_GET_SIZE(data)
    elif type(data) is bytes:
        start, size = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    else:
        view = data
        size = view.shape[0]
        if size:
            start = <const char *>&view[0]
    if not 0 <= at < size or not read(start + at, start + size, &record):
        raise ValueError("no record there")
    return encode_headers(&record, fixed, -1, 0), PyBytes_FromStringAndSize(record.payload, record.payload_size)


def encode_last_by_subject(LogWriter log not None, bytes subject not None, Py_ssize_t skip, bytes fixed not None):
    """Return the reply with the newest message of a subject, which starts after `skip` bytes of `subject`.

    None if the message must be searched for: a wildcard, no such message, or one that is not in the active segment.
    """
    cdef const char *name = PyBytes_AS_STRING(subject) + skip
    cdef Py_ssize_t size = PyBytes_GET_SIZE(subject) - skip, row
    cdef SegmentIndex columns = log.columns
    cdef int64_t seq
    cdef uint64_t offset
    if skip < 0:
        raise IndexError(skip)
    if size <= 0 or memchr(name, 42, size) != NULL or memchr(name, 62, size) != NULL:
        return None
    seq = log.c_cached_last_seq(name, size)
    if seq <= 0 or not columns.rows or <uint64_t>seq < columns.base:
        return None
    row = columns.c_lower_bound(<uint64_t>seq)
    if row >= columns.rows or columns.c_seq(row) != <uint64_t>seq or (columns.c_live != NULL and not columns.c_live[row]):
        return None
    offset = columns.c_offset_of(row)
    if offset >= log.block_offset:
        return encode_reply(log.tail, <Py_ssize_t>(offset - log.block_offset) - BLOCK, fixed)
    data, place = log.read_active_block(offset)
    return encode_reply(data, <Py_ssize_t>offset - <Py_ssize_t>place, fixed)


def encode_replies(list messages not None, view, seqs, Py_ssize_t at, Py_ssize_t most, int64_t bytes_max, bytes reply not None,
            bytes fixed, int64_t pending, uint64_t last):
    """Add the records of `view` that are in `seqs` from index `at` on as replies to `reply`, at most `most` and none
    after `bytes_max` is reached.

    `fixed` is None for payloads alone; `pending` is the number of pending messages before these, `last` the sequence
    sent before. Returns how many were added and their size: that of subjects, stored headers and payloads.
    """
    cdef const unsigned char[::1] data = view
    cdef const uint64_t[::1] wanted = seqs
    cdef Py_ssize_t stop = wanted.shape[0], start = at
    cdef int64_t size = 0
    cdef const char *here
    cdef const char *end
    cdef Record record
    cdef bytes block = b""
    if at < 0:
        raise IndexError(at)
    if most < stop - at:  # not `at + most`, which may overflow
        stop = at + most
    if at >= stop or data.shape[0] == 0:
        return 0, 0
    here = <const char *>&data[0]
    end = here + data.shape[0]
    while at < stop and size < bytes_max and read(here, end, &record):
        here += record.size
        if record.seq < wanted[at]:
            continue
        if record.seq > wanted[at]:
            break
        pending = pending - 1 if pending > 0 else 0
        if fixed is not None:
            block = encode_headers(&record, fixed, pending, last)
        messages.append((reply, b"", block, PyBytes_FromStringAndSize(record.payload, record.payload_size)))
        size += record.size - RECORD_HEADER
        last = record.seq
        at += 1
    return at - start, size
