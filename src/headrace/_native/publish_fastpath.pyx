# cython: language_level=3
"""The fast lane into a stream, compiled: a publish that needs no decision is stored and answered in one step.

Owns the way of messages that cannot be refused: nothing in them for the server but an id, a lifetime or their place in
an open batch, and no limit that has to be looked at first. Everything else is handed to the stream. `lanes_pure` does
the same in plain Python and passes the same tests.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from headrace._native.ingest_state cimport BATCH_ID, BATCH_POSITION, OTHER, TTL, ParsedHeaders, OpenBatch, DedupWindow, scan_headers

from headrace.errors import StoreError


cdef enum:
    HEADER_BYTES_MAX = 65535


cdef inline bint is_storable(bytes header):
    """Whether a header block carries no status and is of a size that can be stored."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    return 10 <= size <= HEADER_BYTES_MAX and memcmp(PyBytes_AS_STRING(header), b"NATS/1.0\r\n", 10) == 0


cdef inline bint is_fast_ingest(bytes reply):
    """Whether the reply subject says that the message belongs to a fast batch."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(reply)
    return length > 4 and memcmp(PyBytes_AS_STRING(reply) + length - 4, b".$FI", 4) == 0


cdef class PendingReplies:
    """What waits for the frame under construction: (subject, reply, header, payload), in the order it was decided."""

    cdef public list messages

    def __init__(self):
        self.messages = []


cdef bytes encode_pub_ack(bytes prefix, unsigned long long seq):
    """`prefix` + the sequence + `}`."""
    cdef char digits[24]
    cdef char *end = digits + 24
    cdef char *at = end - 1
    cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix)
    cdef bytes made
    cdef char *to
    at[0] = 125
    while True:
        at -= 1
        at[0] = <char>(48 + seq % 10)
        seq //= 10
        if seq == 0:
            break
    made = PyBytes_FromStringAndSize(NULL, length + (end - at))
    to = PyBytes_AS_STRING(made)
    memcpy(to, PyBytes_AS_STRING(prefix), length)
    memcpy(to + length, at, end - at)
    return made


cdef class PublishFastPath:
    """The sink of one stream.

    `append` stores a message, `on_slow_path(session, ...)` decides about everything unusual, `on_fast_ingest(session, ...)` takes members
    of fast batches, which are known by their reply subject, `on_store_error(reply, failure)` answers when the store takes
    nothing, `on_first_change()` says that the stream has its first change in this frame. `open` is whether messages that ask for
    nothing need no look.

    What has to follow a message: `after_append(subject, seq, time_ns, ttl_s)`, or None and, for one with a lifetime,
    `note(seq, time_ns, ttl_s)`. `lifetime(text)` are the seconds that a `Nats-TTL` means here (-1: ask `on_slow_path`);
    `expire(now_ns)` comes before a message with a lifetime. `dedup` are the ids seen lately, `batch` is the batch that
    was added to last.
    """

    cdef public object append, now_ns, on_slow_path, on_fast_ingest, on_store_error, on_first_change, after_append, track_ttl, parse_ttl, expire_until
    cdef public PendingReplies pending_replies
    cdef public DedupWindow dedup
    cdef public OpenBatch open_batch
    cdef public bytes ack_prefix, last_message_id
    cdef public bint enabled, sends_acks, dirty
    cdef bytes ttl_text
    cdef int64_t ttl_s

    def __init__(self, PendingReplies pending_replies not None):
        self.pending_replies = pending_replies
        self.ack_prefix = self.last_message_id = b""
        self.ttl_text = b""

    def reset_ttl_cache(self):
        """What a `Nats-TTL` means may have changed."""
        self.ttl_text = b""

    def on_message(self, session, bytes subject not None, bytes reply not None, bytes header not None,
              bytes payload not None):
        """A publish on one of the stream's subjects."""
        if is_fast_ingest(reply):
            self.on_fast_ingest(session, subject, reply, header, payload)
        elif not self.enabled:
            self.on_slow_path(session, subject, reply, header, payload)
        elif PyBytes_GET_SIZE(header) == 0:
            self.store(subject, reply, header, payload, self.now_ns(), 0, b"")
        elif not self.publish_with_headers(subject, reply, header, payload):
            self.on_slow_path(session, subject, reply, header, payload)

    cdef bint publish_with_headers(self, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """A message with headers; False if it needs a decision, and then nothing has happened yet."""
        cdef ParsedHeaders heading
        cdef const char *start = PyBytes_AS_STRING(header)
        cdef int64_t ttl_s = 0
        cdef bytes message_id = b""
        cdef int found
        if not is_storable(header):
            return False
        heading.id_size = 0
        found = scan_headers(start, start + PyBytes_GET_SIZE(header), &heading)
        if found & (OTHER | BATCH_ID | BATCH_POSITION):
            return found == (BATCH_ID | BATCH_POSITION) and self.add_to_batch(subject, reply, header, payload, &heading)
        if found & TTL:
            ttl_s = self.cached_ttl(&heading)
            if ttl_s < 0:
                return False
        time_ns = self.now_ns()
        if ttl_s:
            self.expire_until(time_ns)
        if heading.id_size:
            message_id = PyBytes_FromStringAndSize(heading.id, heading.id_size)
            if self.dedup is not None and self.dedup.c_find(message_id, time_ns):
                return False
        self.store(subject, reply, header, payload, time_ns, ttl_s, message_id)
        return True

    cdef int64_t cached_ttl(self, ParsedHeaders *heading) except -2:
        """What a lifetime means; the same text as last time means the same."""
        if (PyBytes_GET_SIZE(self.ttl_text) != heading.ttl_size
                or memcmp(PyBytes_AS_STRING(self.ttl_text), heading.ttl, heading.ttl_size) != 0):
            self.ttl_text = PyBytes_FromStringAndSize(heading.ttl, heading.ttl_size)
            self.ttl_s = self.parse_ttl(self.ttl_text)
        return self.ttl_s

    cdef bint add_to_batch(self, bytes subject, bytes reply, bytes header, bytes payload, ParsedHeaders *heading) except -1:
        """The next member of the batch that was added to last; False if it is anything else."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
        cdef OpenBatch batch = self.open_batch
        if batch is None or not batch.c_accepts(heading.batch, heading.batch_size, heading.position, size):
            return False
        batch.c_add((subject, header, payload), size)
        batch.deadline_ns = <int64_t>self.now_ns() + batch.timeout_ns
        if self.sends_acks and PyBytes_GET_SIZE(reply):
            self.mark_dirty()
            self.pending_replies.messages.append((reply, b"", b"", b""))
        return True

    cdef store(self, bytes subject, bytes reply, bytes header, bytes payload, time_ns, int64_t ttl_s, bytes message_id):
        """Store a message and answer."""
        cdef object seq
        cdef bytes ack
        try:
            if ttl_s:
                seq = self.append(subject, header, payload, time_ns, ttl_s)
            else:
                seq = self.append(subject, header, payload, time_ns)
            ack = encode_pub_ack(self.ack_prefix, seq)
            self.last_message_id = message_id
            if PyBytes_GET_SIZE(message_id) and self.dedup is not None:
                self.dedup.c_add(message_id, seq, time_ns)
            if self.after_append is not None:
                self.after_append(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self.track_ttl(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.on_store_error(reply, failure)
            return
        self.mark_dirty()
        if self.sends_acks and PyBytes_GET_SIZE(reply):
            self.pending_replies.messages.append((reply, b"", b"", ack))

    cdef inline mark_dirty(self):
        if not self.dirty:
            self.dirty = True
            self.on_first_change()
