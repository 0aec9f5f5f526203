# cython: language_level=3
"""What other compiled modules may drive directly: the state of a log's growing end."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


@cython.final
cdef class Gate:
    cdef public bint closed
    cdef public int64_t pending
    cdef public int64_t limit
    cdef public uint64_t frame
    cdef public list dirty
    cdef public object refuse


@cython.final
cdef class Subjects:
    cdef char *arena
    cdef Py_ssize_t arena_used, arena_cap
    cdef uint32_t *slots
    cdef Py_ssize_t slots_cap
    cdef Py_ssize_t n, cap
    cdef object a_ends, a_hashes, a_counts, a_firsts, a_lasts, a_classes
    cdef uint64_t *ends
    cdef uint32_t *hashes
    cdef uint32_t *counts_
    cdef uint64_t *firsts_
    cdef uint64_t *lasts_
    cdef uint32_t *classes_
    cdef public Py_ssize_t alive

    cdef int point(self) except -1
    cdef Py_ssize_t c_find(self, const char *p, Py_ssize_t length, uint32_t h) noexcept nogil
    cdef Py_ssize_t c_add(self, const char *p, Py_ssize_t length) except -1
    cdef Py_ssize_t c_new(self, const char *p, Py_ssize_t length, uint32_t h) except -1
    cdef int rehash(self, Py_ssize_t cap) except -1
    cdef int adopt(self, Subjects other) except -1
    cdef bint c_is(self, uint32_t sid, const char *p, Py_ssize_t length) noexcept nogil
    cdef void c_in(self, Py_ssize_t sid, uint64_t seq) noexcept nogil
    cdef void c_out(self, Py_ssize_t sid, uint64_t seq) noexcept nogil


@cython.final
cdef class Columns:
    cdef readonly object time, offset, size, subject, ttl, flags, delta, live
    cdef uint64_t *w_time
    cdef uint32_t *w_offset
    cdef uint32_t *w_size
    cdef uint32_t *w_subject
    cdef uint32_t *w_ttl
    cdef uint16_t *w_flags
    cdef uint32_t *w_delta
    cdef const uint64_t *c_time
    cdef const uint32_t *c_offset
    cdef const uint32_t *c_size
    cdef const uint32_t *c_subject
    cdef const uint32_t *c_ttl
    cdef const uint16_t *c_flags
    cdef const uint32_t *c_delta
    cdef uint8_t *c_live
    cdef uint32_t same_ttl  # of every row, where c_ttl is NULL
    cdef uint16_t same_flags  # ... c_flags
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t cap
    cdef public uint64_t base
    cdef public Py_ssize_t alive
    cdef public int64_t alive_bytes

    cdef int grow(self) except -1
    cdef int point(self) except -1
    cdef int spread(self) except -1
    cdef int push(self, uint64_t seq, uint64_t time, uint32_t offset, uint32_t size, uint32_t subject, uint32_t ttl, uint16_t flags) except -1
    cdef uint64_t c_seq(self, Py_ssize_t i) noexcept nogil
    cdef Py_ssize_t c_lower(self, uint64_t seq) noexcept nogil
    cdef uint16_t c_flags_of(self, Py_ssize_t i) noexcept nogil
    cdef int check_row(self, Py_ssize_t i) except -1
    cdef int check_span(self, Py_ssize_t lo, Py_ssize_t hi) except -1
    cdef int c_kill(self, Py_ssize_t i) except -1
    cdef Py_ssize_t c_next(self, const uint32_t *classes, const uint8_t *mask, Py_ssize_t i, Py_ssize_t hi) noexcept nogil


@cython.final
cdef class Block:
    cdef public uint64_t offset
    cdef public bytearray data
    cdef public Py_ssize_t used
    cdef public uint64_t first_seq
    cdef public Py_ssize_t records
    cdef public bint direct


cdef class Packer:
    cdef public Subjects table
    cdef public Columns columns
    cdef public list blocks
    cdef public Py_ssize_t block_max
    cdef public uint64_t block_at
    cdef readonly bytearray tail
    cdef char *p
    cdef Py_ssize_t cap
    cdef readonly Py_ssize_t tail_used
    cdef public Py_ssize_t tail_row

    cdef int renew(self) except -1
    cdef int room(self, Py_ssize_t size) except -1
    cdef int take(self, const char *record, uint32_t size, uint32_t sid) except -1


cdef class Appender(Packer):
    cdef public Gate gate
    cdef public uint32_t ident
    cdef public uint64_t first_seq, last_seq, committed_seq, sealed_seq, changed_frame
    cdef public uint64_t last_time_ns
    cdef public Py_ssize_t messages
    cdef public int64_t bytes
    cdef public Py_ssize_t large
    cdef public bint journaled
    cdef public int64_t overhead
    cdef public int64_t header_extra
    cdef public bint dirty
    cdef bint quiet
    cdef Py_ssize_t mark
    cdef list parts
    cdef uint64_t *gone
    cdef Py_ssize_t gone_n, gone_cap
    cdef uint64_t trim_to, advance_to

    cdef int c_touch(self) except -1
    cdef uint64_t c_append(self, const char *subject, Py_ssize_t sl, const char *header, Py_ssize_t hl, const char *payload, Py_ssize_t pl, uint64_t time_ns, uint32_t ttl_s, uint16_t flags) except 0
    cdef void c_count(self, Py_ssize_t sid, uint64_t seq, Py_ssize_t size, uint16_t flags, uint64_t time_ns) noexcept nogil
    cdef int c_discount(self, Columns columns, Py_ssize_t i) except -1
    cdef int c_gone(self, uint64_t first, uint64_t last) except -1
    cdef Py_ssize_t weigh(self) except -1
    cdef char *entry(self, char *p, int kind, Py_ssize_t length) noexcept
    cdef Py_ssize_t weigh_changes(self) noexcept
    cdef char *pour(self, char *p) except NULL
    cdef char *pour_changes(self, char *p) noexcept
    cdef int lay(self, list pieces) except -1
    cdef int lay_records(self, list pieces, bytearray data, Py_ssize_t lo, Py_ssize_t hi) except -1
    cdef int reset(self) except -1
    cdef int64_t c_newest(self, const char *subject, Py_ssize_t size) noexcept nogil
