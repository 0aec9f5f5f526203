# cython: language_level=3
"""The fast lane into a stream, compiled: a publish that needs no decision is stored and answered in one step.

Owns the way of messages that cannot be refused: nothing in them for the server but an id, a lifetime or their place in
an open batch, and no limit that has to be looked at first. Everything else is handed to the stream. `lanes_pure` does
the same in plain Python and passes the same tests.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from headrace.kernel.arrivals cimport BATCH_ID, BATCH_POSITION, OTHER, TTL, Heading, Staged, Window, look

from headrace.errors import StoreError


cdef enum:
    HEADER_BYTES_MAX = 65535


cdef inline bint storable(bytes header):
    """Whether a header block carries no status and is of a size that can be stored."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
    return 10 <= size <= HEADER_BYTES_MAX and memcmp(PyBytes_AS_STRING(header), b"NATS/1.0\r\n", 10) == 0


cdef inline bint ingested(bytes reply):
    """Whether the reply subject says that the message belongs to a fast batch."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(reply)
    return length > 4 and memcmp(PyBytes_AS_STRING(reply) + length - 4, b".$FI", 4) == 0


cdef class Outbox:
    """What waits for the frame under construction: (subject, reply, header, payload), in the order it was decided."""

    cdef public list held

    def __init__(self):
        self.held = []


cdef bytes acknowledgement(bytes prefix, unsigned long long seq):
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


cdef class Lane:
    """The sink of one stream.

    `append` stores a message, `slow(session, ...)` decides about everything unusual, `fast(session, ...)` takes members
    of fast batches, which are known by their reply subject, `refuse(reply, failure)` answers when the store takes
    nothing, `touch()` says that the stream has its first change in this frame. `open` is whether messages that ask for
    nothing need no look.

    What has to follow a message: `follow(subject, seq, time_ns, ttl_s)`, or None and, for one with a lifetime,
    `note(seq, time_ns, ttl_s)`. `lifetime(text)` are the seconds that a `Nats-TTL` means here (-1: ask `slow`);
    `expire(now_ns)` comes before a message with a lifetime. `window` are the ids seen lately, `batch` is the batch that
    was added to last.
    """

    cdef public object append, now_ns, slow, fast, refuse, touch, follow, note, lifetime, expire
    cdef public Outbox outbox
    cdef public Window window
    cdef public Staged batch
    cdef public bytes ack_prefix, last_message_id
    cdef public bint open, acks, touched
    cdef bytes ttl_text
    cdef int64_t ttl_s

    def __init__(self, Outbox outbox not None):
        self.outbox = outbox
        self.ack_prefix = self.last_message_id = b""
        self.ttl_text = b""

    def forget_lifetime(self):
        """What a `Nats-TTL` means may have changed."""
        self.ttl_text = b""

    def offer(self, session, bytes subject not None, bytes reply not None, bytes header not None,
              bytes payload not None):
        """A publish on one of the stream's subjects."""
        if ingested(reply):
            self.fast(session, subject, reply, header, payload)
        elif not self.open:
            self.slow(session, subject, reply, header, payload)
        elif PyBytes_GET_SIZE(header) == 0:
            self.keep(subject, reply, header, payload, self.now_ns(), 0, b"")
        elif not self.headed(subject, reply, header, payload):
            self.slow(session, subject, reply, header, payload)

    cdef bint headed(self, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """A message with headers; False if it needs a decision, and then nothing has happened yet."""
        cdef Heading heading
        cdef const char *start = PyBytes_AS_STRING(header)
        cdef int64_t ttl_s = 0
        cdef bytes message_id = b""
        cdef int found
        if not storable(header):
            return False
        heading.id_size = 0
        found = look(start, start + PyBytes_GET_SIZE(header), &heading)
        if found & (OTHER | BATCH_ID | BATCH_POSITION):
            return found == (BATCH_ID | BATCH_POSITION) and self.stage(subject, reply, header, payload, &heading)
        if found & TTL:
            ttl_s = self.seconds(&heading)
            if ttl_s < 0:
                return False
        time_ns = self.now_ns()
        if ttl_s:
            self.expire(time_ns)
        if heading.id_size:
            message_id = PyBytes_FromStringAndSize(heading.id, heading.id_size)
            if self.window is not None and self.window.c_find(message_id, time_ns):
                return False
        self.keep(subject, reply, header, payload, time_ns, ttl_s, message_id)
        return True

    cdef int64_t seconds(self, Heading *heading) except -2:
        """What a lifetime means; the same text as last time means the same."""
        if (PyBytes_GET_SIZE(self.ttl_text) != heading.ttl_size
                or memcmp(PyBytes_AS_STRING(self.ttl_text), heading.ttl, heading.ttl_size) != 0):
            self.ttl_text = PyBytes_FromStringAndSize(heading.ttl, heading.ttl_size)
            self.ttl_s = self.lifetime(self.ttl_text)
        return self.ttl_s

    cdef bint stage(self, bytes subject, bytes reply, bytes header, bytes payload, Heading *heading) except -1:
        """The next member of the batch that was added to last; False if it is anything else."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
        cdef Staged batch = self.batch
        if batch is None or not batch.c_next(heading.batch, heading.batch_size, heading.position, size):
            return False
        batch.c_add((subject, header, payload), size)
        batch.deadline_ns = <int64_t>self.now_ns() + batch.timeout_ns
        if self.acks and PyBytes_GET_SIZE(reply):
            self.change()
            self.outbox.held.append((reply, b"", b"", b""))
        return True

    cdef keep(self, bytes subject, bytes reply, bytes header, bytes payload, time_ns, int64_t ttl_s, bytes message_id):
        """Store a message and answer."""
        cdef object seq
        cdef bytes ack
        try:
            if ttl_s:
                seq = self.append(subject, header, payload, time_ns, ttl_s)
            else:
                seq = self.append(subject, header, payload, time_ns)
            ack = acknowledgement(self.ack_prefix, seq)
            self.last_message_id = message_id
            if PyBytes_GET_SIZE(message_id) and self.window is not None:
                self.window.c_add(message_id, seq, time_ns)
            if self.follow is not None:
                self.follow(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self.note(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.refuse(reply, failure)
            return
        self.change()
        if self.acks and PyBytes_GET_SIZE(reply):
            self.outbox.held.append((reply, b"", b"", ack))

    cdef inline change(self):
        if not self.touched:
            self.touched = True
            self.touch()
