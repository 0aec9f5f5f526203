# cython: language_level=3
"""What the publish fast path uses without Python calls: parsed headers, dedup window, open atomic batches."""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    # Which headers for the server a block contains; OTHER: one that `ParsedHeaders` has no field for.
    MSG_ID = 1
    TTL = 2
    BATCH_ID = 4
    BATCH_POSITION = 8
    OTHER = 16


cdef struct ParsedHeaders:
    const char *id
    Py_ssize_t id_size
    const char *ttl
    Py_ssize_t ttl_size
    const char *batch
    Py_ssize_t batch_size
    Py_ssize_t position


cdef int scan_headers(const char *at, const char *end, ParsedHeaders *heading) noexcept nogil


cdef class DedupWindow:
    cdef public int64_t window_ns
    cdef dict seen
    cdef list shards
    cdef Py_ssize_t sharded
    cdef bytearray order
    cdef Py_ssize_t base, head, saved_end, expired_end
    cdef uint64_t expired_seq, expired_horizon

    cdef object c_get(self, bytes message_id)
    cdef int c_put(self, bytes message_id, uint64_t seq) except -1
    cdef int c_drop(self, bytes message_id, uint64_t seq) except -1
    cdef uint64_t c_find(self, bytes message_id, uint64_t now_ns) except? 0
    cdef int c_add(self, bytes message_id, uint64_t seq, uint64_t time_ns) except -1
    cdef int c_expire(self, uint64_t now_ns, Py_ssize_t count) except -1
    cdef bint has_expired(self, uint64_t seq, uint64_t now_ns) noexcept
    cdef bint is_over(self, const char *entry, uint64_t now_ns) noexcept nogil


cdef class ByteBudget:
    cdef public Py_ssize_t bytes, bytes_max


cdef class OpenBatch:
    cdef readonly object name
    cdef public list members
    cdef public Py_ssize_t bytes, max_members
    cdef public int64_t deadline_ns, timeout_ns
    cdef public bint open
    cdef public ByteBudget budget

    cdef bint c_accepts(self, const char *name, Py_ssize_t name_size, Py_ssize_t position, Py_ssize_t size) except -1
    cdef int c_add(self, member, Py_ssize_t size) except -1
