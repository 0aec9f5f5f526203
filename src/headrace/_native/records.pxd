# cython: language_level=3
"""What other compiled modules use without Python calls: columns, subjects and the growing end of a log."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from headrace._native.packed_column cimport Packed


@cython.final
cdef class OpenFrame:
    cdef public bint closed
    cdef public int64_t pending_bytes
    cdef public int64_t max_bytes
    cdef public uint64_t number
    cdef public list dirty_logs
    cdef public object extend


@cython.final
cdef class SubjectIndex:
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

    cdef int refresh_pointers(self) except -1
    cdef Py_ssize_t c_find(self, const char *p, Py_ssize_t length, uint32_t h) noexcept nogil
    cdef Py_ssize_t c_add(self, const char *p, Py_ssize_t length) except -1
    cdef Py_ssize_t c_new(self, const char *p, Py_ssize_t length, uint32_t h) except -1
    cdef int rehash(self, Py_ssize_t cap) except -1
    cdef int swap_with(self, SubjectIndex other) except -1
    cdef bint c_is(self, uint32_t sid, const char *p, Py_ssize_t length) noexcept nogil
    cdef void c_message_added(self, Py_ssize_t sid, uint64_t seq) noexcept nogil
    cdef void c_message_removed(self, Py_ssize_t sid, uint64_t seq) noexcept nogil


@cython.final
cdef class SegmentIndex:
    cdef object time, offset, size, subject, ttl, flags, delta
    cdef readonly object live
    cdef readonly list packed  # the columns after sealing; then the arrays before are None
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
    cdef Packed p_time, p_offset, p_size, p_subject, p_ttl, p_flags, p_delta
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t cap
    cdef public uint64_t base
    cdef public Py_ssize_t alive
    cdef public int64_t alive_bytes

    cdef int grow(self) except -1
    cdef int refresh_pointers(self) except -1
    cdef int make_sparse(self) except -1
    cdef int append(self, uint64_t seq, uint64_t time, uint32_t offset, uint32_t size, uint32_t subject, uint32_t ttl, uint16_t flags) except -1
    cdef uint64_t c_seq(self, Py_ssize_t i) noexcept nogil
    cdef Py_ssize_t c_lower_bound(self, uint64_t seq) noexcept nogil
    cdef bint is_sparse(self) noexcept nogil
    cdef uint64_t c_time_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_offset_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_size_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_subject_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_ttl_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_flags_of(self, Py_ssize_t i) noexcept nogil
    cdef uint64_t c_delta_of(self, Py_ssize_t i) noexcept nogil
    cdef Py_ssize_t run_end(self, Py_ssize_t i, Py_ssize_t hi, Py_ssize_t step) noexcept nogil
    cdef const uint32_t *subject_run(self, Py_ssize_t i, Py_ssize_t stop, uint32_t *buffer) noexcept nogil
    cdef object to_array(self, int k)
    cdef int check_row(self, Py_ssize_t i) except -1
    cdef int check_span(self, Py_ssize_t lo, Py_ssize_t hi) except -1
    cdef int c_tombstone(self, Py_ssize_t i) except -1
    cdef Py_ssize_t c_next(self, const uint32_t *classes, const uint8_t *mask, Py_ssize_t i, Py_ssize_t hi) noexcept nogil


@cython.final
cdef class RecordBlock:
    cdef public uint64_t offset
    cdef public bytearray data
    cdef public Py_ssize_t used
    cdef public uint64_t first_seq
    cdef public Py_ssize_t records
    cdef public bint direct


cdef class BlockBuilder:
    cdef public SubjectIndex subject_index
    cdef public SegmentIndex columns
    cdef public list blocks
    cdef public Py_ssize_t block_max
    cdef public uint64_t block_offset
    cdef readonly bytearray tail
    cdef char *p
    cdef Py_ssize_t cap
    cdef readonly Py_ssize_t tail_used
    cdef public Py_ssize_t tail_row

    cdef int reset_tail(self) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int add_record(self, const char *record, uint32_t size, uint32_t sid) except -1


cdef class LogWriter(BlockBuilder):
    cdef public OpenFrame open_frame
    cdef public uint32_t ident
    cdef public uint64_t first_seq, last_seq, committed_seq, sealed_seq, changed_frame
    cdef public uint64_t last_time_ns
    cdef public Py_ssize_t messages
    cdef public int64_t bytes
    cdef public Py_ssize_t large_bytes
    cdef public bint journaled
    cdef public int64_t overhead
    cdef public int64_t header_extra
    cdef public bint dirty
    cdef bint replaying
    cdef Py_ssize_t mark
    cdef list parts
    cdef uint64_t *gone
    cdef Py_ssize_t gone_n, gone_cap
    cdef uint64_t trim_to, advance_to

    cdef int c_mark_dirty(self) except -1
    cdef uint64_t c_append(self, const char *subject, Py_ssize_t sl, const char *header, Py_ssize_t hl, const char *payload, Py_ssize_t pl, uint64_t time_ns, uint32_t ttl_s, uint16_t flags) except 0
    cdef void c_count(self, Py_ssize_t sid, uint64_t seq, Py_ssize_t size, uint16_t flags, uint64_t time_ns) noexcept nogil
    cdef int c_subtract_row(self, SegmentIndex columns, Py_ssize_t i) except -1
    cdef int c_record_removal(self, uint64_t first, uint64_t last) except -1
    cdef Py_ssize_t changes_size(self) except -1
    cdef char *entry(self, char *p, int kind, Py_ssize_t length) noexcept
    cdef Py_ssize_t change_entries_size(self) noexcept
    cdef char *collect_changes(self, char *p) except NULL
    cdef char *write_change_entries(self, char *p) noexcept
    cdef int collect_views(self, list pieces) except -1
    cdef int move_removals(self, list pieces) except -1
    cdef int collect_record_views(self, list pieces, bytearray data, Py_ssize_t lo, Py_ssize_t hi) except -1
    cdef int reset(self) except -1
    cdef int64_t c_cached_last_seq(self, const char *subject, Py_ssize_t size) noexcept nogil
