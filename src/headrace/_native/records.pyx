# cython: language_level=3
"""Records in memory, compiled: packing into blocks, columns, subject ids, and scans over them.

Owns the bytes between a publish and a frame: `LogWriter` assigns the sequence, writes the record once into the tail of
its block and updates columns and subjects; `build_frame_body` collects what is new for a frame. Invariant: bytes
written into a tail are never changed or moved while a view of them exists. Must not know files or time. `records_pure`
is the same in pure Python; the same tests run on both.
"""

import numpy as np

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from headrace._native.column_packing import is_packed_column, pack_column, pack_columns, unpack_column
from headrace._native.packed_column cimport CHUNK_ROWS, Packed, packed_get, packed_run, set_packed
from headrace._native.record_layout cimport (
    RECORD_HEADER,
    Record,
    digits,
    put,
    read,
    record_flags,
    record_header_size,
    record_seq,
    record_size,
    record_subject_size,
    record_time,
    record_ttl,
    u16,
    write_record_header,
)

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t hr_mix(uint64_t a, uint64_t b) {
        unsigned __int128 m = (unsigned __int128)a * b;
        return (uint64_t)m ^ (uint64_t)(m >> 64);
    }
    static inline uint32_t hr_hash(const char *p, size_t n, uint64_t seed) {
        uint64_t h = seed ^ (n * 0x9E3779B97F4A7C15ull), w;
        while (n >= 8) { memcpy(&w, p, 8); h = hr_mix(h ^ w, 0xA0761D6478BD642Full ^ seed); p += 8; n -= 8; }
        if (n) { w = 0; memcpy(&w, p, n); h = hr_mix(h ^ w, 0xE7037ED1A0B428DBull ^ seed); }
        h = hr_mix(h, 0x8EBC6AF09C88C6E3ull);
        return (uint32_t)(h ^ (h >> 32));
    }
    static inline void hr_put16(char *p, uint16_t v) { memcpy(p, &v, 2); }
    static inline void hr_put32(char *p, uint32_t v) { memcpy(p, &v, 4); }
    static inline void hr_put64(char *p, uint64_t v) { memcpy(p, &v, 8); }
    """
    uint32_t hr_hash(const char *p, size_t n, uint64_t seed) nogil
    void hr_put16(char *p, uint16_t v) nogil
    void hr_put32(char *p, uint32_t v) nogil
    void hr_put64(char *p, uint64_t v) nogil

RECORD_HEADER_BYTES = RECORD_HEADER
BLOCK_HEADER_BYTES = 32
HAS_HEADER = 0x8000
BOUND_ONLY_BIT = 1 << 63
SUBJECT_MAX = 0xFFFF

cdef enum:
    BLOCK_HEAD = 32
    ALIGN = 512
    ENTRY = 16
    NO_COPY_BYTES = 32768  # entries of a log from this size on go into a frame as views, not as copies
    FLAG_HEADER = 0x8000
    KIND_RECORDS = 2
    KIND_REMOVALS = 4
    KIND_TRIM = 5
    KIND_ADVANCE = 6
    SEGMENT_HEAD = 512
    DIGITS_MAX = 20  # of a sequence
    FIRST_RUN = 8  # rows that a search unpacks first: the next match is often near

cdef uint64_t BOUND_BIT = 1ULL << 63
# Values above are bounds (BOUND_ONLY_BIT); a log ends far below. No store writes a record with a higher sequence.
cdef uint64_t SEQ_END = (1ULL << 63) - 1
# Derived from the interpreter's hash secret, so that no client can choose subjects that collide; ids do not depend on it.
cdef uint64_t SEED = <uint64_t>(hash(b"headrace subjects") & 0xFFFFFFFFFFFFFFFF) | 1


cdef uint32_t *p32(object array) except? NULL:
    cdef uint32_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef uint64_t *p64(object array) except? NULL:
    cdef uint64_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef uint16_t *p16(object array) except? NULL:
    cdef uint16_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef uint8_t *p8(object array) except? NULL:
    cdef uint8_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef const uint32_t *c32(object array) except? NULL:
    cdef const uint32_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef const uint64_t *c64(object array) except? NULL:
    cdef const uint64_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef const uint16_t *c16(object array) except? NULL:
    cdef const uint16_t[::1] view = array
    return &view[0] if view.shape[0] else NULL


cdef inline bint holds(const char *record, Py_ssize_t room) noexcept nogil:
    """Return whether a complete record begins here, within `room` bytes.

    Sizes are added with 64 bits: 32 would wrap around.
    """
    cdef uint64_t size, seq
    if room < RECORD_HEADER:
        return False
    size, seq = record_size(record), record_seq(record)
    if size > <uint64_t>room or <uint64_t>RECORD_HEADER + record_subject_size(record) + record_header_size(record) > size:
        return False
    return 0 < seq <= SEQ_END


cdef object grow_array(object array, Py_ssize_t used, Py_ssize_t capacity):
    """Return a larger copy of an array; views of the old one stay valid."""
    fresh = np.zeros(capacity, array.dtype)
    fresh[:used] = array[:used]
    return fresh


cdef inline void put_uint64(uint8_t *to, uint64_t value) noexcept nogil:
    """Encode a number as MessagePack does."""
    cdef int shift
    to[0] = 0xCF
    for shift in range(8):
        to[1 + shift] = <uint8_t>(value >> (56 - 8 * shift))


cdef bint matches_pattern(const char *pattern, Py_ssize_t pl, const char *subject, Py_ssize_t sl) noexcept nogil:
    """Return whether a pattern with wildcards matches a subject, token by token."""
    cdef Py_ssize_t p = 0, s = 0, pe, se
    cdef const char *dot
    while True:
        dot = <const char *>memchr(pattern + p, 46, pl - p)
        pe = dot - pattern if dot != NULL else pl
        dot = <const char *>memchr(subject + s, 46, sl - s)
        se = dot - subject if dot != NULL else sl
        if se == s:
            return False
        if pe - p == 1 and pattern[p] == 62 and pe == pl:
            return True
        if not (pe - p == 1 and pattern[p] == 42):
            if pe - p != se - s or memcmp(pattern + p, subject + s, pe - p) != 0:
                return False
        if pe == pl or se == sl:
            return pe == pl and se == sl
        p = pe + 1
        s = se + 1


@cython.final
cdef class OpenFrame:
    """What all log writers of a store share: the open frame and how much still fits into it."""

    def __init__(self, extend=None):
        self.closed = False
        self.pending_bytes = 0
        self.max_bytes = 1 << 62
        self.number = 1
        self.dirty_logs = []
        self.extend = extend


@cython.final
cdef class SubjectIndex:
    """Stream-wide subject ids: bytes <-> id; per id its count, first and last live sequence, filter class.

    A first or last with BOUND_ONLY_BIT set is only a bound: the true one is after (first) or before (last) it.
    """

    def __cinit__(self):
        self.arena_cap = 256
        self.arena = <char *>malloc(self.arena_cap)
        self.slots_cap = 16
        self.slots = <uint32_t *>malloc(self.slots_cap * 4)
        if self.arena == NULL or self.slots == NULL:
            raise MemoryError
        memset(self.slots, 0, self.slots_cap * 4)

    def __init__(self):
        self.a_ends = np.zeros(9, np.uint64)
        self.a_hashes = np.zeros(8, np.uint32)
        self.a_counts = np.zeros(8, np.uint32)
        self.a_firsts = np.zeros(8, np.uint64)
        self.a_lasts = np.zeros(8, np.uint64)
        self.a_classes = np.zeros(8, np.uint32)
        self.cap = 8
        self.refresh_pointers()

    def __dealloc__(self):
        free(self.arena)
        free(self.slots)

    cdef int refresh_pointers(self) except -1:
        self.ends = p64(self.a_ends)
        self.hashes = p32(self.a_hashes)
        self.counts_ = p32(self.a_counts)
        self.firsts_ = p64(self.a_firsts)
        self.lasts_ = p64(self.a_lasts)
        self.classes_ = p32(self.a_classes)
        return 0

    def __len__(self):
        return self.n

    cdef Py_ssize_t c_find(self, const char *p, Py_ssize_t length, uint32_t h) noexcept nogil:
        cdef Py_ssize_t mask = self.slots_cap - 1, at = h & mask
        cdef uint32_t slot
        cdef Py_ssize_t sid
        while True:
            slot = self.slots[at]
            if slot == 0:
                return -1
            sid = slot - 1
            if self.hashes[sid] == h and <Py_ssize_t>(self.ends[sid + 1] - self.ends[sid]) == length:
                if memcmp(self.arena + self.ends[sid], p, length) == 0:
                    return sid
            at = (at + 1) & mask

    cdef Py_ssize_t c_add(self, const char *p, Py_ssize_t length) except -1:
        cdef uint32_t h = hr_hash(p, length, SEED)
        cdef Py_ssize_t sid = self.c_find(p, length, h)
        if sid >= 0:
            return sid
        return self.c_new(p, length, h)

    cdef Py_ssize_t c_new(self, const char *p, Py_ssize_t length, uint32_t h) except -1:
        cdef Py_ssize_t sid = self.n, cap, at, mask
        cdef char *arena
        if length > 0xFFFF:
            raise ValueError("a subject has more than 65,535 bytes")
        if sid == self.cap:
            cap = self.cap + (self.cap >> 1)
            self.a_ends = grow_array(self.a_ends, sid + 1, cap + 1)
            self.a_hashes = grow_array(self.a_hashes, sid, cap)
            self.a_counts = grow_array(self.a_counts, sid, cap)
            self.a_firsts = grow_array(self.a_firsts, sid, cap)
            self.a_lasts = grow_array(self.a_lasts, sid, cap)
            self.a_classes = grow_array(self.a_classes, sid, cap)
            self.cap = cap
            self.refresh_pointers()
        if self.arena_used + length > self.arena_cap:
            cap = self.arena_cap + (self.arena_cap >> 1) + length
            arena = <char *>realloc(self.arena, cap)
            if arena == NULL:
                raise MemoryError
            self.arena = arena
            self.arena_cap = cap
        if (sid + 1) * 3 > self.slots_cap * 2:
            self.rehash(self.slots_cap * 2)
        memcpy(self.arena + self.arena_used, p, length)
        self.arena_used += length
        self.ends[sid + 1] = self.arena_used
        self.hashes[sid] = h
        mask = self.slots_cap - 1
        at = h & mask
        while self.slots[at]:
            at = (at + 1) & mask
        self.slots[at] = <uint32_t>(sid + 1)
        self.n = sid + 1
        return sid

    cdef int rehash(self, Py_ssize_t cap) except -1:
        cdef uint32_t *slots = <uint32_t *>malloc(cap * 4)
        cdef Py_ssize_t i, at, mask = cap - 1
        if slots == NULL:
            raise MemoryError
        memset(slots, 0, cap * 4)
        for i in range(self.n):
            at = self.hashes[i] & mask
            while slots[at]:
                at = (at + 1) & mask
            slots[at] = <uint32_t>(i + 1)
        free(self.slots)
        self.slots = slots
        self.slots_cap = cap
        return 0

    def find(self, bytes subject not None):
        """Return the id of a subject, -1 if it is unknown."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(subject)
        return self.c_find(PyBytes_AS_STRING(subject), length, hr_hash(PyBytes_AS_STRING(subject), length, SEED))

    def add(self, bytes subject not None):
        """Return the id of a subject; a new subject gets one now."""
        return self.c_add(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))

    def name(self, Py_ssize_t sid):
        """Return the subject of an id."""
        if not 0 <= sid < self.n:
            raise IndexError(sid)
        return PyBytes_FromStringAndSize(self.arena + self.ends[sid], self.ends[sid + 1] - self.ends[sid])

    def match(self, bytes pattern not None, Py_ssize_t start=0, Py_ssize_t end=-1):
        """Return the ids from `start` to `end` (-1: all) whose subjects match a pattern with wildcards, as u32."""
        cdef Py_ssize_t i, found = 0, sl, pl = PyBytes_GET_SIZE(pattern), literal = 0
        cdef const char *p = PyBytes_AS_STRING(pattern)
        cdef const char *s
        if start < 0:
            raise IndexError(start)
        if end < 0 or end > self.n:
            end = self.n
        while literal < pl and p[literal] != 42 and p[literal] != 62:  # `*`, `>`
            literal += 1
        out = np.empty(max(end - start, 0), np.uint32)
        cdef uint32_t *o = p32(out)
        for i in range(start, end):
            s = self.arena + self.ends[i]
            sl = self.ends[i + 1] - self.ends[i]
            if sl >= literal and memcmp(s, p, literal) == 0 and matches_pattern(p, pl, s, sl):
                o[found] = <uint32_t>i
                found += 1
        return out[:found].copy()

    def dump(self, Py_ssize_t lo, Py_ssize_t hi):
        """Encode the subjects of a range of ids as `(u16 length, bytes)*`."""
        cdef Py_ssize_t i, length, at = 0
        if not 0 <= lo <= hi <= self.n:
            raise IndexError((lo, hi))
        out = bytearray(<Py_ssize_t>(self.ends[hi] - self.ends[lo]) + 2 * (hi - lo))
        cdef char *p = PyByteArray_AS_STRING(out)
        for i in range(lo, hi):
            length = self.ends[i + 1] - self.ends[i]
            hr_put16(p + at, <uint16_t>length)
            memcpy(p + at + 2, self.arena + self.ends[i], length)
            at += 2 + length
        return bytes(out)

    def load(self, data, Py_ssize_t expected=-1):
        """Add subjects encoded by `dump`; return False, adding none, if invalid or not `expected` many."""
        cdef const uint8_t[::1] view = data
        cdef Py_ssize_t at = 0, size = view.shape[0], found = 0
        cdef const char *p = <const char *>&view[0] if size else NULL
        while at < size:
            if size - at < 2 or size - at - 2 < u16(p + at):
                return False
            at += 2 + u16(p + at)
            found += 1
        if 0 <= expected != found:
            return False
        at = 0
        while at < size:
            self.c_add(p + at + 2, u16(p + at))
            at += 2 + u16(p + at)
        return True

    @property
    def counts(self):
        return self.a_counts[: self.n]

    @property
    def firsts(self):
        return self.a_firsts[: self.n]

    @property
    def lasts(self):
        return self.a_lasts[: self.n]

    @property
    def classes(self):
        return self.a_classes[: self.n]

    def clear(self):
        """Reset all counts: no subject has a live message any more."""
        self.a_counts[:] = 0
        self.a_firsts[:] = 0
        self.a_lasts[:] = 0
        self.alive = 0

    def copy_subjects(self, SubjectIndex other not None, ids):
        """Add subjects of another index, given by their ids there; this one must have none of them."""
        cdef const int64_t[::1] sids = np.ascontiguousarray(ids, np.int64)
        cdef Py_ssize_t i
        cdef int64_t sid
        for i in range(sids.shape[0]):
            sid = sids[i]
            if not 0 <= sid < other.n:
                raise IndexError(sid)
            self.c_new(other.arena + other.ends[sid], other.ends[sid + 1] - other.ends[sid], other.hashes[sid])

    def replace(self, SubjectIndex fresh not None, old_ids):
        """Become `fresh`, which must not be used any more; all live subjects are in it, and had these ids here."""
        cdef Py_ssize_t kept = fresh.n
        if len(old_ids) != kept:
            raise ValueError(f"{len(old_ids)} ids for {kept} subjects")
        fresh.a_counts[:kept], fresh.a_firsts[:kept] = self.a_counts[old_ids], self.a_firsts[old_ids]
        fresh.a_lasts[:kept], fresh.a_classes[:kept] = self.a_lasts[old_ids], self.a_classes[old_ids]
        self.swap_with(fresh)

    def encode_names(self, ids, const uint64_t[::1] seqs not None):
        """Encode pairs of a subject, given by its id, and a sequence as elements of an array of MessagePack."""
        cdef const uint32_t[::1] sids = np.ascontiguousarray(ids, np.uint32)
        cdef Py_ssize_t i, sid, length, at = 0, size = 0
        if seqs.shape[0] != sids.shape[0]:
            raise ValueError(f"{seqs.shape[0]} sequences for {sids.shape[0]} subjects")
        for i in range(sids.shape[0]):
            sid = sids[i]
            if sid >= self.n:
                raise IndexError(sid)
            size += 13 + <Py_ssize_t>(self.ends[sid + 1] - self.ends[sid])
        out = bytearray(size)
        cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(out)
        for i in range(sids.shape[0]):
            sid = sids[i]
            length = self.ends[sid + 1] - self.ends[sid]
            p[at], p[at + 1], p[at + 2], p[at + 3] = 0x92, 0xC5, length >> 8, length & 0xFF
            memcpy(p + at + 4, self.arena + self.ends[sid], length)
            at += 4 + length
            put_uint64(p + at, seqs[i])
            at += 9
        return bytes(out)

    cdef int swap_with(self, SubjectIndex other) except -1:
        """Take over the content of `other`, which must only be released afterwards; it gets the old buffers."""
        self.arena, other.arena = other.arena, self.arena
        self.slots, other.slots = other.slots, self.slots
        self.arena_used, self.arena_cap, self.slots_cap = other.arena_used, other.arena_cap, other.slots_cap
        self.n, self.cap = other.n, other.cap
        self.a_ends, self.a_hashes, self.a_counts = other.a_ends, other.a_hashes, other.a_counts
        self.a_firsts, self.a_lasts, self.a_classes = other.a_firsts, other.a_lasts, other.a_classes
        return self.refresh_pointers()

    cdef bint c_is(self, uint32_t sid, const char *p, Py_ssize_t length) noexcept nogil:
        """Return whether `sid` is the id of this subject."""
        return (<Py_ssize_t>sid < self.n and <Py_ssize_t>(self.ends[sid + 1] - self.ends[sid]) == length
                and memcmp(self.arena + self.ends[sid], p, length) == 0)

    cdef void c_message_added(self, Py_ssize_t sid, uint64_t seq) noexcept nogil:
        if self.counts_[sid] == 0:
            self.firsts_[sid] = seq
            self.alive += 1
        self.counts_[sid] += 1
        self.lasts_[sid] = seq

    cdef void c_message_removed(self, Py_ssize_t sid, uint64_t seq) noexcept nogil:
        self.counts_[sid] -= 1
        if self.counts_[sid] == 0:
            self.firsts_[sid] = 0
            self.lasts_[sid] = 0
            self.alive -= 1
            return
        if self.lasts_[sid] == seq:
            self.lasts_[sid] = seq | BOUND_BIT
        if self.firsts_[sid] == seq:
            self.firsts_[sid] = seq | BOUND_BIT
        if self.counts_[sid] == 1:
            # One message is left: an exact bound on one side is exact on both.
            if not self.lasts_[sid] & BOUND_BIT:
                self.firsts_[sid] = self.lasts_[sid]
            elif not self.firsts_[sid] & BOUND_BIT:
                self.lasts_[sid] = self.firsts_[sid]


@cython.final
cdef class SegmentIndex:
    """One row per record of a segment, dead ones included: its position, its subject, whether it is live.

    Columns grow as arrays. Those of a sealed segment are packed: a row then takes 4 to 8 bytes instead of 26.
    """

    def __init__(self, base=0):
        self.base = base
        self.rows = 0
        self.cap = 0
        self.alive = 0
        self.alive_bytes = 0
        self.delta = None
        self.live = None

    @staticmethod
    def from_arrays(base, time, offset, size, subject, ttl, flags, delta=None):
        """Make a SegmentIndex over existing arrays, all live; they are only read."""
        cdef SegmentIndex self = SegmentIndex(base)
        self.time, self.offset, self.size, self.subject = time, offset, size, subject
        self.ttl, self.flags, self.delta = ttl, flags, delta
        self.rows = len(time)
        for column in (offset, size, subject, ttl, flags, time if delta is None else delta):
            if len(column) != self.rows:
                raise ValueError("columns of different lengths")
        self.cap = -1
        self.alive = self.rows
        self.c_time, self.c_offset, self.c_size = c64(time), c32(offset), c32(size)
        self.c_subject, self.c_ttl, self.c_flags = c32(subject), c32(ttl), c16(flags)
        self.c_delta = c32(delta) if delta is not None else NULL
        self.alive_bytes = int(size.sum(dtype=np.uint64)) if self.rows else 0
        return self

    @staticmethod
    def from_packed(base, Py_ssize_t rows, list columns not None):
        """Make a SegmentIndex of packed columns, all live; raise ValueError if one cannot have this many rows.

        They are those of `pack`. The values may be wrong: see `is_sound`.
        """
        cdef SegmentIndex self = SegmentIndex(base)
        cdef Py_ssize_t i
        self.rows = self.alive = rows
        self.adopt_packed(columns)
        for i in range(rows):
            self.alive_bytes += <int64_t>self.c_size_of(i)
        return self

    def is_sound(self, Py_ssize_t subjects, uint64_t end):
        """Return whether every row can belong to a segment that ends at `end` and has this many subjects.

        Rows must ascend, each record must be in the segment and after the previous one, and each subject must have an
        id.
        """
        cdef Py_ssize_t i
        cdef uint64_t free = SEGMENT_HEAD + BLOCK_HEAD, delta = 0, offset, size
        if self.rows and (self.base == 0 or self.base > SEQ_END - 0xFFFFFFFF or <uint64_t>self.rows > 0xFFFFFFFF):
            return False
        for i in range(self.rows):
            offset, size = self.c_offset_of(i), self.c_size_of(i)
            # Packed values have up to 64 bits; the sum of two that have 32 does not wrap around.
            if self.c_subject_of(i) >= <uint64_t>subjects or offset >> 32 or size >> 32:
                return False
            if offset < free or size < RECORD_HEADER or self.c_ttl_of(i) >> 32 or self.c_flags_of(i) >> 16:
                return False
            free = offset + size
            if self.is_sparse():
                if (self.c_delta_of(i) <= delta or self.c_delta_of(i) >> 32) if i else self.c_delta_of(i) != 0:
                    return False
                delta = self.c_delta_of(i)
        return self.rows == 0 or free <= end

    def seal(self):
        """Stop accepting rows, and pack the columns."""
        if self.rows and self.packed is None:
            self.adopt_packed(pack_columns(self.to_arrays()))

    def adopt_packed(self, list columns not None):
        """Stop accepting rows, and use these columns: `pack_columns` made them of the arrays of this one."""
        cdef Packed *packed[7]
        cdef int k
        if len(columns) != 7:
            raise ValueError(f"{len(columns)} packed columns instead of 7")
        for k in range(7):
            if not is_packed_column(columns[k], self.rows) and not (k == 6 and columns[k] == b""):
                raise ValueError("packed columns of different lengths")
        packed[:] = [&self.p_time, &self.p_offset, &self.p_size, &self.p_subject, &self.p_ttl, &self.p_flags, &self.p_delta]
        for k in range(7):
            if columns[k]:
                set_packed(packed[k], PyBytes_AS_STRING(columns[k]), PyBytes_GET_SIZE(columns[k]), self.rows)
        self.packed = columns
        self.cap = -1
        self.time = self.offset = self.size = self.subject = self.ttl = self.flags = self.delta = None
        self.c_time = self.w_time = NULL
        self.c_offset = self.w_offset = NULL
        self.c_size = self.w_size = NULL
        self.c_subject = self.w_subject = NULL
        self.c_ttl = self.w_ttl = NULL
        self.c_flags = self.w_flags = NULL
        self.c_delta = self.w_delta = NULL

    # A value of a column, packed or not.

    cdef bint is_sparse(self) noexcept nogil:
        """Return whether sequences have gaps, so that the column `delta` has them."""
        return self.c_delta != NULL or self.p_delta.heads != NULL

    cdef uint64_t c_time_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_time[i] if self.c_time != NULL else packed_get(&self.p_time, i)

    cdef uint64_t c_offset_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_offset[i] if self.c_offset != NULL else packed_get(&self.p_offset, i)

    cdef uint64_t c_size_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_size[i] if self.c_size != NULL else packed_get(&self.p_size, i)

    cdef uint64_t c_subject_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_subject[i] if self.c_subject != NULL else packed_get(&self.p_subject, i)

    cdef uint64_t c_ttl_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_ttl[i] if self.c_ttl != NULL else packed_get(&self.p_ttl, i)

    cdef uint64_t c_flags_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_flags[i] if self.c_flags != NULL else packed_get(&self.p_flags, i)

    cdef uint64_t c_delta_of(self, Py_ssize_t i) noexcept nogil:
        return self.c_delta[i] if self.c_delta != NULL else packed_get(&self.p_delta, i)

    cdef int check_row(self, Py_ssize_t i) except -1:
        if not 0 <= i < self.rows:
            raise IndexError(i)
        return 0

    cdef int check_span(self, Py_ssize_t lo, Py_ssize_t hi) except -1:
        if lo < 0 or hi > self.rows:
            raise IndexError((lo, hi))
        return 0

    cdef int grow(self) except -1:
        cdef Py_ssize_t cap = 64
        if self.cap > 0:
            cap = self.cap * 2 if self.cap < 8192 else self.cap + (self.cap >> 1)
        if self.cap < 0:
            raise ValueError("these columns are read-only")
        if self.cap == 0:
            self.time = np.empty(0, np.uint64)
            self.offset = self.size = self.subject = self.ttl = np.empty(0, np.uint32)
            self.flags = np.empty(0, np.uint16)
        self.time = grow_array(self.time, self.rows, cap)
        self.offset = grow_array(self.offset, self.rows, cap)
        self.size = grow_array(self.size, self.rows, cap)
        self.subject = grow_array(self.subject, self.rows, cap)
        self.ttl = grow_array(self.ttl, self.rows, cap)
        self.flags = grow_array(self.flags, self.rows, cap)
        if self.delta is not None:
            self.delta = grow_array(self.delta, self.rows, cap)
        if self.live is not None:
            self.live = grow_array(self.live, self.rows, cap)
        self.cap = cap
        return self.refresh_pointers()

    cdef int refresh_pointers(self) except -1:
        self.c_time = self.w_time = p64(self.time)
        self.c_offset = self.w_offset = p32(self.offset)
        self.c_size = self.w_size = p32(self.size)
        self.c_subject = self.w_subject = p32(self.subject)
        self.c_ttl = self.w_ttl = p32(self.ttl)
        self.c_flags = self.w_flags = p16(self.flags)
        self.c_delta = self.w_delta = p32(self.delta) if self.delta is not None else NULL
        self.c_live = p8(self.live) if self.live is not None else NULL
        return 0

    cdef int make_sparse(self) except -1:
        """Store the sequence of each row from now on: they are no longer contiguous."""
        cdef Py_ssize_t i
        self.delta = np.zeros(self.cap, np.uint32)
        self.c_delta = self.w_delta = p32(self.delta)
        for i in range(self.rows):
            self.w_delta[i] = <uint32_t>i
        return 0

    cdef int append(self, uint64_t seq, uint64_t time, uint32_t offset, uint32_t size, uint32_t subject,
                  uint32_t ttl, uint16_t flags) except -1:
        cdef Py_ssize_t i = self.rows
        if i >= self.cap:
            self.grow()
        if i == 0:
            self.base = seq
        elif self.w_delta == NULL and seq != self.base + <uint64_t>i:
            self.make_sparse()
        self.w_time[i] = time
        self.w_offset[i] = offset
        self.w_size[i] = size
        self.w_subject[i] = subject
        self.w_ttl[i] = ttl
        self.w_flags[i] = flags
        if self.w_delta != NULL:
            self.w_delta[i] = <uint32_t>(seq - self.base)
        if self.c_live != NULL:
            self.c_live[i] = 1
        self.rows = i + 1
        self.alive += 1
        self.alive_bytes += size
        return 0

    cdef uint64_t c_seq(self, Py_ssize_t i) noexcept nogil:
        return self.base + (self.c_delta_of(i) if self.is_sparse() else <uint64_t>i)

    cdef Py_ssize_t c_lower_bound(self, uint64_t seq) noexcept nogil:
        cdef Py_ssize_t lo = 0, hi = self.rows, mid
        cdef uint64_t want
        if seq <= self.base:
            return 0
        want = seq - self.base
        if not self.is_sparse():
            return <Py_ssize_t>want if want < <uint64_t>hi else hi
        while lo < hi:
            mid = (lo + hi) >> 1
            if self.c_delta_of(mid) < want:
                lo = mid + 1
            else:
                hi = mid
        return lo

    def seq(self, Py_ssize_t i):
        """Return the sequence of a row."""
        self.check_row(i)
        return self.c_seq(i)

    def lower_bound(self, uint64_t seq):
        """Return the first row with this sequence or a higher one; `rows` if there is none."""
        return self.c_lower_bound(seq)

    def find_row(self, uint64_t seq):
        """Return the row of a sequence, live or dead; -1 if it has none."""
        cdef Py_ssize_t i = self.c_lower_bound(seq)
        return i if i < self.rows and self.c_seq(i) == seq else -1

    def find_live_row(self, uint64_t seq):
        """Return the row of a sequence if it is live; otherwise -1."""
        cdef Py_ssize_t i = self.c_lower_bound(seq)
        if i < self.rows and self.c_seq(i) == seq and (self.c_live == NULL or self.c_live[i]):
            return i
        return -1

    def is_live(self, Py_ssize_t i):
        self.check_row(i)
        return self.c_live == NULL or self.c_live[i] != 0

    cdef int c_tombstone(self, Py_ssize_t i) except -1:
        if self.c_live == NULL:
            self.live = np.ones(self.cap if self.cap > 0 else self.rows, np.uint8)
            self.c_live = p8(self.live)
        elif not self.c_live[i]:
            return 0
        self.c_live[i] = 0
        self.alive -= 1
        self.alive_bytes -= <int64_t>self.c_size_of(i)
        return 1

    def tombstone(self, Py_ssize_t i):
        """Mark a row as dead; return False if it already was."""
        self.check_row(i)
        return self.c_tombstone(i) == 1

    def tombstone_unless_live(self, list sources not None):
        """Tombstone the rows whose messages are not live in any of the sources, which ascend as the rows do."""
        cdef Py_ssize_t i, j = 0, number = 0
        cdef uint64_t seq
        cdef SegmentIndex source = sources[0] if sources else None
        for i in range(self.rows):
            seq = self.c_seq(i)
            while source is not None:
                while j < source.rows and source.c_seq(j) < seq:
                    j += 1
                if j < source.rows:
                    break
                j = 0
                number += 1
                source = sources[number] if number < len(sources) else None
            if source is None or source.c_seq(j) != seq or (source.c_live != NULL and not source.c_live[j]):
                self.c_tombstone(i)

    def tombstone_all(self):
        """Mark every row as dead."""
        self.live = np.zeros(self.cap if self.cap > 0 else self.rows, np.uint8)
        self.c_live = p8(self.live)
        self.alive = self.alive_bytes = 0

    def map_subjects(self, new_ids):
        """Return the column of subject ids, as an array, with `new_ids[i]` instead of each id i."""
        if self.packed is not None:
            return new_ids[self.to_array(3)]
        if not self.rows:
            return np.zeros(0 if self.subject is None else len(self.subject), np.uint32)
        subject = np.zeros(len(self.subject), np.uint32)
        subject[: self.rows] = new_ids[self.subject[: self.rows]]
        return subject

    def encode_subjects(self, subject):
        """Return a result of `map_subjects` in the form that this column has: an array, or packed."""
        return subject if self.packed is None else pack_column(subject)

    def set_subjects(self, column):
        """Replace the subject ids by a result of `encode_subjects`; since then no row was added, and none packed."""
        if not self.rows:
            return
        if self.packed is not None:
            if not is_packed_column(column, self.rows):
                raise ValueError(f"not a packed column of {self.rows} rows")
            self.packed = [*self.packed[:3], column, *self.packed[4:]]
            set_packed(&self.p_subject, PyBytes_AS_STRING(column), PyBytes_GET_SIZE(column), self.rows)
            return
        if len(column) != len(self.subject):
            raise ValueError(f"{len(column)} subjects instead of {len(self.subject)}")
        self.subject = column
        self.c_subject = c32(column)
        if self.cap > 0:
            self.w_subject = p32(column)

    def live_bits(self, Py_ssize_t lo=0, Py_ssize_t hi=-1):
        """Return numpy.packbits of the live flags of the rows from lo to hi, b"" if all of them are live."""
        if hi < 0:
            hi = self.rows
        if self.live is None or self.alive == self.rows:
            return b""
        part = self.live[lo:hi]
        return b"" if part.all() else np.packbits(part).tobytes()

    def apply_live_bits(self, bits, Py_ssize_t lo=0, Py_ssize_t hi=-1):
        """Mark the rows from lo to hi whose bit is not set as dead; `bits` is a result of `live_bits`."""
        cdef Py_ssize_t i
        if hi < 0:
            hi = self.rows
        if not len(bits) or hi <= lo:
            return
        self.check_span(lo, hi)
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=hi - lo)
        cdef uint8_t *f = p8(flags)
        for i in range(lo, hi):
            if not f[i - lo]:
                self.c_tombstone(i)

    cdef Py_ssize_t c_next(self, const uint32_t *classes, const uint8_t *mask, Py_ssize_t i,
                           Py_ssize_t hi) noexcept nogil:
        cdef uint32_t buffer[CHUNK_ROWS]
        cdef const uint32_t *ids
        cdef Py_ssize_t k, stop, step = FIRST_RUN
        if mask == NULL:
            if self.c_live == NULL:
                return i if i < hi else -1
            while i < hi:
                if self.c_live[i]:
                    return i
                i += 1
            return -1
        while i < hi:
            stop = self.run_end(i, hi, step)
            ids = self.subject_run(i, stop, buffer)
            for k in range(stop - i):
                if mask[classes[ids[k]]] and (self.c_live == NULL or self.c_live[i + k]):
                    return i + k
            i = stop
            step = CHUNK_ROWS
        return -1

    cdef Py_ssize_t run_end(self, Py_ssize_t i, Py_ssize_t hi, Py_ssize_t step) noexcept nogil:
        """Return where the run of `subject_run` that begins at row i ends: within its chunk, after `step` rows at most."""
        if self.c_subject != NULL:
            return hi
        return min(hi, i + step, (i | (CHUNK_ROWS - 1)) + 1)

    cdef const uint32_t *subject_run(self, Py_ssize_t i, Py_ssize_t stop, uint32_t *buffer) noexcept nogil:
        """Return the subject ids of the rows from i on, up to `stop`, which `run_end` returned."""
        if self.c_subject != NULL:
            return self.c_subject + i
        packed_run(&self.p_subject, i, stop - i, buffer)
        return buffer

    def next(self, SubjectIndex subjects not None, mask, Py_ssize_t lo, Py_ssize_t hi):
        """Return the first live row in [lo, hi) whose subject's class is in the mask (None: any); -1 if none."""
        if hi > self.rows:
            hi = self.rows
        self.check_span(lo, hi)
        return self.c_next(subjects.classes_, p8(mask) if mask is not None else NULL, lo, hi)

    def prev(self, SubjectIndex subjects not None, mask, Py_ssize_t lo, Py_ssize_t hi):
        """Return the last such row in [lo, hi); -1 if none."""
        cdef const uint8_t *m = p8(mask) if mask is not None else NULL
        cdef const uint32_t *classes = subjects.classes_
        cdef Py_ssize_t i = (hi if hi < self.rows else self.rows) - 1
        self.check_span(lo, i + 1)
        while i >= lo:
            if (self.c_live == NULL or self.c_live[i]) and (m == NULL or m[classes[self.c_subject_of(i)]]):
                return i
            i -= 1
        return -1

    def count(self, SubjectIndex subjects not None, mask, Py_ssize_t lo, Py_ssize_t hi):
        """Return the number of such rows in [lo, hi)."""
        cdef const uint8_t *m = p8(mask) if mask is not None else NULL
        cdef const uint32_t *classes = subjects.classes_
        cdef Py_ssize_t i, k, stop, found = 0
        cdef uint32_t buffer[CHUNK_ROWS]
        cdef const uint32_t *ids
        if hi > self.rows:
            hi = self.rows
        self.check_span(lo, hi)
        if m == NULL and self.alive == self.rows:
            return max(hi - lo, 0)
        i = lo
        while i < hi:
            stop = self.run_end(i, hi, CHUNK_ROWS)
            ids = self.subject_run(i, stop, buffer)
            for k in range(stop - i):
                if (self.c_live == NULL or self.c_live[i + k]) and (m == NULL or m[classes[ids[k]]]):
                    found += 1
            i = stop
        return found

    def seqs(self, SubjectIndex subjects not None, mask, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t most=-1):
        """Return the sequences of such rows in [lo, hi), ascending, as an array of u64; only the first `most` unless negative."""
        cdef const uint8_t *m = p8(mask) if mask is not None else NULL
        cdef const uint32_t *classes = subjects.classes_
        cdef Py_ssize_t i, k, stop, at = 0
        cdef uint32_t buffer[CHUNK_ROWS]
        cdef const uint32_t *ids
        if hi > self.rows:
            hi = self.rows
        self.check_span(lo, hi)
        if most < 0 or most > hi - lo:
            most = max(hi - lo, 0)
        out = np.empty(most, np.uint64)
        cdef uint64_t *o = p64(out)
        i = lo
        while i < hi and at < most:
            if m == NULL:
                if self.c_live == NULL or self.c_live[i]:
                    o[at] = self.c_seq(i)
                    at += 1
                i += 1
                continue
            stop = self.run_end(i, hi, CHUNK_ROWS)
            ids = self.subject_run(i, stop, buffer)
            for k in range(stop - i):
                if m[classes[ids[k]]] and (self.c_live == NULL or self.c_live[i + k]):
                    if at == most:
                        break
                    o[at] = self.c_seq(i + k)
                    at += 1
            i = stop
        return out[:at]

    def find_matching(self, SubjectIndex subjects not None, mask not None, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t most):
        """Return the rows in [lo, hi) whose class is in the mask, dead ones included, as u32; None if more than `most`."""
        cdef const uint8_t *m = p8(mask)
        cdef const uint32_t *classes = subjects.classes_
        cdef Py_ssize_t i, k, stop, at = 0
        cdef uint32_t buffer[CHUNK_ROWS]
        cdef const uint32_t *ids
        self.check_span(lo, hi)
        out = np.empty(max(most, 0), np.uint32)
        cdef uint32_t *o = p32(out)
        i = lo
        while i < hi:
            stop = self.run_end(i, hi, CHUNK_ROWS)
            ids = self.subject_run(i, stop, buffer)
            for k in range(stop - i):
                if m[classes[ids[k]]]:
                    if at >= most:
                        return None
                    o[at] = <uint32_t>(i + k)
                    at += 1
            i = stop
        return out[:at].copy()

    def next_for_subject(self, uint32_t sid, Py_ssize_t lo, Py_ssize_t hi):
        """Return the first live row of one subject in [lo, hi); -1 if none."""
        cdef Py_ssize_t i = lo, k, stop
        cdef uint32_t buffer[CHUNK_ROWS]
        cdef const uint32_t *ids
        if hi > self.rows:
            hi = self.rows
        self.check_span(lo, hi)
        while i < hi:
            stop = self.run_end(i, hi, CHUNK_ROWS)
            ids = self.subject_run(i, stop, buffer)
            for k in range(stop - i):
                if ids[k] == sid and (self.c_live == NULL or self.c_live[i + k]):
                    return i + k
            i = stop
        return -1

    def prev_for_subject(self, uint32_t sid, Py_ssize_t lo, Py_ssize_t hi):
        """Return the last live row of one subject in [lo, hi); -1 if none."""
        cdef Py_ssize_t i = (hi if hi < self.rows else self.rows) - 1
        self.check_span(lo, i + 1)
        while i >= lo:
            if self.c_subject_of(i) == sid and (self.c_live == NULL or self.c_live[i]):
                return i
            i -= 1
        return -1

    def last_per_subject(self, SubjectIndex subjects not None, mask, seen, Py_ssize_t hi):
        """Return the sequences of rows below hi, last first, whose subject is not marked in `seen` (u8) yet; mark them."""
        cdef const uint8_t *m = p8(mask) if mask is not None else NULL
        cdef const uint32_t *classes = subjects.classes_
        cdef uint8_t *s = p8(seen)
        cdef Py_ssize_t i, at = 0
        cdef uint32_t sid
        if hi > self.rows:
            hi = self.rows
        if len(seen) < subjects.n:
            raise ValueError("`seen` has fewer entries than there are subjects")
        out = np.empty(max(hi, 0), np.uint64)
        cdef uint64_t *o = p64(out)
        for i in range(hi - 1, -1, -1):
            sid = <uint32_t>self.c_subject_of(i)
            if not s[sid] and (self.c_live == NULL or self.c_live[i]) and (m == NULL or m[classes[sid]]):
                s[sid] = 1
                o[at] = self.c_seq(i)
                at += 1
        return out[:at]

    def first_at_time(self, uint64_t time_ns):
        """Return the first live row of that time or later; -1 if none."""
        cdef Py_ssize_t i
        for i in range(self.rows):
            if self.c_time_of(i) >= time_ns and (self.c_live == NULL or self.c_live[i]):
                return i
        return -1

    def row(self, Py_ssize_t i):
        """Return (offset, size, subject id, time, ttl, flags) of a row."""
        self.check_row(i)
        return (self.c_offset_of(i), self.c_size_of(i), self.c_subject_of(i), self.c_time_of(i), self.c_ttl_of(i),
                self.c_flags_of(i))

    def get_offset(self, Py_ssize_t i):
        """Return the offset of a row's record in its segment."""
        self.check_row(i)
        return self.c_offset_of(i)

    def get_end(self, Py_ssize_t i):
        """Return where a row's record ends in its segment."""
        self.check_row(i)
        return self.c_offset_of(i) + self.c_size_of(i)

    def find_offset(self, uint64_t offset, Py_ssize_t lo, Py_ssize_t hi):
        """Return the first row in [lo, hi) whose record begins at this offset of the segment or later; `hi` if none."""
        cdef Py_ssize_t mid
        self.check_span(lo, hi)
        while lo < hi:
            mid = (lo + hi) >> 1
            if self.c_offset_of(mid) < offset:
                lo = mid + 1
            else:
                hi = mid
        return lo

    def find_latest_time(self):
        """Return the latest time of any row; 0 if there is none."""
        cdef Py_ssize_t i
        cdef uint64_t latest = 0
        for i in range(self.rows):
            if self.c_time_of(i) > latest:
                latest = self.c_time_of(i)
        return latest

    def find_rows(self, seqs):
        """Return the row of each sequence (u64), or where it would be, as an array of intp."""
        cdef const uint64_t[::1] wanted = np.ascontiguousarray(seqs)
        cdef Py_ssize_t k
        out = np.empty(wanted.shape[0], np.intp)
        cdef Py_ssize_t[::1] rows = out
        for k in range(wanted.shape[0]):
            rows[k] = self.c_lower_bound(wanted[k])
        return out

    def get_seqs(self, rows):
        """Return the sequences of rows (intp)."""
        cdef const Py_ssize_t[::1] wanted = np.ascontiguousarray(rows, np.intp)
        cdef Py_ssize_t k
        out = np.empty(wanted.shape[0], np.uint64)
        cdef uint64_t[::1] values = out
        for k in range(wanted.shape[0]):
            self.check_row(wanted[k])
            values[k] = self.c_seq(wanted[k])
        return out

    def get_times(self, rows):
        """Return the times of rows (intp)."""
        cdef const Py_ssize_t[::1] wanted = np.ascontiguousarray(rows, np.intp)
        cdef Py_ssize_t k
        out = np.empty(wanted.shape[0], np.uint64)
        cdef uint64_t[::1] values = out
        for k in range(wanted.shape[0]):
            self.check_row(wanted[k])
            values[k] = self.c_time_of(wanted[k])
        return out

    def get_ttls(self, rows):
        """Return the TTLs of rows (intp)."""
        cdef const Py_ssize_t[::1] wanted = np.ascontiguousarray(rows, np.intp)
        cdef Py_ssize_t k
        out = np.empty(wanted.shape[0], np.uint32)
        cdef uint32_t[::1] values = out
        for k in range(wanted.shape[0]):
            self.check_row(wanted[k])
            values[k] = <uint32_t>self.c_ttl_of(wanted[k])
        return out

    def get_subjects(self, rows):
        """Return the subject ids of rows (intp)."""
        cdef const Py_ssize_t[::1] wanted = np.ascontiguousarray(rows, np.intp)
        cdef Py_ssize_t k
        out = np.empty(wanted.shape[0], np.uint32)
        cdef uint32_t[::1] values = out
        for k in range(wanted.shape[0]):
            self.check_row(wanted[k])
            values[k] = <uint32_t>self.c_subject_of(wanted[k])
        return out

    def get_sizes(self, Py_ssize_t lo, Py_ssize_t hi, int64_t overhead, int64_t header_extra):
        """Return the sizes of the rows in [lo, hi) plus `overhead`, and `header_extra` if they have a header; 0 for dead ones."""
        cdef Py_ssize_t i
        self.check_span(lo, hi)
        out = np.zeros(max(hi - lo, 0), np.int64)
        cdef int64_t[::1] values = out
        for i in range(lo, hi):
            if self.c_live == NULL or self.c_live[i]:
                values[i - lo] = (<int64_t>self.c_size_of(i) + overhead
                                  + (header_extra if self.c_flags_of(i) & FLAG_HEADER else 0))
        return out

    def get_time(self, Py_ssize_t i):
        self.check_row(i)
        return self.c_time_of(i)

    def index_block(self, SubjectIndex subjects not None, data, Py_ssize_t start, Py_ssize_t length, uint64_t place,
             Py_ssize_t expected=-1):
        """Add a row for each record of a block that is at `start` of `data` and at `place` of its segment.

        Returns their number; -1, adding no row, if they are not ascending records, or not `expected` many.
        """
        cdef const uint8_t[::1] view = data
        cdef const char *p
        cdef Py_ssize_t at = 0, found = 0
        cdef uint64_t last, base, seq
        if start < 0 or length < 0 or start > view.shape[0] - length or place + <uint64_t>length > 0xFFFFFFFF:
            raise ValueError("no block there")
        if length == 0:
            return 0 if expected <= 0 else -1
        p = <const char *>&view[start]
        last = self.c_seq(self.rows - 1) if self.rows else 0
        base = self.base if self.rows else record_seq(p) if length >= RECORD_HEADER else 0
        while at < length:
            if not holds(p + at, length - at):
                return -1
            seq = record_seq(p + at)
            if seq <= last or seq - base > 0xFFFFFFFF:
                return -1
            last = seq
            at += record_size(p + at)
            found += 1
        if 0 <= expected != found:
            return -1
        at = 0
        while at < length:
            self.append(record_seq(p + at), record_time(p + at), <uint32_t>(place + <uint64_t>at), record_size(p + at),
                      <uint32_t>subjects.c_add(p + at + RECORD_HEADER, record_subject_size(p + at)), record_ttl(p + at),
                      record_flags(p + at))
            at += record_size(p + at)
        return found

    def to_arrays(self):
        """Return the columns as arrays: time, offset, size, subject, ttl, flags, delta or None."""
        cdef Py_ssize_t n = self.rows
        if self.packed is not None:
            return (*(self.to_array(k) for k in range(6)), self.to_array(6) if self.packed[6] else None)
        if self.cap == 0:
            self.grow()
        return (self.time[:n], self.offset[:n], self.size[:n], self.subject[:n], self.ttl[:n], self.flags[:n],
                None if self.delta is None else self.delta[:n])

    cdef object to_array(self, int k):
        """Return a packed column as an array."""
        return unpack_column(self.packed[k], self.rows).astype(COLUMN_TYPES[k])


#: Types of the columns time, offset, size, subject, ttl, flags, delta.
COLUMN_TYPES = (np.uint64, np.uint32, np.uint32, np.uint32, np.uint32, np.uint16, np.uint32)


@cython.final
cdef class RecordBlock:
    """Contiguous records, finished or about to be. Its bytes do not change any more."""

    def __init__(self, offset, data, used, first_seq, records, direct):
        self.offset, self.data, self.used = offset, data, used
        self.first_seq, self.records, self.direct = first_seq, records, direct

    @property
    def view(self):
        return memoryview(self.data)[: self.used]


cdef class BlockBuilder:
    """Packs records into blocks and rows into columns; the base of `LogWriter`, also used by compaction."""

    def __init__(self, SubjectIndex subjects not None, Py_ssize_t block_bytes, uint64_t start=512):
        self.subject_index = subjects
        self.columns = SegmentIndex()
        self.blocks = []
        self.block_max = block_bytes - BLOCK_HEAD
        self.block_offset = start
        self.reset_tail()

    cdef int reset_tail(self) except -1:
        self.tail = bytearray()
        self.p = PyByteArray_AS_STRING(self.tail)
        self.cap = 0
        self.tail_used = 0
        self.tail_row = self.columns.rows
        return 0

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Make space for a record: in the tail, or in a new one after the block is finished."""
        cdef Py_ssize_t cap
        cdef bytearray fresh
        if self.tail_used and self.tail_used + size > self.block_max:
            self.finish_block()
        if self.tail_used + size > self.cap:
            cap = min(max(self.cap * 4, 1024), self.block_max)
            if cap < self.tail_used + size:
                cap = self.tail_used + size
            if cap < self.block_max and size * 16 > self.block_max:
                cap = self.block_max  # a few records of this size fill a block
            fresh = PyByteArray_FromStringAndSize(NULL, cap)
            memcpy(PyByteArray_AS_STRING(fresh), self.p, self.tail_used)
            self.tail = fresh  # existing views keep the old one alive and unchanged
            self.p = PyByteArray_AS_STRING(fresh)
            self.cap = cap
        return 0

    def finish_block(self, bint direct=False):
        """Turn the tail into a block; does nothing if it is empty."""
        cdef RecordBlock block
        if self.tail_used == 0:
            return None
        block = RecordBlock(self.block_offset, self.tail, self.tail_used, self.columns.c_seq(self.tail_row),
                      self.columns.rows - self.tail_row, direct)
        self.blocks.append(block)
        self.block_offset += (BLOCK_HEAD + self.tail_used + ALIGN - 1) & ~(ALIGN - 1)
        self.reset_tail()
        self.on_block_finished(block)
        return block

    def on_block_finished(self, RecordBlock block):
        """Hook for subclasses."""

    def start_segment(self, uint64_t start=512):
        """Start a new segment: empty columns, blocks from `start` on. The tail must be empty."""
        if self.tail_used:
            raise ValueError("the tail is not empty: finish its block first")
        self.columns = SegmentIndex()
        self.block_offset = start
        self.tail_row = 0

    cdef int add_record(self, const char *record, uint32_t size, uint32_t sid) except -1:
        cdef char *p
        self.reserve(size)
        p = self.p + self.tail_used
        memcpy(p, record, size)
        self.columns.append(record_seq(p), record_time(p),
                          <uint32_t>(self.block_offset + BLOCK_HEAD + <uint64_t>self.tail_used), size, sid,
                          record_ttl(p), record_flags(p))
        self.tail_used += size
        return 0

    def copy_rows(self, SegmentIndex source not None, Py_ssize_t lo, Py_ssize_t hi, data, uint64_t place):
        """Copy the live rows lo..hi of other columns; `data` has their records, from `place` on."""
        cdef const uint8_t[::1] view = data
        cdef Py_ssize_t i, at, size = view.shape[0]
        cdef const char *record
        source.check_span(lo, hi)
        for i in range(lo, hi):
            if source.c_live != NULL and not source.c_live[i]:
                continue
            if source.c_offset_of(i) < place or source.c_offset_of(i) - place + source.c_size_of(i) > <uint64_t>size:
                raise ValueError("a row points outside of its block")
            at = <Py_ssize_t>(source.c_offset_of(i) - place)
            record = <const char *>&view[at]
            # The copy replaces the original, so a row must match its record.
            if (not holds(record, source.c_size_of(i)) or record_size(record) != source.c_size_of(i)
                    or record_seq(record) != source.c_seq(i)
                    or not self.subject_index.c_is(source.c_subject_of(i), record + RECORD_HEADER, record_subject_size(record))):
                raise ValueError("a row does not match its record")
            if self.columns.rows and source.c_seq(i) - self.columns.base > 0xFFFFFFFF:
                raise ValueError("rows are too far apart for one segment")
            self.add_record(record, source.c_size_of(i), source.c_subject_of(i))


cdef class _Removals:
    """The removals that a frame took over from a log: pairs of first and last sequence."""

    cdef uint64_t *runs
    cdef Py_ssize_t length

    def __dealloc__(self):
        free(self.runs)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.runs, self.length, 1, flags)


cdef class LogWriter(BlockBuilder):
    """The growing end of one stream: assigns sequences, packs records, updates counts; the base class of a log."""

    def __init__(self, OpenFrame open_frame not None, uint32_t ident, SubjectIndex subjects not None, Py_ssize_t block_bytes,
                 Py_ssize_t large_bytes, bint journaled, uint64_t first_seq=1):
        BlockBuilder.__init__(self, subjects, block_bytes)
        self.open_frame = open_frame
        self.ident = ident
        self.first_seq = first_seq
        self.last_seq = self.committed_seq = self.sealed_seq = first_seq - 1
        self.changed_frame = 0
        self.last_time_ns = 0
        self.messages = 0
        self.bytes = 0
        self.large_bytes = large_bytes
        self.journaled = journaled
        self.overhead = -2 if journaled else -16
        self.header_extra = 4 if journaled else 0
        self.parts = []

    def __dealloc__(self):
        free(self.gone)

    @property
    def num_subjects(self):
        return self.subject_index.alive

    @property
    def num_deleted(self):
        return self.last_seq + 1 - self.first_seq - self.messages

    cdef int c_mark_dirty(self) except -1:
        if not self.dirty:
            self.dirty = True
            self.open_frame.dirty_logs.append(self)
        self.changed_frame = self.open_frame.number
        return 0

    def mark_dirty(self):
        """Record that this log has a change in the open frame."""
        self.c_mark_dirty()

    def append(self, bytes subject not None, bytes header not None, bytes payload not None, uint64_t time_ns,
               uint32_t ttl_s=0, uint16_t flags=0):
        """Add a message to the open frame; return its sequence."""
        cdef Py_ssize_t size = (RECORD_HEADER + PyBytes_GET_SIZE(subject) + PyBytes_GET_SIZE(header)
                                + PyBytes_GET_SIZE(payload))
        if self.journaled and (self.open_frame.closed or self.open_frame.pending_bytes + size > self.open_frame.max_bytes):
            self.open_frame.extend(size)
        if size >= self.large_bytes:
            return self.append_large(subject, header, payload, time_ns, ttl_s, flags)
        return self.c_append(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject), PyBytes_AS_STRING(header),
                             PyBytes_GET_SIZE(header), PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
                             time_ns, ttl_s, flags)

    def append_large(self, bytes subject, bytes header, bytes payload, uint64_t time_ns, uint32_t ttl_s,
                     uint16_t flags):
        """Add a message of at least `large_bytes`; a log that stores those separately overrides this."""
        return self.append_unchecked(subject, header, payload, time_ns, ttl_s, flags)

    def append_unchecked(self, bytes subject not None, bytes header not None, bytes payload not None, uint64_t time_ns,
            uint32_t ttl_s=0, uint16_t flags=0):
        """Like `append`, without checking the open frame's limit or the message's size."""
        return self.c_append(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject), PyBytes_AS_STRING(header),
                             PyBytes_GET_SIZE(header), PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
                             time_ns, ttl_s, flags)

    def append_many(self, messages, uint64_t time_ns, uint32_t ttl_s=0, uint16_t flags=0, uint64_t step_ns=0):
        """Append (subject, header, payload) one after the other, each `step_ns` later; return the first sequence."""
        cdef uint64_t first = self.last_seq + 1
        cdef bytes subject, header, payload
        cdef Py_ssize_t size
        for subject, header, payload in messages:
            size = RECORD_HEADER + PyBytes_GET_SIZE(subject) + PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
            if size >= self.large_bytes or (self.journaled and (self.open_frame.closed
                                                          or self.open_frame.pending_bytes + size > self.open_frame.max_bytes)):
                self.append(subject, header, payload, time_ns, ttl_s, flags)
            else:
                self.c_append(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject), PyBytes_AS_STRING(header),
                              PyBytes_GET_SIZE(header), PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload),
                              time_ns, ttl_s, flags)
            time_ns += step_ns
        return first

    def append_copies(self, view, seqs, Py_ssize_t start, Py_ssize_t count_max, int64_t size_max, int64_t overhead,
                      source_header=None, uint64_t time_ns=0):
        """Append the next records of another log that need no decision; return how many, and their size.

        The size of a record is that of its payload and `overhead`.

        They are those of `view` that are in `seqs` from `start` on. Without `source_header` they keep their sequences and
        times. With it, each gets a header of its three parts, the record's sequence after the first and its subject after
        the second, and times from `time_ns` on. Stops before a record that has headers, would leave a gap or may not fit
        into the open frame, before a large one, and after `size_max` bytes, unless that is negative.
        """
        cdef const uint8_t[::1] data = view
        cdef const uint64_t[::1] wanted = seqs
        cdef const char *p = <const char *>&data[0] if data.shape[0] else NULL
        cdef const char *end = p + data.shape[0]
        cdef Py_ssize_t last = min(start + count_max, wanted.shape[0]), i = start, header_size = 0, size
        cdef int64_t total = 0
        cdef bytes first, second, third
        cdef bytearray scratch
        cdef char *header = NULL
        cdef char *to
        cdef Record record
        if source_header is not None:
            first, second, third = source_header
            scratch = bytearray(len(first) + len(second) + len(third) + DIGITS_MAX + SUBJECT_MAX)
            header = PyByteArray_AS_STRING(scratch)
        while i < last and read(p, end, &record):
            p += record.size
            if record.seq < wanted[i]:
                continue
            if record.seq > wanted[i] or record.header_size or (header == NULL and record.seq != self.last_seq + 1):
                break
            if header != NULL:
                to = put(header, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
                to = put(digits(to, record.seq), PyBytes_AS_STRING(second), PyBytes_GET_SIZE(second))
                to = put(to, record.subject, record.subject_size)
                header_size = put(to, PyBytes_AS_STRING(third), PyBytes_GET_SIZE(third)) - header
            size = record.size + header_size
            if size >= self.large_bytes or (self.journaled and (
                    self.open_frame.closed or self.open_frame.pending_bytes + size > self.open_frame.max_bytes)):
                break
            self.c_append(record.subject, record.subject_size, header, header_size, record.payload, record.payload_size,
                          record.time_ns if header == NULL else time_ns + <uint64_t>(i - start), 0, 0)
            total += record.payload_size + overhead
            i += 1
            if 0 <= size_max < total:
                break
        return i - start, total

    cdef uint64_t c_append(self, const char *subject, Py_ssize_t sl, const char *header, Py_ssize_t hl,
                           const char *payload, Py_ssize_t pl, uint64_t time_ns, uint32_t ttl_s,
                           uint16_t flags) except 0:
        cdef uint64_t seq = self.last_seq + 1
        cdef Py_ssize_t size = RECORD_HEADER + sl + hl + pl
        cdef Py_ssize_t sid
        cdef char *p
        if size > 0x7FFFFFFF:
            raise ValueError("a record has more than 2 GiB")
        sid = self.subject_index.c_add(subject, sl)
        if self.columns.rows and seq - self.columns.base > 0xFFFFFFFF:
            self.split_segment()
        self.reserve(size)
        flags = flags & 0x7FFF
        if hl:
            flags |= FLAG_HEADER
        p = self.p + self.tail_used
        write_record_header(p, <uint32_t>size, <uint16_t>sl, flags, <uint32_t>hl, ttl_s, seq, time_ns)
        memcpy(p + RECORD_HEADER, subject, sl)
        if hl:
            memcpy(p + RECORD_HEADER + sl, header, hl)
        memcpy(p + RECORD_HEADER + sl + hl, payload, pl)
        self.columns.append(seq, time_ns, <uint32_t>(self.block_offset + BLOCK_HEAD + <uint64_t>self.tail_used),
                          <uint32_t>size, <uint32_t>sid, ttl_s, flags)
        self.tail_used += size
        if self.journaled:
            self.open_frame.pending_bytes += size
        self.c_count(sid, seq, size, flags, time_ns)
        self.c_mark_dirty()
        return seq

    cdef void c_count(self, Py_ssize_t sid, uint64_t seq, Py_ssize_t size, uint16_t flags,
                             uint64_t time_ns) noexcept nogil:
        self.subject_index.c_message_added(sid, seq)
        if self.messages == 0:
            self.first_seq = seq
        self.messages += 1
        self.bytes += size + self.overhead + (self.header_extra if flags & FLAG_HEADER else 0)
        self.last_seq = seq
        self.last_time_ns = time_ns

    def split_segment(self):
        """Start a new segment; called when a sequence is too far from the first for the columns."""
        self.finish_block()
        self.start_segment()

    def finish_block(self, bint direct=False):
        if not self.replaying and not direct and self.tail_used > self.mark:
            self.parts.append((self.tail, self.mark, self.tail_used))
        self.mark = 0
        return BlockBuilder.finish_block(self, direct)

    def reference_block(self, bytes entry not None):
        """Add an encoded entry to the frame after the records so far: the position of a large message."""
        self.parts.append(entry)

    def load(self, data):
        """Add existing records (replay), skipping those up to the last sequence. They do not become part of a frame.

        Returns how many were added; -1 if the bytes are not records.
        """
        cdef const uint8_t[::1] view = data
        cdef Py_ssize_t at = 0, end = view.shape[0], found = 0, sid
        cdef const char *p = <const char *>&view[0] if end else NULL
        cdef uint32_t size
        cdef uint64_t seq
        self.replaying = True
        try:
            while at < end:
                if not holds(p + at, end - at):
                    return -1
                size, seq = record_size(p + at), record_seq(p + at)
                if seq > self.last_seq:
                    sid = self.subject_index.c_add(p + at + RECORD_HEADER, record_subject_size(p + at))
                    if self.columns.rows and seq - self.columns.base > 0xFFFFFFFF:
                        self.split_segment()
                    self.add_record(p + at, size, <uint32_t>sid)
                    self.c_count(sid, seq, size, record_flags(p + at), record_time(p + at))
                    found += 1
                at += size
        finally:
            self.replaying = False
            self.mark = self.tail_used
        self.committed_seq = self.sealed_seq = self.last_seq
        return found

    def add_segment_counts(self, SegmentIndex columns not None):
        """Count the live rows of an existing segment (recovery); segments must come in ascending order."""
        cdef Py_ssize_t i, size
        cdef uint64_t seq
        for i in range(columns.rows):
            if columns.c_live != NULL and not columns.c_live[i]:
                continue
            seq = columns.c_seq(i)
            if <Py_ssize_t>columns.c_subject_of(i) >= self.subject_index.n:
                raise IndexError(columns.c_subject_of(i))
            self.subject_index.c_message_added(columns.c_subject_of(i), seq)
            if self.messages == 0:
                self.first_seq = seq
            self.messages += 1
            self.bytes += (<int64_t>columns.c_size_of(i) + self.overhead
                           + (self.header_extra if columns.c_flags_of(i) & FLAG_HEADER else 0))

    cdef int c_subtract_row(self, SegmentIndex columns, Py_ssize_t i) except -1:
        if <Py_ssize_t>columns.c_subject_of(i) >= self.subject_index.n:
            raise IndexError(columns.c_subject_of(i))
        if not columns.c_tombstone(i):
            return 0
        self.subject_index.c_message_removed(columns.c_subject_of(i), columns.c_seq(i))
        self.messages -= 1
        self.bytes -= (<int64_t>columns.c_size_of(i) + self.overhead
                       + (self.header_extra if columns.c_flags_of(i) & FLAG_HEADER else 0))
        return 1

    def subtract_rows(self, SegmentIndex columns not None, Py_ssize_t lo, Py_ssize_t hi):
        """Tombstone the rows lo..hi and subtract them from the counts; return how many were live."""
        cdef Py_ssize_t i, found = 0
        columns.check_span(lo, hi)
        for i in range(lo, hi):
            found += self.c_subtract_row(columns, i)
        return found

    def subtract_seqs(self, SegmentIndex columns not None, seqs):
        """Tombstone the rows of ascending sequences (u64) and record them for the frame; return how many were live."""
        cdef const uint64_t[::1] view = seqs
        cdef Py_ssize_t k, i, found = 0
        for k in range(view.shape[0]):
            i = columns.c_lower_bound(view[k])
            if i < columns.rows and columns.c_seq(i) == view[k] and self.c_subtract_row(columns, i):
                self.c_record_removal(view[k], view[k])
                found += 1
        return found

    cdef int c_record_removal(self, uint64_t first, uint64_t last) except -1:
        cdef Py_ssize_t cap
        cdef uint64_t *fresh
        if not self.journaled:
            return 0
        if self.gone_n and self.gone[2 * self.gone_n - 1] + 1 == first:
            self.gone[2 * self.gone_n - 1] = last
            return 0
        if self.gone_n == self.gone_cap:
            cap = self.gone_cap * 2 if self.gone_cap else 8
            fresh = <uint64_t *>realloc(self.gone, cap * 16)
            if fresh == NULL:
                raise MemoryError
            self.gone = fresh
            self.gone_cap = cap
        self.gone[2 * self.gone_n] = first
        self.gone[2 * self.gone_n + 1] = last
        self.gone_n += 1
        self.open_frame.pending_bytes += 16
        return 0

    def cached_last_seq(self, bytes subject not None):
        """Return the last sequence of a subject; 0 if it has none, -1 if it must be searched for."""
        return self.c_cached_last_seq(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))

    cdef int64_t c_cached_last_seq(self, const char *subject, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t sid = self.subject_index.c_find(subject, size, hr_hash(subject, size, SEED))
        if sid < 0:
            return 0
        return -1 if self.subject_index.lasts_[sid] & BOUND_BIT else <int64_t>self.subject_index.lasts_[sid]

    def trim_oldest(self, bytes subject not None, Py_ssize_t most):
        """Remove the oldest message of a subject that has more than `most`, if it is in the active segment.

        Returns its sequence, 0 if there is nothing to remove, -1 if it must be searched for.
        """
        cdef Py_ssize_t length = PyBytes_GET_SIZE(subject), sid, i
        cdef uint64_t first
        sid = self.subject_index.c_find(PyBytes_AS_STRING(subject), length,
                                   hr_hash(PyBytes_AS_STRING(subject), length, SEED))
        if sid < 0 or <Py_ssize_t>self.subject_index.counts_[sid] <= most:
            return 0
        first = self.subject_index.firsts_[sid]
        if first & BOUND_BIT or not self.columns.rows or first < self.columns.base:
            return -1
        i = self.columns.c_lower_bound(first)
        if i >= self.columns.rows or self.columns.c_seq(i) != first or not self.c_subtract_row(self.columns, i):
            return -1
        self.c_record_removal(first, first)
        if first == self.first_seq:
            while i < self.columns.rows and self.columns.c_live != NULL and not self.columns.c_live[i]:
                i += 1
            self.first_seq = self.columns.c_seq(i) if i < self.columns.rows else self.last_seq + 1
        self.c_mark_dirty()
        return first

    def record_removals(self, uint64_t first, uint64_t last):
        """Record in the frame that these sequences were removed."""
        self.c_record_removal(first, last)

    def record_trim(self, uint64_t seq):
        """Record in the frame that everything below was removed."""
        if seq > self.trim_to:
            self.trim_to = seq

    def record_advance(self, uint64_t seq):
        """Record in the frame that the last sequence is at least this."""
        if seq > self.advance_to:
            self.advance_to = seq

    cdef Py_ssize_t changes_size(self) except -1:
        """Return the size of this log's entries in the frame."""
        cdef Py_ssize_t total = 0
        cdef object part
        for part in self.parts:
            if type(part) is bytes:
                total += PyBytes_GET_SIZE(part)
            else:
                total += ENTRY + <Py_ssize_t>part[2] - <Py_ssize_t>part[1]
        if self.tail_used > self.mark:
            total += ENTRY + self.tail_used - self.mark
        return total + self.change_entries_size()

    cdef Py_ssize_t change_entries_size(self) noexcept:
        cdef Py_ssize_t total = 0
        if self.gone_n:
            total += ENTRY + 16 * self.gone_n
        if self.trim_to:
            total += ENTRY + 8
        if self.advance_to:
            total += ENTRY + 8
        return total

    cdef char *entry(self, char *p, int kind, Py_ssize_t length) noexcept:
        hr_put16(p, <uint16_t>kind)
        hr_put16(p + 2, 0)
        hr_put32(p + 4, self.ident)
        hr_put64(p + 8, <uint64_t>length)
        return p + ENTRY

    cdef char *collect_changes(self, char *p) except NULL:
        """Write this log's entries and reset its changes."""
        cdef object part
        cdef Py_ssize_t lo, length
        for part in self.parts:
            if type(part) is bytes:
                length = PyBytes_GET_SIZE(part)
                memcpy(p, PyBytes_AS_STRING(part), length)
            else:
                lo = part[1]
                length = <Py_ssize_t>part[2] - lo
                p = self.entry(p, KIND_RECORDS, length)
                memcpy(p, PyByteArray_AS_STRING(part[0]) + lo, length)
            p += length
        if self.tail_used > self.mark:
            length = self.tail_used - self.mark
            p = self.entry(p, KIND_RECORDS, length)
            memcpy(p, self.p + self.mark, length)
            p += length
        return self.write_change_entries(p)

    cdef char *write_change_entries(self, char *p) noexcept:
        if self.gone_n:
            p = self.entry(p, KIND_REMOVALS, 16 * self.gone_n)
            memcpy(p, self.gone, 16 * self.gone_n)
            p += 16 * self.gone_n
        if self.trim_to:
            p = self.entry(p, KIND_TRIM, 8)
            hr_put64(p, self.trim_to)
            p += 8
        if self.advance_to:
            p = self.entry(p, KIND_ADVANCE, 8)
            hr_put64(p, self.advance_to)
            p += 8
        return p

    cdef int collect_views(self, list pieces) except -1:
        """Like `collect_changes`, without copying: records become part of the frame as views."""
        cdef object part
        cdef bytearray changes
        for part in self.parts:
            if type(part) is bytes:
                pieces.append(part)
            else:
                self.collect_record_views(pieces, part[0], part[1], part[2])
        if self.tail_used > self.mark:
            self.collect_record_views(pieces, self.tail, self.mark, self.tail_used)
        if 16 * self.gone_n >= NO_COPY_BYTES:
            self.move_removals(pieces)
        changes = bytearray(self.change_entries_size())
        self.write_change_entries(PyByteArray_AS_STRING(changes))
        pieces.append(changes)
        return 0

    cdef int collect_record_views(self, list pieces, bytearray data, Py_ssize_t lo, Py_ssize_t hi) except -1:
        cdef char head[ENTRY]
        self.entry(head, KIND_RECORDS, hi - lo)
        pieces.append(PyBytes_FromStringAndSize(head, ENTRY))
        pieces.append(memoryview(data)[lo:hi])
        return 0

    cdef int move_removals(self, list pieces) except -1:
        """Make the array of removals part of the frame: millions of removals take long to copy."""
        cdef char head[ENTRY]
        cdef _Removals removals = _Removals()
        self.entry(head, KIND_REMOVALS, 16 * self.gone_n)
        pieces.append(PyBytes_FromStringAndSize(head, ENTRY))
        removals.runs, removals.length = self.gone, 16 * self.gone_n
        self.gone, self.gone_n, self.gone_cap = NULL, 0, 0
        pieces.append(memoryview(removals))
        return 0

    cdef int reset(self) except -1:
        if self.parts:
            self.parts = []
        self.mark = self.tail_used
        self.gone_n = 0
        self.trim_to = 0
        self.advance_to = 0
        self.dirty = False
        self.sealed_seq = self.last_seq
        return 0

    def reset_changes(self):
        """Drop this log's changes: the log was deleted."""
        self.reset()


cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long long offset)
    int munmap(void *address, size_t length)
    int PROT_READ
    int MAP_SHARED
    void *MAP_FAILED


cdef class _Mapping:
    """A file mapped for reading; unlike `mmap.mmap`, it keeps no descriptor open."""

    cdef void *address
    cdef Py_ssize_t length

    def __dealloc__(self):
        if self.address != NULL:
            munmap(self.address, self.length)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.length, 1, flags)


def map_file(int fd, Py_ssize_t length):
    """Return a read-only view of an open file's first bytes, which outlives the descriptor."""
    cdef _Mapping mapping = _Mapping()
    if length == 0:
        return memoryview(b"")
    cdef void *address = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0)
    if address == MAP_FAILED:
        raise OSError("the file cannot be mapped")
    mapping.address = address
    mapping.length = length
    return memoryview(mapping)


def build_frame_body(list logs not None):
    """Return (body in pieces, watermarks): the entries of these logs for a frame; resets their changes.

    Small entries are copied into one piece; large ones become views.
    """
    cdef LogWriter log
    cdef Py_ssize_t total = 0, marks = 0, weight
    cdef bytearray body, watermarks
    for log in logs:
        if log.journaled:
            weight = log.changes_size()
            total += weight if weight < NO_COPY_BYTES else 0
            marks += 12
    body = PyByteArray_FromStringAndSize(NULL, total)
    watermarks = bytearray(marks)
    cdef list pieces = [body]
    cdef char *p = PyByteArray_AS_STRING(body)
    cdef char *w = PyByteArray_AS_STRING(watermarks)
    for log in logs:
        if log.journaled:
            if log.changes_size() < NO_COPY_BYTES:
                p = log.collect_changes(p)
            else:
                log.collect_views(pieces)
            hr_put32(w, log.ident)
            hr_put64(w + 4, log.last_seq)
            w += 12
        log.reset()
    return pieces, bytes(watermarks)


def mark_committed(list logs not None):
    """Mark logs as committed: the frame that `build_frame_body` made of them is durable."""
    cdef LogWriter log
    for log in logs:
        log.committed_seq = log.sealed_seq


def decode_record(data, Py_ssize_t at):
    """Return (time_ns, subject, header, payload, ttl_s) of the record at `at`; the bytes must be verified."""
    cdef const uint8_t[::1] view = data
    cdef const char *p
    cdef Py_ssize_t size, sl, hl
    if at < 0 or at > view.shape[0] - RECORD_HEADER:
        raise ValueError("no record there")
    p = <const char *>&view[at]
    size, sl, hl = record_size(p), record_subject_size(p), record_header_size(p)
    if size < RECORD_HEADER + sl + hl or size > view.shape[0] - at:
        raise ValueError("no record there")
    return (record_time(p), PyBytes_FromStringAndSize(p + RECORD_HEADER, sl), PyBytes_FromStringAndSize(p + RECORD_HEADER + sl, hl),
            PyBytes_FromStringAndSize(p + RECORD_HEADER + sl + hl, size - RECORD_HEADER - sl - hl), record_ttl(p))
