# cython: language_level=3
"""The publish fast path of a stream, compiled: stores a publish that needs no checks and queues its ack in one step.

Owns messages that cannot be rejected: they have no header for the server except an id, a TTL or a position in an open
batch, and no limit has to be checked first. Everything else goes to the stream. `publish_fastpath_pure` is the same in
pure Python; the same tests run on both. See ADR 7.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from headrace._native.ingest_state cimport BATCH_ID, BATCH_POSITION, OTHER, TTL, ParsedHeaders, OpenBatch, DedupWindow, scan_headers

from headrace.errors import StoreError


cdef enum:
    HEADER_BYTES_MAX = 65535


cdef inline bint is_storable(bytes header):
    """Return whether a header block has no status and is small enough to be stored."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    return 10 <= size <= HEADER_BYTES_MAX and memcmp(PyBytes_AS_STRING(header), b"NATS/1.0\r\n", 10) == 0


cdef inline bint is_fast_ingest(bytes reply):
    """Return whether the reply subject identifies a member of a fast-ingest batch."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(reply)
    return length > 4 and memcmp(PyBytes_AS_STRING(reply) + length - 4, b".$FI", 4) == 0


cdef class PendingReplies:
    """Replies that wait for the open frame to commit: (subject, reply, header, payload), in order."""

    cdef public list messages

    def __init__(self):
        self.messages = []


cdef bytes encode_pub_ack(bytes prefix, unsigned long long seq):
    """Encode a PubAck: `prefix`, the sequence, `}`."""
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
    """Internal subscriber of one stream's subjects; stores simple messages without the slow path.

    The pure version describes the attributes; `publish_handler.py` has the protocols of the collaborators.
    """

    cdef readonly object handler
    cdef object _after_append, _parse_ttl, _append, _now_ns, _track_expiry, _expire_slice
    cdef public PendingReplies pending_replies
    cdef public DedupWindow dedup
    cdef public OpenBatch open_batch
    cdef public bytes ack_prefix, last_message_id
    cdef public bint enabled, sends_acks, calls_after_append, dirty
    cdef bytes ttl_text
    cdef int64_t ttl_s

    def __init__(self, handler, log, clock, retention, PendingReplies pending_replies not None):
        self.handler = handler
        self._parse_ttl = handler.parse_ttl
        self._append = log.append
        self._now_ns = clock.now_ns
        self._after_append = retention.after_append
        self._track_expiry = retention.track_expiry
        self._expire_slice = retention.expire_slice
        self.pending_replies = pending_replies
        self.ack_prefix = self.last_message_id = b""
        self.ttl_text = b""

    def reset_ttl_cache(self):
        """Drop the cached TTL: the meaning of `Nats-TTL` may have changed."""
        self.ttl_text = b""

    def on_message(self, session, bytes subject not None, bytes reply not None, bytes header not None,
              bytes payload not None):
        """Handle a publish on one of the stream's subjects."""
        if is_fast_ingest(reply):
            self.handler.on_fast_ingest(session, subject, reply, header, payload)
        elif not self.enabled:
            self.handler.on_publish(session, subject, reply, header, payload)
        elif PyBytes_GET_SIZE(header) == 0:
            self.store(subject, reply, header, payload, self._now_ns(), 0, b"")
        elif not self.publish_with_headers(subject, reply, header, payload):
            self.handler.on_publish(session, subject, reply, header, payload)

    cdef bint publish_with_headers(self, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Store a message with headers; return False, without any effect, if it needs the slow path."""
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
        time_ns = self._now_ns()
        if ttl_s:
            self._expire_slice(time_ns)
        if heading.id_size:
            message_id = PyBytes_FromStringAndSize(heading.id, heading.id_size)
            if self.dedup is not None and self.dedup.c_find(message_id, time_ns):
                return False
        self.store(subject, reply, header, payload, time_ns, ttl_s, message_id)
        return True

    cdef int64_t cached_ttl(self, ParsedHeaders *heading) except -2:
        """Return the seconds of a TTL; parse it only if its text differs from the previous one."""
        if (PyBytes_GET_SIZE(self.ttl_text) != heading.ttl_size
                or memcmp(PyBytes_AS_STRING(self.ttl_text), heading.ttl, heading.ttl_size) != 0):
            self.ttl_text = PyBytes_FromStringAndSize(heading.ttl, heading.ttl_size)
            self.ttl_s = self._parse_ttl(self.ttl_text)
        return self.ttl_s

    cdef bint add_to_batch(self, bytes subject, bytes reply, bytes header, bytes payload, ParsedHeaders *heading) except -1:
        """Add the next member of the batch that was added to last; return False if it is anything else."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
        cdef OpenBatch batch = self.open_batch
        if batch is None or not batch.c_accepts(heading.batch, heading.batch_size, heading.position, size):
            return False
        batch.c_add((subject, header, payload), size)
        batch.deadline_ns = <int64_t>self._now_ns() + batch.timeout_ns
        if self.sends_acks and PyBytes_GET_SIZE(reply):
            self.mark_dirty()
            self.pending_replies.messages.append((reply, b"", b"", b""))
        return True

    cdef store(self, bytes subject, bytes reply, bytes header, bytes payload, time_ns, int64_t ttl_s, bytes message_id):
        """Store a message and queue its reply."""
        cdef object seq
        cdef bytes ack
        try:
            if ttl_s:
                seq = self._append(subject, header, payload, time_ns, ttl_s)
            else:
                seq = self._append(subject, header, payload, time_ns)
            ack = encode_pub_ack(self.ack_prefix, seq)
            self.last_message_id = message_id
            if PyBytes_GET_SIZE(message_id) and self.dedup is not None:
                self.dedup.c_add(message_id, seq, time_ns)
            if self.calls_after_append:
                self._after_append(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self._track_expiry(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.handler.on_store_error(reply, failure)
            return
        self.mark_dirty()
        if self.sends_acks and PyBytes_GET_SIZE(reply):
            self.pending_replies.messages.append((reply, b"", b"", ack))

    cdef inline mark_dirty(self):
        if not self.dirty:
            self.dirty = True
            self.handler.on_first_change()
