# cython: language_level=3
"""Words of protocol lines, shared by the parsers of clients and leafnodes; all inline, so there is nothing to link."""


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
