# cython: language_level=3
"""Words, numbers and headers of the protocol, for all modules that parse it; all inline, so there is nothing to link."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp


cdef struct Span:
    const char *at
    Py_ssize_t size


cdef inline bint blank(char c) noexcept nogil:
    return c == 32 or c == 9 or c == 13


cdef inline Py_ssize_t split(const char *at, const char *end, Span *args, Py_ssize_t most) noexcept nogil:
    """Fill `args` with the words between blanks; return their number, at most `most` + 1."""
    cdef Py_ssize_t found = 0
    while True:
        while at < end and blank(at[0]):
            at += 1
        if at == end:
            return found
        if found == most:
            return found + 1
        args[found].at = at
        while at < end and not blank(at[0]):
            at += 1
        args[found].size = at - args[found].at
        found += 1


cdef inline bint is_well_formed(const char *at, const char *end) noexcept nogil:
    """Return whether no token between dots is empty."""
    cdef bint empty = True
    while at < end:
        if at[0] == 46:
            if empty:
                return False
            empty = True
        else:
            empty = False
        at += 1
    return not empty


cdef inline int64_t parse_number(const char *at, const char *end, Py_ssize_t digits_max) noexcept nogil:
    """Return the value of at most `digits_max` digits; -1 if it is none or needs more than 63 bits."""
    cdef uint64_t value = 0
    if at >= end or end - at > digits_max:
        return -1
    while at < end:
        if at[0] < 48 or at[0] > 57:
            return -1
        value = value * 10 + <uint64_t>(at[0] - 48)
        at += 1
    return <int64_t>value if value < (1ULL << 63) else -1


cdef inline bint asks_for_trace(const char *header, Py_ssize_t size) noexcept nogil:
    """Return whether a header block may contain `Nats-Trace-Dest`; its capital D is rare, so this is one fast search."""
    cdef const char *end = header + size
    cdef const char *at = <const char *>memchr(header, 68, size)
    while at != NULL:
        if at - header >= 11 and end - at >= 4 and memcmp(at - 11, b"Nats-Trace-Dest", 15) == 0:
            return True
        at = <const char *>memchr(at + 1, 68, end - at - 1)
    return False
