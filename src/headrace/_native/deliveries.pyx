# cython: language_level=3
"""Encoding of deliveries, compiled: writes stored records as MSG and HMSG to their receivers' output.

Owns the encoding of a run of records (`encode_deliveries`, and `encode_leafnode_run` for another server), the parsing
of ack subjects (`split_ack_subject`) and the subjects of a run (`collect_subjects`). No Python object is created per
message: records are copied from where they are stored straight to the output. Must not know consumers.
`deliveries_pure` is the same in pure Python; the same tests run on both.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

from headrace._native.protocol_words cimport parse_number
from headrace._native.record_layout cimport Record, digits, put, read

cdef enum:
    NUMBERS = 96  # enough for four numbers of at most 20 digits, and dots
    LINE = 64  # enough for a control line without subject, sid and reply
    ROOM = 4096  # minimum growth of an output
    NUMBER_DIGITS_MAX = 19


cdef struct Output:
    # A client's buffer during a run: it has `size` bytes, used up to `at`.
    PyObject *buffer
    char *start
    Py_ssize_t at, size


cdef struct Receiver:
    Output *output
    const char *sid
    Py_ssize_t sid_size
    bint headers
    Py_ssize_t messages, bytes


cdef int grow(Output *output, Py_ssize_t need) except -1:
    """Enlarge an output for `need` more bytes and some further messages."""
    cdef object buffer = <object>output.buffer
    cdef Py_ssize_t size = output.at + need + (output.at + need) // 2 + ROOM
    PyByteArray_Resize(buffer, size)
    output.size = size
    output.start = PyByteArray_AS_STRING(buffer)
    return 0


cdef inline int write(Receiver *receiver, Record *record, const char *ack, Py_ssize_t ack_size) except -1:
    """Write one message to one output."""
    cdef Output *output = receiver.output
    cdef bint headed = record.header_size > 0 and receiver.headers
    cdef Py_ssize_t body = record.payload_size + (record.header_size if headed else 0)
    cdef Py_ssize_t need = record.subject_size + receiver.sid_size + ack_size + body + LINE
    cdef char *to
    if output.at + need > output.size:
        grow(output, need)
    to = output.start + output.at
    if headed:
        to[0] = 72
        to += 1
    to = put(to, b"MSG ", 4)
    to = put(to, record.subject, record.subject_size)
    to[0] = 32
    to = put(to + 1, receiver.sid, receiver.sid_size)
    to[0] = 32
    to = put(to + 1, ack, ack_size)
    to[0] = 32
    to += 1
    if headed:
        to = digits(to, record.header_size)
        to[0] = 32
        to += 1
    to = digits(to, body)
    to = put(to, b"\r\n", 2)
    if headed:
        to = put(to, record.header, record.header_size)
    to = put(to, record.payload, record.payload_size)
    to = put(to, b"\r\n", 2)
    output.at = to - output.start
    receiver.messages += 1
    receiver.bytes += body
    return 0


cdef Py_ssize_t collect_receivers(Receiver *receivers, Output *outputs, list targets, list subs) except -1:
    """Fill `receivers` and `outputs` from the targets; return the number of outputs."""
    cdef Py_ssize_t i = 0, j, count = 0
    for target in targets:
        for sub in target:
            buffer = sub.client.buffer
            subs.append((sub, sub.client, buffer, sub.sid))
            for j in range(count):
                if outputs[j].buffer == <PyObject *>buffer:
                    break
            else:
                j = count
                outputs[j].buffer = <PyObject *>buffer
                outputs[j].start = PyByteArray_AS_STRING(buffer)
                outputs[j].at = outputs[j].size = PyByteArray_GET_SIZE(buffer)
                count += 1
            receivers[i].output = &outputs[j]
            receivers[i].sid = PyBytes_AS_STRING(subs[i][3])
            receivers[i].sid_size = PyBytes_GET_SIZE(subs[i][3])
            receivers[i].headers = sub.client.headers
            receivers[i].messages = receivers[i].bytes = 0
            i += 1
    return count


cdef trim(Output *outputs, Py_ssize_t count):
    """Shrink the outputs to the bytes used."""
    cdef Py_ssize_t i
    for i in range(count):
        if outputs[i].at < outputs[i].size:
            PyByteArray_Resize(<object>outputs[i].buffer, outputs[i].at)


cdef update_counters(Receiver *receivers, list subs):
    """Add what was written to the counters of subscriptions and clients."""
    cdef Py_ssize_t i
    for i in range(len(subs)):
        if receivers[i].messages:
            sub, client = subs[i][0], subs[i][1]
            sub.delivered += receivers[i].messages
            client.out_msgs += receivers[i].messages
            client.out_bytes += receivers[i].bytes
            client.mark_dirty()


cdef inline char *put_ack(char *to, Record *record, uint64_t cseq, uint64_t pending) noexcept nogil:
    """Write the numbers at the end of an ack subject; return where they end."""
    to = digits(to, record.seq)
    to[0] = 46
    to = digits(to + 1, cseq)
    to[0] = 46
    to = digits(to + 1, record.time_ns)
    to[0] = 46
    return digits(to + 1, pending)


@cython.boundscheck(False)  # `at` is always a valid index of `wanted`
def encode_deliveries(list targets not None, view, seqs, Py_ssize_t at, Py_ssize_t most, bytes ack not None, uint64_t cseq,
           int64_t pending, Py_ssize_t base, Py_ssize_t bytes_max, bint strict):
    """Write the records of `view` that are in `seqs` from index `at` on, at most `most`, to the targets in turn.

    A target is a list of subscriptions that all get a message. `ack` is the ack subject up to the stream sequence;
    `pending` is the number of pending messages before this run. Sizes are reply, header and payload plus `base`, or
    plus the subject if `base` is negative; the run ends before `bytes_max` is exceeded if `strict`, after it otherwise
    (negative: no limit). Returns how many were written and their size.
    """
    cdef const unsigned char[::1] data = view
    cdef const uint64_t[::1] wanted = seqs
    cdef Py_ssize_t count = sum([len(target) for target in targets]), target_count = len(targets)
    cdef Py_ssize_t stop = wanted.shape[0], start = at, size, total = 0, turn = 0, prefix, first, i
    cdef const char *here = NULL
    cdef const char *end
    cdef char *reply = NULL
    cdef char *tail
    cdef Py_ssize_t *offsets = NULL
    cdef Receiver *receivers = NULL
    cdef Output *outputs = NULL
    cdef Py_ssize_t output_count = 0
    cdef Record record
    cdef list subs = []
    if at < 0:
        raise IndexError(at)
    if most < stop - at:  # not `at + most`, which may overflow
        stop = at + most
    if at >= stop or target_count == 0 or data.shape[0] == 0:
        return 0, 0
    here = <const char *>&data[0]
    end = here + data.shape[0]
    prefix = PyBytes_GET_SIZE(ack)
    receivers = <Receiver *>malloc((count + 1) * sizeof(Receiver))
    outputs = <Output *>malloc((count + 1) * sizeof(Output))
    offsets = <Py_ssize_t *>malloc((target_count + 1) * sizeof(Py_ssize_t))
    reply = <char *>malloc(prefix + NUMBERS)
    try:
        if receivers == NULL or outputs == NULL or offsets == NULL or reply == NULL:
            raise MemoryError()
        output_count = collect_receivers(receivers, outputs, targets, subs)
        offsets[0] = 0
        for i in range(target_count):
            offsets[i + 1] = offsets[i] + len(targets[i])
        memcpy(reply, PyBytes_AS_STRING(ack), prefix)
        while at < stop and read(here, end, &record):
            here += record.size
            if record.seq < wanted[at]:
                continue
            if record.seq > wanted[at]:
                break
            pending = pending - 1 if pending > 0 else 0
            tail = put_ack(reply + prefix, &record, cseq, <uint64_t>pending)
            size = (tail - reply) + record.header_size + record.payload_size + (base if base >= 0 else record.subject_size)
            if bytes_max >= 0 and total + (size if strict else 0) > bytes_max:
                break
            first = offsets[turn]
            for i in range(first, offsets[turn + 1]):
                write(&receivers[i], &record, reply, tail - reply)
            total += size
            cseq += 1
            at += 1
            turn += 1
            if turn == target_count:
                turn = 0
        trim(outputs, output_count)
        output_count = 0
        update_counters(receivers, subs)
        return at - start, total
    finally:
        trim(outputs, output_count)
        free(receivers)
        free(outputs)
        free(offsets)
        free(reply)


def encode_leafnode_run(bytes to not None, view, seqs, Py_ssize_t at, Py_ssize_t most, bytes ack not None, uint64_t cseq,
                        int64_t pending, Py_ssize_t bytes_max):
    """Encode the records of `view` that are in `seqs` from index `at` on, at most `most`, for another server.

    They go to the subject `to`, and their own subjects follow the reply: `reply@subject`. The other arguments are those
    of `encode_deliveries`; a size is that of `to`, reply, header and payload. The run ends after `bytes_max` is exceeded,
    unless that is negative. Returns the bytes, how many messages they are, and their size.
    """
    cdef const unsigned char[::1] data = view
    cdef const uint64_t[::1] wanted = seqs
    cdef Py_ssize_t stop = wanted.shape[0], start = at, total = 0, body, need
    cdef Py_ssize_t fixed = PyBytes_GET_SIZE(to) + PyBytes_GET_SIZE(ack)
    cdef const char *here
    cdef const char *end
    cdef char *reply
    cdef char *place
    cdef bytearray encoded = bytearray()
    cdef Output output
    cdef Record record
    if at < 0:
        raise IndexError(at)
    if most < stop - at:  # not `at + most`, which may overflow
        stop = at + most
    if at >= stop or data.shape[0] == 0:
        return encoded, 0, 0
    here = <const char *>&data[0]
    end = here + data.shape[0]
    output.buffer = <PyObject *>encoded
    output.start = PyByteArray_AS_STRING(encoded)
    output.at = output.size = 0
    while read(here, end, &record):
        here += record.size
        if record.seq < wanted[at]:
            continue
        if record.seq > wanted[at]:
            break
        pending = pending - 1 if pending > 0 else 0
        body = record.header_size + record.payload_size
        need = fixed + NUMBERS + record.subject_size + body + LINE
        if output.at + need > output.size:
            grow(&output, need)
        place = put(output.start + output.at, b"HMSG " if record.header_size else b"LMSG ", 5)
        place = put(place, PyBytes_AS_STRING(to), PyBytes_GET_SIZE(to))
        place[0] = 32
        reply = place + 1
        place = put_ack(put(reply, PyBytes_AS_STRING(ack), PyBytes_GET_SIZE(ack)), &record, cseq, <uint64_t>pending)
        total += PyBytes_GET_SIZE(to) + (place - reply) + body
        place[0] = 64
        place = put(place + 1, record.subject, record.subject_size)
        place[0] = 32
        place += 1
        if record.header_size:
            place = digits(place, record.header_size)
            place[0] = 32
            place += 1
        place = put(digits(place, body), b"\r\n", 2)
        place = put(place, record.header, body)  # the payload follows the header
        output.at = put(place, b"\r\n", 2) - output.start
        cseq += 1
        at += 1
        if at >= stop or 0 <= bytes_max < total:
            break
    PyByteArray_Resize(encoded, output.at)
    return encoded, at - start, total


def split_ack_subject(bytes subject not None):
    """Parse an ack subject: key, delivery count, stream sequence and consumer sequence.

    The key is `stream.consumer`, or `domain.account.stream.consumer` in the second form; an invalid number is -1. None
    if it is not an ack subject.
    """
    cdef const char *start = PyBytes_AS_STRING(subject)
    cdef const char *end = start + PyBytes_GET_SIZE(subject)
    cdef const char *dots[11]
    cdef const char *at = start
    cdef int found = 0, names
    if end - start < 8 or memcmp(start, b"$JS.ACK.", 8) != 0:
        return None
    while found < 11:
        at = <const char *>memchr(at, 46, end - at)
        if at == NULL:
            break
        dots[found] = at
        found += 1
        at += 1
    if found == 8:
        names = 3
    elif found >= 10:
        names = 5
    else:
        return None
    return (
        PyBytes_FromStringAndSize(start + 8, dots[names] - start - 8),
        parse_number(dots[names] + 1, dots[names + 1], NUMBER_DIGITS_MAX),
        parse_number(dots[names + 1] + 1, dots[names + 2], NUMBER_DIGITS_MAX),
        parse_number(dots[names + 2] + 1, dots[names + 3], NUMBER_DIGITS_MAX),
    )


def collect_subjects(view, uint64_t last, set found not None):
    """Add the subjects of the records in `view` up to sequence `last`; return the sequence to continue with."""
    cdef const unsigned char[::1] data = view
    cdef const char *here
    cdef const char *end
    cdef const char *previous = NULL
    cdef Py_ssize_t previous_size = -1
    cdef uint64_t seq = last
    cdef Record record
    if data.shape[0] == 0:
        return last + 1
    here = <const char *>&data[0]
    end = here + data.shape[0]
    while read(here, end, &record):
        if record.seq > last:
            return last + 1
        if record.subject_size != previous_size or memcmp(previous, record.subject, previous_size) != 0:
            found.add(PyBytes_FromStringAndSize(record.subject, record.subject_size))
            previous, previous_size = record.subject, record.subject_size
        seq = record.seq
        here += record.size
    return seq + 1
