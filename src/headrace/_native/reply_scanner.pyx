# cython: language_level=3
"""Scans direct-get replies and encodes publishes, compiled.

Owns the parsing of `HMSG` with the headers that a server adds to a stored message (`ReplyScanner`), and the encoding of
`HPUB` (`encode_publishes`). No Python object is created per message. Must not know sockets or Arrow.
`reply_scanner_pure` is the same in pure Python; the same tests run on both. See ADR 52.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

#: Numbers per message in `ReplyScanner.packed_rows`.
FIELDS_PER_MESSAGE = 8

cdef enum:
    FIELDS = 8  # see `ReplyScanner.packed_rows`
    ADDED = 6
    OPENING = 10  # NATS/1.0 and CRLF
    LENGTHS = 24  # more than enough for two numbers, a space and CRLF
    YEAR_MAX = 2261  # the last complete year that 63 bits of nanoseconds can represent

cdef const char *NAMES[ADDED]
cdef int SIZES[ADDED]
NAMES[0], SIZES[0] = b"Nats-Last-Sequence: ", 20
NAMES[1], SIZES[1] = b"Nats-Num-Pending: ", 18
NAMES[2], SIZES[2] = b"Nats-Time-Stamp: ", 17
NAMES[3], SIZES[3] = b"Nats-Sequence: ", 15
NAMES[4], SIZES[4] = b"Nats-Subject: ", 14
NAMES[5], SIZES[5] = b"Nats-Stream: ", 13


cdef inline int64_t number(const char *at, const char *end) noexcept nogil:
    """Return the number; -1 if the text is not all digits."""
    cdef int64_t value = 0
    if at >= end or end - at > 18:
        return -1
    while at < end:
        if at[0] < c"0" or at[0] > c"9":
            return -1
        value = value * 10 + (at[0] - c"0")
        at += 1
    return value


cdef inline int64_t month_days(int64_t year, int64_t month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef int64_t nanoseconds(const char *at, const char *end) noexcept nogil:
    """Parse 2026-11-15T09:44:03.5034761Z to nanoseconds since 1970; -1 if it has another format."""
    cdef int64_t year, month, day, days, hour, minute, second, part = 0
    cdef int digits = 0
    if end - at < 20 or (end - 1)[0] != c"Z" or at[4] != c"-" or at[7] != c"-" or at[10] != c"T":
        return -1
    if at[13] != c":" or at[16] != c":":
        return -1
    year, month, day = number(at, at + 4), number(at + 5, at + 7), number(at + 8, at + 10)
    hour, minute, second = number(at + 11, at + 13), number(at + 14, at + 16), number(at + 17, at + 19)
    if at[19] == c".":
        digits = <int>(end - at - 21)
        if digits < 1 or digits > 9:
            return -1
        part = number(at + 20, end - 1)
    elif end - at != 20:
        return -1
    if year < 1970 or year > YEAR_MAX or month < 1 or month > 12 or day < 1 or day > month_days(year, month):
        return -1
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59 or part < 0:
        return -1
    while digits < 9:
        part *= 10
        digits += 1
    # Days of the civil calendar, years beginning with March so that a leap day is the last one.
    year -= month <= 2
    days = (year // 400) * 146097 + (year % 400) * 365 + (year % 400) // 4 - (year % 400) // 100
    days += (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 - 719468
    return (days * 86400 + hour * 3600 + minute * 60 + second) * 1000000000 + part


cdef class ReplyScanner:
    """Finds the messages of one request's replies in a buffer that is still being filled."""

    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t count
    cdef readonly bytes status
    #: Whether each message names the one found before it as the one that the server sent before it.
    cdef readonly bint is_complete
    cdef bytes _line
    cdef int64_t *_rows
    cdef Py_ssize_t _room

    def __cinit__(self, bytes reply):
        self.position = self.count = self._room = 0
        self.status = b""
        self.is_complete = True
        self._line = b"HMSG " + reply + b" 1 "
        self._rows = NULL

    def __dealloc__(self):
        free(self._rows)

    def scan(self, bytearray buffer):
        """Scan complete messages; return True once the reply that ends the block was found.

        The text of a ValueError is what the reply lacks.
        """
        cdef const char *start = PyByteArray_AS_STRING(buffer)
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(buffer), skip = PyBytes_GET_SIZE(self._line)
        cdef const char *line = PyBytes_AS_STRING(self._line)
        cdef Py_ssize_t end, after
        cdef const char *found
        cdef const char *space
        cdef int64_t head, total
        while self.position + skip < size and memcmp(start + self.position, line, skip) == 0:
            found = <const char *>memchr(start + self.position + skip, 10, min(LENGTHS, size - self.position - skip))
            if found == NULL and size - self.position - skip < LENGTHS:
                break
            if found == NULL or found == start + self.position + skip or (found - 1)[0] != 13:
                raise ValueError("header and total length")
            end = found - start - 1
            space = <const char *>memchr(start + self.position + skip, 32, end - self.position - skip)
            if space == NULL:
                raise ValueError("header and total length")
            head, total = number(start + self.position + skip, space), number(space + 1, start + end)
            if head < OPENING or total < head:
                raise ValueError("valid lengths")
            after = end + 4 + total
            if after > size:
                break
            if start[end + 10] == 32:
                self.status = PyBytes_FromStringAndSize(start + end + 2, total)
                self.position = after
                return True
            self._add_row(start, end + 2, head, total)
            self.position = after
        return False

    cdef int _add_row(self, const char *start, Py_ssize_t at, int64_t head, int64_t total) except -1:
        """Parse the lines that the server added, from the last one backwards."""
        cdef const char *end = start + at + head - 4
        cdef const char *begin
        cdef const char *floor = start + at
        cdef int64_t *row = self._reserve_row()
        cdef int64_t previous = (row - FIELDS)[3] if self.count else 0
        cdef int each
        row[0], row[1], row[2] = at, head, total
        for each in range(ADDED):
            begin = end
            while begin > floor and (begin - 1)[0] != 10:
                begin -= 1
            if begin == floor or end - begin < SIZES[each] or memcmp(begin, NAMES[each], SIZES[each]) != 0:
                raise ValueError(NAMES[each].decode())
            if each == 0:
                if number(begin + SIZES[each], end) != previous:
                    self.is_complete = False
            elif each == 2:
                row[4] = nanoseconds(begin + SIZES[each], end)
            elif each == 3:
                row[3] = number(begin + SIZES[each], end)
            elif each == 4:
                row[5], row[6] = begin + SIZES[each] - start, end - begin - SIZES[each]
            end = begin - 2
        if row[3] < 0 or row[4] < 0:
            raise ValueError("a valid sequence and time")
        row[7] = end + 2 - start
        self.count += 1
        return 0

    cdef int64_t *_reserve_row(self) except NULL:
        cdef int64_t *rows = self._rows
        if self.count == self._room:
            self._room = max(1024, self._room * 2)
            rows = <int64_t *>realloc(rows, self._room * FIELDS * sizeof(int64_t))
            if rows == NULL:
                raise MemoryError
            self._rows = rows
        return rows + self.count * FIELDS

    def packed_rows(self):
        """Return eight numbers per message: where its header begins, the header's length and the total length,
        sequence, time in nanoseconds, position and length of the subject, and where the stored headers end.
        """
        return PyBytes_FromStringAndSize(<const char *>self._rows, self.count * FIELDS * sizeof(int64_t))


cdef inline Py_ssize_t width(int64_t value) noexcept nogil:
    cdef Py_ssize_t digits = 1
    while value >= 10:
        value //= 10
        digits += 1
    return digits


cdef inline char *put(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(at, data, size)
    return at + size


cdef inline char *put_number(char *at, int64_t value) noexcept nogil:
    cdef Py_ssize_t digits = width(value), each
    for each in range(digits - 1, -1, -1):
        at[each] = <char>(c"0" + value % 10)
        value //= 10
    return at + digits


@cython.boundscheck(False)  # the loop stays within `ends`
cdef int64_t spanned(const int32_t[::1] ends, Py_ssize_t size) except -1:
    """Return the total size of a column's values; their offsets must ascend within its `size` bytes."""
    cdef Py_ssize_t row
    if ends[0] < 0 or ends[ends.shape[0] - 1] > size:
        raise ValueError("the offsets of a column do not ascend or point outside of it")
    for row in range(ends.shape[0] - 1):
        if ends[row + 1] < ends[row]:
            raise ValueError("the offsets of a column do not ascend or point outside of it")
    return <int64_t>ends[ends.shape[0] - 1] - ends[0]


@cython.boundscheck(False)  # `spanned` has checked every offset
def encode_publishes(tuple subjects, tuple lines, tuple payloads, bytes reply, bytes mark, int64_t first):
    """Encode an HPUB for each row. A column is (offsets, bytes), as in Arrow; `lines` are the rows' own headers, or ().

    `mark` is the beginning of a header that a number, counting from `first`, completes; b"" adds none.
    """
    cdef const int32_t[::1] subject_ends = subjects[0], payload_ends = payloads[0], line_ends
    cdef const unsigned char[::1] subject_bytes = subjects[1], payload_bytes = payloads[1], line_bytes
    cdef Py_ssize_t rows = subject_ends.shape[0] - 1, row, own, head
    cdef int64_t size
    cdef Py_ssize_t mark_size = PyBytes_GET_SIZE(mark), reply_size = PyBytes_GET_SIZE(reply)
    cdef bint headed = len(lines) > 0
    cdef const char *subject
    cdef char *at
    if headed:
        line_ends, line_bytes = lines
    if payload_ends.shape[0] != rows + 1 or (headed and line_ends.shape[0] != rows + 1):
        raise ValueError("columns of different lengths")
    if first < 0:
        raise ValueError("the first number must not be negative")
    if rows <= 0:
        return bytearray()
    size = rows * (96 + reply_size + mark_size) + spanned(subject_ends, subject_bytes.shape[0])
    size += spanned(payload_ends, payload_bytes.shape[0])
    if headed:
        size += spanned(line_ends, line_bytes.shape[0])
    cdef bytearray out = bytearray(size)
    cdef char *start = PyByteArray_AS_STRING(out)
    at = start
    for row in range(rows):
        size = subject_ends[row + 1] - subject_ends[row]
        if size == 0:
            raise ValueError("a row has no subject")
        subject = <const char *>&subject_bytes[subject_ends[row]]
        for own in range(size):
            if <unsigned char>subject[own] <= 32:
                raise ValueError(f"{subject[:size]!r} cannot be a subject")
        own = line_ends[row + 1] - line_ends[row] if headed else 0
        head = OPENING + own + 2
        if mark_size:
            head += mark_size + width(first + row) + 2
        at = put(put(at, b"HPUB ", 5), subject, size)
        if reply_size:
            at = put(put(at, b" ", 1), PyBytes_AS_STRING(reply), reply_size)
        size = payload_ends[row + 1] - payload_ends[row]
        at = put_number(put(at, b" ", 1), head)
        at = put_number(put(at, b" ", 1), head + size)
        at = put(at, b"\r\nNATS/1.0\r\n", 12)
        if own:
            at = put(at, <const char *>&line_bytes[line_ends[row]], own)
        if mark_size:
            at = put(put_number(put(at, PyBytes_AS_STRING(mark), mark_size), first + row), b"\r\n", 2)
        at = put(at, b"\r\n", 2)
        if size:
            at = put(at, <const char *>&payload_bytes[payload_ends[row]], size)
        at = put(at, b"\r\n", 2)
    del out[at - start :]
    return out
