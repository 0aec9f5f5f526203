# cython: language_level=3
"""The fast lane into a stream, compiled: a publish that needs no decision is stored and answered in one step.

Owns the way of plain messages only: no `Nats-` header, no limit that has to be looked at first. Everything else is
handed to the stream. `lanes_pure` does the same in plain Python and passes the same tests.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

from headrace.errors import StoreError


cdef enum:
    HEADER_BYTES_MAX = 65535


cdef inline bint unusual(bytes header):
    """Whether a header block needs a look: something for the server in it, a status, or too large."""
    return (b"Nats-" in header or not header.startswith(b"NATS/1.0\r\n")
            or PyBytes_GET_SIZE(header) > HEADER_BYTES_MAX)


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
    of fast batches, which are known by their reply subject, `refuse(reply, failure)` answers when
    the store takes nothing, `touch()` says that the stream has its first change in this frame, `follow(subject, seq,
    time_ns)` does what has to follow a plain message (None: nothing). `open` is whether plain messages need no look.
    """

    cdef public object append, now_ns, slow, fast, refuse, touch, follow
    cdef public Outbox outbox
    cdef public bytes ack_prefix, last_message_id
    cdef public bint open, acks, touched

    def __init__(self, Outbox outbox not None):
        self.outbox = outbox
        self.ack_prefix = self.last_message_id = b""

    def offer(self, session, bytes subject not None, bytes reply not None, bytes header not None,
              bytes payload not None):
        """A publish on one of the stream's subjects."""
        cdef object seq, time_ns
        cdef bytes ack
        if ingested(reply):
            self.fast(session, subject, reply, header, payload)
            return
        if not self.open or (PyBytes_GET_SIZE(header) and unusual(header)):
            self.slow(session, subject, reply, header, payload)
            return
        time_ns = self.now_ns()
        try:
            seq = self.append(subject, header, payload, time_ns)
            ack = acknowledgement(self.ack_prefix, seq)
            self.last_message_id = b""
            if self.follow is not None:
                self.follow(subject, seq, time_ns)
        except StoreError as failure:
            self.refuse(reply, failure)
            return
        if not self.touched:
            self.touched = True
            self.touch()
        if self.acks and PyBytes_GET_SIZE(reply):
            self.outbox.held.append((reply, b"", b"", ack))
