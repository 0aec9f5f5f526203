# cython: language_level=3
"""Ingest state, compiled: `Nats-` headers, dedup window, open atomic batches.

Owns the parsing of header blocks in one pass (`scan_headers`, `parse_nats_headers`), the message ids of a dedup window
(`DedupWindow`) and the members of open batches (`OpenBatch`, `ByteBudget`). Must not know streams, API errors or
clocks. `ingest_state_pure` is the same in pure Python; the same tests run on both.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from headrace._native.record_layout cimport u16, u64

cdef enum:
    ENTRY = 18  # sequence, time, length of the id
    DIGITS_MAX = 9
    DROPPED_PER_CALL = 8
    FIRST_IDS = 32768  # ids in the first dictionary; those after them go to shards
    SHARDS = 256
    EXPIRED_BYTES_MAX = 65536  # bytes of expired ids from which they are removed from `order`


cdef inline const char *line_end(const char *at, const char *end) noexcept nogil:
    """Return where a line ends: at its CRLF, or at the end of the block."""
    cdef const char *found
    while at < end:
        found = <const char *>memchr(at, 13, end - at)
        if found == NULL or found + 1 >= end:
            return end
        if found[1] == 10:
            return found
        at = found + 1
    return end


cdef inline Py_ssize_t parse_digits(const char *at, Py_ssize_t size) noexcept nogil:
    """Return the value of one to nine decimal digits, or -1."""
    cdef Py_ssize_t value = 0, i
    if size < 1 or size > DIGITS_MAX:
        return -1
    for i in range(size):
        if at[i] < 48 or at[i] > 57:
            return -1
        value = value * 10 + (at[i] - 48)
    return value


cdef int scan_headers(const char *at, const char *end, ParsedHeaders *heading) noexcept nogil:
    """Return which headers for the server a block contains, and set their values in `heading`.

    Returns OTHER if one of them has no field there or an unusual value.
    """
    cdef const char *stop
    cdef const char *colon
    cdef const char *value
    cdef Py_ssize_t name
    cdef int found = 0
    at = line_end(at, end) + 2  # the first line is not a header
    while at < end:
        stop = line_end(at, end)
        if stop - at >= 5 and at[0] == 78 and memcmp(at, b"Nats-", 5) == 0:
            colon = <const char *>memchr(at, 58, stop - at)
            if colon == NULL:
                return OTHER
            name = colon - at
            value = colon + 1
            while value < stop and value[0] == 32:
                value += 1
            if name == 11 and memcmp(at, b"Nats-Msg-Id", 11) == 0:
                if not found & MSG_ID:
                    heading.id, heading.id_size = value, stop - value
                    found |= MSG_ID
            elif name == 8 and memcmp(at, b"Nats-TTL", 8) == 0:
                if stop == value:
                    return OTHER
                if not found & TTL:
                    heading.ttl, heading.ttl_size = value, stop - value
                    found |= TTL
            elif name == 13 and not found & BATCH_ID and (
                memcmp(at, b"Nats-Batch-Id", 13) == 0 or memcmp(at, b"Nats-Batch-ID", 13) == 0
            ):
                heading.batch, heading.batch_size = value, stop - value
                found |= BATCH_ID
            elif not found & BATCH_POSITION and (
                (name == 19 and memcmp(at, b"Nats-Batch-Sequence", 19) == 0)
                or (name == 14 and memcmp(at, b"Nats-Batch-Seq", 14) == 0)
            ):
                heading.position = parse_digits(value, stop - value)
                if heading.position < 0:
                    return OTHER
                found |= BATCH_POSITION
            else:
                return OTHER
        at = stop + 2
    return found


def parse_nats_headers(bytes block not None):
    """Return the first value of every header whose name begins with `Nats-`; names are case-sensitive.

    The first line, and lines without a colon, are not headers.
    """
    cdef const char *at = PyBytes_AS_STRING(block)
    cdef const char *end = at + PyBytes_GET_SIZE(block)
    cdef const char *stop
    cdef const char *colon
    cdef const char *value
    cdef dict found = {}
    cdef bytes name
    at = line_end(at, end) + 2  # the first line is not a header
    while at < end:
        stop = line_end(at, end)
        if stop - at >= 5 and at[0] == 78 and memcmp(at, b"Nats-", 5) == 0:
            colon = <const char *>memchr(at, 58, stop - at)
            if colon != NULL:
                value = colon + 1
                while value < stop and value[0] == 32:
                    value += 1
                name = PyBytes_FromStringAndSize(at, colon - at)
                if name not in found:
                    found[name] = PyBytes_FromStringAndSize(value, stop - value)
        at = stop + 2
    return found


cdef class DedupWindow:
    """Message ids with their sequences, for `window_ns` after the messages were stored.

    `order` has them in the order they were added, which is that of sequences and times, encoded for storage: sequence,
    time, length, id. The first one that has not been dropped is at `head`; those from `saved_end` on have not been drained
    yet. Ids that left the window are dropped a few at a time. Those before `expired_end`, up to `expired_seq`, are known
    to have left it. A position counts from the first entry ever, of which the first `base` bytes are gone.

    A dictionary that grows copies itself, which takes long if it is large. So only the first ids are in `seen`; once it is
    full, others are in one of many `shards`, by their hash.
    """

    def __init__(self, int64_t window_ns):
        if window_ns < 0:
            raise ValueError("the length of a dedup window must not be negative")
        self.window_ns = window_ns
        self.seen = {}
        self.shards = None
        self.sharded = 0
        self.order = bytearray()
        self.base = self.head = self.saved_end = self.expired_end = 0
        self.expired_seq = self.expired_horizon = 0

    def __len__(self):
        return len(self.seen) + self.sharded

    cdef object c_get(self, bytes message_id):
        """Return the sequence of an id, or None."""
        found = self.seen.get(message_id)
        if found is None and self.shards is not None:
            found = (<dict>self.shards[(hash(message_id) >> 32) & (SHARDS - 1)]).get(message_id)
        return found

    cdef int c_put(self, bytes message_id, uint64_t seq) except -1:
        """Set the sequence of an id."""
        cdef dict shard
        if self.shards is None and len(self.seen) >= FIRST_IDS:
            self.shards = [{} for _ in range(SHARDS)]
        if self.shards is None or message_id in self.seen:
            self.seen[message_id] = seq
            return 0
        shard = <dict>self.shards[(hash(message_id) >> 32) & (SHARDS - 1)]
        self.sharded -= len(shard)
        shard[message_id] = seq
        self.sharded += len(shard)
        return 0

    cdef int c_drop(self, bytes message_id, uint64_t seq) except -1:
        """Remove an id, unless it was added again with another sequence."""
        cdef dict shard
        if self.seen.get(message_id) == seq:
            del self.seen[message_id]
        elif self.shards is not None:
            shard = <dict>self.shards[(hash(message_id) >> 32) & (SHARDS - 1)]
            if shard.get(message_id) == seq:
                del shard[message_id]
                self.sharded -= 1
                if self.sharded == 0:
                    self.shards = None
        return 0

    cdef uint64_t c_find(self, bytes message_id, uint64_t now_ns) except? 0:
        if self.head < PyByteArray_GET_SIZE(self.order):
            if self.is_over(PyByteArray_AS_STRING(self.order) + self.head, now_ns):
                self.c_expire(now_ns, DROPPED_PER_CALL)
        found = self.c_get(message_id)
        if found is None or self.has_expired(found, now_ns):
            return 0
        return <uint64_t>found

    cdef bint has_expired(self, uint64_t seq, uint64_t now_ns) noexcept:
        """Return whether the id of this sequence has left the window, but was not dropped yet."""
        cdef const char *order = PyByteArray_AS_STRING(self.order)
        cdef Py_ssize_t at = max(self.expired_end, self.head), end = PyByteArray_GET_SIZE(self.order)
        if self.head >= end or not self.is_over(order + self.head, now_ns):
            return False
        if now_ns - <uint64_t>self.window_ns < self.expired_horizon:  # the window is longer now, or the clock went back
            self.expired_seq, at = 0, self.head
        self.expired_horizon = now_ns - <uint64_t>self.window_ns
        while at < end and self.expired_seq < seq and self.is_over(order + at, now_ns):
            self.expired_seq = u64(order + at)
            at += ENTRY + u16(order + at + 16)
        self.expired_end = at
        return seq <= self.expired_seq

    cdef bint is_over(self, const char *entry, uint64_t now_ns) noexcept nogil:
        """Return whether an id has left the window. Times are compared unsigned, as they are stored."""
        return now_ns >= <uint64_t>self.window_ns and u64(entry + 8) <= now_ns - <uint64_t>self.window_ns

    cdef int c_add(self, bytes message_id, uint64_t seq, uint64_t time_ns) except -1:
        cdef Py_ssize_t at = PyByteArray_GET_SIZE(self.order), size = PyBytes_GET_SIZE(message_id)
        cdef uint16_t length = <uint16_t>size
        cdef char *to
        if size > 0xFFFF:
            raise ValueError("a message id has more than 65,535 bytes")
        self.c_put(message_id, seq)
        PyByteArray_Resize(self.order, at + ENTRY + size)
        to = PyByteArray_AS_STRING(self.order) + at
        memcpy(to, &seq, 8)
        memcpy(to + 8, &time_ns, 8)
        memcpy(to + 16, &length, 2)
        memcpy(to + ENTRY, PyBytes_AS_STRING(message_id), size)
        return 0

    cdef int c_expire(self, uint64_t now_ns, Py_ssize_t count) except -1:
        cdef const char *order = PyByteArray_AS_STRING(self.order)
        cdef Py_ssize_t at = self.head, end = PyByteArray_GET_SIZE(self.order), size
        cdef bytes message_id
        cdef Py_ssize_t dropped = 0
        while at < end and dropped < count and self.is_over(order + at, now_ns):
            size = u16(order + at + 16)
            message_id = PyBytes_FromStringAndSize(order + at + ENTRY, size)
            self.c_drop(message_id, u64(order + at))
            at += ENTRY + size
            dropped += 1
        self.head = at
        if self.saved_end < at:
            self.saved_end = at
        if at > EXPIRED_BYTES_MAX and at * 2 > end:
            del self.order[:at]
            self.base += at
            self.head, self.saved_end, self.expired_end = 0, self.saved_end - at, max(self.expired_end - at, 0)
        return 0

    def find(self, bytes message_id not None, uint64_t now_ns):
        """Return the sequence of the message stored with this id within the window; 0 if there is none."""
        return self.c_find(message_id, now_ns)

    def add(self, bytes message_id not None, uint64_t seq, uint64_t time_ns):
        """Add a message that was just admitted."""
        self.c_add(message_id, seq, time_ns)

    def expire(self, uint64_t now_ns, Py_ssize_t count=DROPPED_PER_CALL):
        """Drop at most `count` of the ids that left the window."""
        self.c_expire(now_ns, count)

    @property
    def first_position(self):
        """The position of the first id that has not been dropped."""
        return self.base + self.head

    @property
    def saved_position(self):
        """The position after the last id that was drained or restored."""
        return self.base + self.saved_end

    def drain_unsaved(self):
        """Return what was added since the last call, encoded for storage."""
        cdef bytes fresh = bytes(self.order[self.saved_end:])
        self.saved_end = PyByteArray_GET_SIZE(self.order)
        return fresh

    def restore(self, bytes block not None):
        """Add stored entries."""
        cdef const char *start = PyBytes_AS_STRING(block)
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(block), size
        while at + ENTRY <= end:
            size = u16(start + at + 16)
            if at + ENTRY + size > end:
                break
            self.c_put(PyBytes_FromStringAndSize(start + at + ENTRY, size), u64(start + at))
            at += ENTRY + size
        self.order += block[:at]
        self.saved_end = PyByteArray_GET_SIZE(self.order)

    def encode(self, Py_ssize_t first, Py_ssize_t end):
        """Return the ids between two positions that have not been dropped, encoded for storage."""
        cdef Py_ssize_t start = max(first - self.base, self.head)
        cdef Py_ssize_t stop = min(end - self.base, PyByteArray_GET_SIZE(self.order))
        if stop <= start:
            return b""
        return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.order) + start, stop - start)


cdef class ByteBudget:
    """Bytes that all open batches of a server use together, and their limit."""

    def __init__(self, Py_ssize_t bytes_max):
        self.bytes_max = bytes_max


cdef class OpenBatch:
    """An open atomic batch: its members, its limits, and how long it waits for more."""

    def __init__(self, bytes name not None, ByteBudget budget not None, Py_ssize_t max_members, int64_t timeout_ns):
        self.name = name
        self.budget = budget
        self.max_members = max_members
        self.timeout_ns = timeout_ns
        self.members = []
        self.open = True

    cdef bint c_accepts(self, const char *name, Py_ssize_t name_size, Py_ssize_t position, Py_ssize_t size) except -1:
        """Return whether a member of this name, position and size is the next one and fits."""
        return (
            self.open
            and position == len(self.members) + 1
            and position <= self.max_members
            and name_size == PyBytes_GET_SIZE(self.name)
            and memcmp(name, PyBytes_AS_STRING(self.name), name_size) == 0
            and self.budget.bytes + size <= self.budget.bytes_max
        )

    cdef int c_add(self, member, Py_ssize_t size) except -1:
        self.members.append(member)
        self.bytes += size
        self.budget.bytes += size
        return 0

    def add(self, member, Py_ssize_t size):
        """Add a member."""
        self.c_add(member, size)
