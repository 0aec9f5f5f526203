# cython: language_level=3
"""The leafnode parser, compiled: parses the messages of another server, and builds runs of deliveries for mirrors.

Owns the framing of what another server sends (`LeafnodeParser`), not the effects of an operation. Consecutive deliveries
of one consumer become stored records without a Python object for each. Invariant: any bytes, however they are split,
become the same operations in the same order or raise ProtocolError. Control lines are rare and parsed in Python.
`leafnode_parser_pure` is the same in pure Python and describes the handler; the same tests run on both.
"""

from array import array

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp

from headrace._native.protocol_words cimport Span, asks_for_trace, is_well_formed, parse_number, split
from headrace._native.record_layout cimport RECORD_HEADER, put, write_record_header

from headrace._native.leafnode_parser_pure import (
    LINE_MAX, TOO_LARGE, TOO_LONG, UNAUTHORIZED, UNKNOWN, handle_control_line, parse_reply_and_queues, parse_sizes,
)
from headrace._native.parser_pure import split_args
from headrace.errors import ProtocolError

cdef enum:
    DIGITS_MAX = 9
    NUMBER_DIGITS_MAX = 19
    SUBJECT_MAX = 0xFFFF
    FLAG_HEADER = 0x8000
    # The most messages and bytes of a run, and the largest header and payload of a message in it.
    RUN_COUNT_MAX = 1024
    RUN_BYTES_MAX = 256 * 1024
    RUN_MESSAGE_MAX = 32 * 1024
    # Minimum size of the buffer of a run; it grows fourfold.
    RUN_ROOM = 4096

cdef tuple NO_QUEUES = ()


cdef struct Message:
    # One LMSG or HMSG without queue groups.
    Span subject
    Span reply
    Span header
    Span payload


cdef struct Delivery:
    # The parts of a reply `prefix seq . consumer_seq . time_ns . num_pending @ subject`.
    Span prefix
    Span subject
    int64_t seq, consumer_seq, time_ns, num_pending


cdef inline bint is_storable_subject(const char *at, const char *end) noexcept nogil:
    """Return whether no token between dots is empty and a record can have this subject."""
    return end - at <= SUBJECT_MAX and is_well_formed(at, end)


cdef inline bint parse_delivery(Message *message, Delivery *delivery) noexcept nogil:
    """Parse the reply of a delivery; return False if the message cannot be part of a run."""
    cdef const char *dots[8]
    cdef const char *at = message.reply.at
    cdef const char *end = at + message.reply.size
    cdef const char *mark
    cdef int found
    if message.reply.size < 8 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return False
    if message.header.size + message.payload.size > RUN_MESSAGE_MAX:
        return False
    if message.header.size and (
        message.header.size < 10
        or memcmp(message.header.at, b"NATS/1.0\r\n", 10) != 0
        or asks_for_trace(message.header.at, message.header.size)
    ):
        return False
    for found in range(8):
        at = <const char *>memchr(at, 46, end - at)
        if at == NULL:
            return False
        dots[found] = at
        at += 1
    mark = <const char *>memchr(at, 64, end - at)
    if mark == NULL:
        return False
    delivery.prefix.at = message.reply.at
    delivery.prefix.size = dots[4] + 1 - message.reply.at
    delivery.seq = parse_number(dots[4] + 1, dots[5], NUMBER_DIGITS_MAX)
    delivery.consumer_seq = parse_number(dots[5] + 1, dots[6], NUMBER_DIGITS_MAX)
    delivery.time_ns = parse_number(dots[6] + 1, dots[7], NUMBER_DIGITS_MAX)
    delivery.num_pending = parse_number(at, mark, NUMBER_DIGITS_MAX)
    delivery.subject.at = mark + 1
    delivery.subject.size = end - mark - 1
    return (
        delivery.seq > 0 and delivery.consumer_seq >= 0 and delivery.time_ns >= 0 and delivery.num_pending >= 0
        and is_storable_subject(mark + 1, end)
    )


cdef inline bytes to_bytes(Span *span):
    return PyBytes_FromStringAndSize(span.at, span.size)


cdef inline bint equals(bytes known, Span *span) noexcept:
    return PyBytes_GET_SIZE(known) == span.size and memcmp(PyBytes_AS_STRING(known), span.at, span.size) == 0


cdef class Run:
    """Deliveries that are handed over together: their records, and where each message starts in the chunk."""

    cdef bytes subject, prefix
    cdef bytearray records
    cdef Py_ssize_t used
    cdef uint64_t *seqs
    cdef Message *messages
    cdef Py_ssize_t count
    cdef int64_t first_consumer_seq, num_pending

    def __cinit__(self):
        self.seqs = <uint64_t *>malloc(RUN_COUNT_MAX * sizeof(uint64_t))
        self.messages = <Message *>malloc(RUN_COUNT_MAX * sizeof(Message))
        if self.seqs == NULL or self.messages == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.seqs)
        free(self.messages)

    cdef start(self, bytes subject, Delivery *delivery):
        self.subject = subject
        if self.prefix is None or not equals(self.prefix, &delivery.prefix):
            self.prefix = to_bytes(&delivery.prefix)
        self.records = PyByteArray_FromStringAndSize(NULL, RUN_ROOM)
        self.used = self.count = 0
        self.first_consumer_seq = delivery.consumer_seq

    cdef inline bint continues_with(self, Message *message, Delivery *delivery) noexcept:
        """Return whether a delivery is the next one of the same consumer, and there is space for it."""
        return (
            0 < self.count < RUN_COUNT_MAX
            and self.used < RUN_BYTES_MAX
            and <uint64_t>delivery.seq > self.seqs[self.count - 1]
            and delivery.consumer_seq == self.first_consumer_seq + self.count
            and equals(self.subject, &message.subject)
            and equals(self.prefix, &delivery.prefix)
        )

    cdef int add(self, Message *message, Delivery *delivery) except -1:
        cdef Py_ssize_t size = (RECORD_HEADER + delivery.subject.size + message.header.size + message.payload.size)
        cdef char *to
        if self.used + size > PyByteArray_GET_SIZE(self.records):
            PyByteArray_Resize(self.records, 4 * (self.used + size))
        to = PyByteArray_AS_STRING(self.records) + self.used
        write_record_header(to, <uint32_t>size, <uint16_t>delivery.subject.size, FLAG_HEADER if message.header.size else 0,
                            <uint32_t>message.header.size, 0, <uint64_t>delivery.seq, <uint64_t>delivery.time_ns)
        to = put(to + RECORD_HEADER, delivery.subject.at, delivery.subject.size)
        to = put(to, message.header.at, message.header.size)
        put(to, message.payload.at, message.payload.size)
        self.used += size
        self.seqs[self.count] = <uint64_t>delivery.seq
        self.messages[self.count] = message[0]
        self.count += 1
        self.num_pending = delivery.num_pending
        return 0


cdef class LeafnodeParser:
    """Parses the other server's bytes to operations. It must not be fed after a ProtocolError.

    Between two chunks it keeps an unfinished operation: at most `line_max` of a control line, or a message of at most
    `payload_max`.
    """

    cdef object handler
    cdef Py_ssize_t payload_max, line_max, needed
    cdef bytearray buffer
    cdef bint authenticated
    cdef Run run  # open if its count is positive
    cdef bytes single_subject  # in this chunk, its deliveries are not handed over as runs

    def __init__(self, handler, Py_ssize_t payload_max, Py_ssize_t line_max=LINE_MAX):
        self.handler = handler
        self.payload_max = payload_max
        self.line_max = line_max
        self.buffer = bytearray()

    @property
    def buffered_bytes(self):
        """Number of bytes kept until more arrive."""
        return len(self.buffer)

    def feed(self, bytes data not None):
        """Parse the next chunk."""
        cdef bytearray buffer = self.buffer
        cdef const char *start
        cdef const char *rest
        if PyByteArray_GET_SIZE(buffer):
            buffer += data
            if PyByteArray_GET_SIZE(buffer) < self.needed:
                return
            data = bytes(buffer)
            buffer.clear()
        self.needed = 0
        self.single_subject = None
        start = PyBytes_AS_STRING(data)
        try:
            rest = self.parse_operations(start, start + PyBytes_GET_SIZE(data))
        finally:
            self.hand_over_run()
        if rest - start < PyBytes_GET_SIZE(data):
            buffer += data[rest - start:]

    cdef const char *parse_operations(self, const char *at, const char *end) except NULL:
        """Process every complete operation; return where the unfinished one starts."""
        cdef const char *stop
        cdef const char *after
        cdef bint headed
        while at < end:
            stop = <const char *>memchr(at, 10, end - at)
            if (end if stop == NULL else stop) - at > self.line_max:
                raise ProtocolError(TOO_LONG)
            if stop == NULL:
                return at
            headed = (at[0] | 32) == 104
            if (
                stop - at > 4 and at[4] == 32 and (headed or (at[0] | 32) == 108)
                and (at[1] | 32) == 109 and (at[2] | 32) == 115 and (at[3] | 32) == 103
            ):
                if not self.authenticated:
                    self.authenticated = self.handler.authenticated
                    if not self.authenticated:
                        raise ProtocolError(UNAUTHORIZED)
                after = self.parse_message(at + 5, stop, end, headed)
                if after > end:
                    self.needed = after - at
                    return at
                at = after
            else:
                self.hand_over_run()
                handle_control_line(self.handler, PyBytes_FromStringAndSize(at, stop - at))
                at = stop + 1
        return at

    cdef const char *parse_message(self, const char *at, const char *stop, const char *end, bint headed) except NULL:
        """Parse a message whose arguments end at `stop`; return where it ends, beyond `end` if it is incomplete."""
        cdef Span words[4]
        cdef Py_ssize_t fixed = 3 if headed else 2
        cdef Py_ssize_t count = split(at, stop, words, fixed + 1)
        cdef int64_t total, header_size = 0
        cdef Message message
        cdef list args = None
        if count == fixed or count == fixed + 1:
            total = parse_number(words[count - 1].at, words[count - 1].at + words[count - 1].size, DIGITS_MAX)
            if headed:
                header_size = parse_number(words[count - 2].at, words[count - 2].at + words[count - 2].size, DIGITS_MAX)
            if not 0 <= header_size <= total:
                raise ProtocolError(UNKNOWN)
        else:
            args = split_args(PyBytes_FromStringAndSize(at, stop - at))
            header_size, total = parse_sizes(args, headed=headed)
        if total > self.payload_max:
            raise ProtocolError(TOO_LARGE)
        message.header.at = stop + 1
        message.header.size = header_size
        message.payload.at = stop + 1 + header_size
        message.payload.size = total - header_size
        if end - message.header.at < total + 2:
            return message.header.at + total + 2
        if memcmp(message.header.at + total, b"\r\n", 2) != 0:
            raise ProtocolError(UNKNOWN)
        if args is not None:
            self.on_queue_message(args, headed, &message)
        else:
            message.subject = words[0]
            message.reply = words[1]
            if count == fixed:
                message.reply.size = 0
            self.on_message(&message)
        return message.header.at + total + 2

    cdef on_queue_message(self, list args, bint headed, Message *message):
        """Handle a message for queue groups."""
        reply, queues = parse_reply_and_queues(args[1:len(args) - (2 if headed else 1)])
        self.hand_over_run()
        self.handler.on_message(args[0], reply, queues, to_bytes(&message.header), to_bytes(&message.payload))

    cdef on_message(self, Message *message):
        """Add a message to the run, or handle it alone."""
        cdef Delivery delivery
        cdef bytes subject
        cdef bint is_delivery = parse_delivery(message, &delivery)
        if is_delivery and self.run is not None and self.run.continues_with(message, &delivery):
            self.run.add(message, &delivery)
            return
        self.hand_over_run()
        if not is_delivery or (self.single_subject is not None and equals(self.single_subject, &message.subject)):
            self.handle_alone(message)
            return
        subject = to_bytes(&message.subject)
        if not self.handler.takes_deliveries(subject):
            self.single_subject = subject
            self.handle_alone(message)
            return
        if self.run is None:
            self.run = Run()
        self.run.start(subject, &delivery)
        self.run.add(message, &delivery)

    cdef handle_alone(self, Message *message):
        self.handler.on_message(to_bytes(&message.subject), to_bytes(&message.reply), NO_QUEUES,
                                to_bytes(&message.header), to_bytes(&message.payload))

    cdef hand_over_run(self):
        """Pass the run to the handler, and what it did not take message by message."""
        cdef Run run = self.run
        cdef Py_ssize_t count, i, taken
        cdef bytearray records
        if run is None or run.count == 0:
            return
        count, run.count = run.count, 0
        records, run.records = run.records, None
        PyByteArray_Resize(records, run.used)
        seqs = array("Q", PyBytes_FromStringAndSize(<const char *>run.seqs, count * sizeof(uint64_t)))
        taken = self.handler.on_deliveries(run.subject, run.prefix, records, seqs, run.first_consumer_seq, run.num_pending)
        if taken < count:
            self.single_subject = run.subject
        for i in range(max(taken, 0), count):
            self.handle_alone(&run.messages[i])
