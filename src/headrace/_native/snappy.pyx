# cython: language_level=3
"""Snappy blocks and the entries of a backup archive, compiled. Reads S2, a superset of Snappy, and writes Snappy.

`snappy_pure` is the same in pure Python, except that it does not compress; the same tests run on both.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from headrace._native.record_layout cimport (
    RECORD_HEADER,
    record_header_size,
    record_seq,
    record_size,
    record_subject_size,
    record_time,
)

cdef enum:
    HASH_BITS = 14
    BLOCK_MAX = 65536
    NUMBERS = 50  # enough for five varints

cdef uint32_t _table[8][256]


cdef void _fill_table():
    cdef uint32_t crc
    cdef int index, bit, level
    for index in range(256):
        crc = index
        for bit in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        _table[0][index] = crc
    for index in range(256):
        for level in range(1, 8):
            crc = _table[level - 1][index]
            _table[level][index] = (crc >> 8) ^ _table[0][crc & 0xFF]


_fill_table()


@cython.boundscheck(False)
def crc32c(const uint8_t[::1] data not None):
    """Return the Castagnoli checksum."""
    cdef uint32_t crc = 0xFFFFFFFF, low, high
    cdef Py_ssize_t at = 0, size = data.shape[0]
    while at + 8 <= size:
        low = crc ^ (data[at] | data[at + 1] << 8 | data[at + 2] << 16 | <uint32_t>data[at + 3] << 24)
        high = data[at + 4] | data[at + 5] << 8 | data[at + 6] << 16 | <uint32_t>data[at + 7] << 24
        crc = (_table[7][low & 0xFF] ^ _table[6][low >> 8 & 0xFF] ^ _table[5][low >> 16 & 0xFF] ^ _table[4][low >> 24]
               ^ _table[3][high & 0xFF] ^ _table[2][high >> 8 & 0xFF] ^ _table[1][high >> 16 & 0xFF] ^ _table[0][high >> 24])
        at += 8
    while at < size:
        crc = (crc >> 8) ^ _table[0][(crc ^ data[at]) & 0xFF]
        at += 1
    return crc ^ 0xFFFFFFFF


def decompress(bytes block not None, Py_ssize_t size_max):
    """Decompress a block; raise ValueError if it is damaged or has more than `size_max` bytes."""
    cdef const uint8_t *source = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(block), at = 0, size = 0, done = 0, length, offset = 0, extra
    cdef int shift = 0
    cdef uint8_t tag
    cdef bytes made
    cdef uint8_t *target
    while True:
        if at >= end or shift > 28:
            raise ValueError("the length of a block is missing or too long")
        size |= <Py_ssize_t>(source[at] & 0x7F) << shift
        at += 1
        if source[at - 1] < 0x80:
            break
        shift += 7
    if size > size_max:
        raise ValueError("the block is too large")
    made = PyBytes_FromStringAndSize(NULL, size)
    target = <uint8_t *>PyBytes_AS_STRING(made)
    while at < end:
        tag = source[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                if at + extra > end:
                    raise ValueError("the block's length does not match its header")
                length = little(source + at, extra)
                at += extra
            length += 1
            if length > end - at or length > size - done:
                raise ValueError("the block's length does not match its header")
            memcpy(target + done, source + at, length)
            at += length
            done += length
            continue
        if tag & 3 == 1:
            if at >= end:
                raise ValueError("the block's length does not match its header")
            extra = (<Py_ssize_t>(tag & 0xE0) << 3) | source[at]
            at += 1
            length = tag >> 2 & 7
            if extra:
                offset = extra
            elif length >= 5:  # repeats the previous offset, with its own length
                extra = length - 4
                if at + extra > end:
                    raise ValueError("the block's length does not match its header")
                length = little(source + at, extra) + (4 if extra == 1 else 1 << (8 * (extra - 1)))
                at += extra
            length += 4
        else:
            extra = 2 if tag & 3 == 2 else 4
            if at + extra > end:
                raise ValueError("the block's length does not match its header")
            length = (tag >> 2) + 1
            offset = little(source + at, extra)
            at += extra
        if offset <= 0 or offset > done or length > size - done:
            raise ValueError("a copy refers to bytes outside of the block")
        copy_within(target + done, offset, length)
        done += length
    if done != size:
        raise ValueError("the block's length does not match its header")
    return made


cdef inline Py_ssize_t little(const uint8_t *data, Py_ssize_t count) noexcept:
    cdef Py_ssize_t value = 0, index
    for index in range(count):
        value |= <Py_ssize_t>data[index] << (8 * index)
    return value


cdef inline void copy_within(uint8_t *target, Py_ssize_t offset, Py_ssize_t length) noexcept:
    cdef Py_ssize_t index
    if offset >= length:
        memcpy(target, target - offset, length)
    else:
        for index in range(length):
            target[index] = target[index - offset]


def compress(bytes data not None):
    """Compress `data`, at most 65,536 bytes, to a block."""
    cdef const uint8_t *source = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, start = 0, found, length, limit, to = 0
    cdef uint32_t word, slot
    cdef int table[1 << HASH_BITS]
    cdef bytes room = PyBytes_FromStringAndSize(NULL, 32 + size + size // 6)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(room)
    if size > BLOCK_MAX:
        raise ValueError("the block is too large")
    memset(table, 0xFF, sizeof(table))
    word = <uint32_t>size
    while word >= 0x80:
        target[to] = word & 0x7F | 0x80
        to += 1
        word >>= 7
    target[to] = word
    to += 1
    limit = size - 4
    while at <= limit:
        memcpy(&word, source + at, 4)
        slot = (word * <uint32_t>0x1E35A7BD) >> (32 - HASH_BITS)
        found = table[slot]
        table[slot] = <int>at
        if found < 0 or at - found > 65535 or source[found] != source[at] or source[found + 1] != source[at + 1] \
                or source[found + 2] != source[at + 2] or source[found + 3] != source[at + 3]:
            at += 1 + (at - start >> 5)
            continue
        length = 4
        while at + length < size and source[found + length] == source[at + length]:
            length += 1
        to = put_literal(target, to, source + start, at - start)
        to = put_copy(target, to, at - found, length)
        at += length
        start = at
    to = put_literal(target, to, source + start, size - start)
    return room[:to]


cdef inline Py_ssize_t put_literal(uint8_t *target, Py_ssize_t to, const uint8_t *source, Py_ssize_t length) noexcept:
    if length == 0:
        return to
    if length <= 60:
        target[to] = (length - 1) << 2
        to += 1
    elif length <= 256:
        target[to] = 60 << 2
        target[to + 1] = length - 1
        to += 2
    else:
        target[to] = 61 << 2
        target[to + 1] = (length - 1) & 0xFF
        target[to + 2] = (length - 1) >> 8
        to += 3
    memcpy(target + to, source, length)
    return to + length


cdef inline Py_ssize_t put_copy(uint8_t *target, Py_ssize_t to, Py_ssize_t offset, Py_ssize_t length) noexcept:
    cdef Py_ssize_t part
    while length > 0:
        part = min(length, 64)
        target[to] = (part - 1) << 2 | 2
        target[to + 1] = offset & 0xFF
        target[to + 2] = offset >> 8
        to += 3
        length -= part
    return to


cdef inline Py_ssize_t put_varint(uint8_t *target, Py_ssize_t to, uint64_t value) noexcept:
    while value >= 0x80:
        target[to] = value & 0x7F | 0x80
        to += 1
        value >>= 7
    target[to] = <uint8_t>value
    return to + 1


def encode_entries(const uint8_t[::1] view not None, const uint64_t[::1] seqs not None):
    """Encode the records of `view` that are in `seqs`, ascending, as archive entries; return them and their number."""
    cdef Py_ssize_t end = view.shape[0], count = seqs.shape[0], done = 0, at = 0, to = 0
    cdef uint32_t size, header_size
    cdef uint16_t subject_size
    cdef uint64_t seq, time_ns
    cdef const char *record
    cdef bytes room = PyBytes_FromStringAndSize(NULL, end + count * NUMBERS)
    cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(room)
    while done < count and end - at >= RECORD_HEADER:
        record = <const char *>&view[at]
        size = record_size(record)
        if size < RECORD_HEADER or end - at < size:
            break
        subject_size, header_size = record_subject_size(record), record_header_size(record)
        seq, time_ns = record_seq(record), record_time(record)
        if seq > seqs[done] or <uint64_t>subject_size + header_size > size - RECORD_HEADER:
            break
        if seq == seqs[done]:
            to = put_varint(target, to, subject_size)
            to = put_varint(target, to, time_ns << 1)
            to = put_varint(target, to, seq)
            to = put_varint(target, to, header_size)
            to = put_varint(target, to, size - RECORD_HEADER - subject_size - header_size)
            if size > RECORD_HEADER:
                memcpy(target + to, record + RECORD_HEADER, size - RECORD_HEADER)
            to += size - RECORD_HEADER
            done += 1
        at += size
    return room[:to], done


cdef inline Py_ssize_t read_varint(const uint8_t *data, Py_ssize_t at, Py_ssize_t end, uint64_t *value) except -2:
    """Parse a varint; return where it ends, -1 if it is incomplete."""
    cdef int shift = 0
    value[0] = 0
    while at < end:
        if shift == 63 and data[at] > 1:
            raise ValueError("a number has more than 64 bits")
        value[0] |= <uint64_t>(data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return -1


def parse_entries(const uint8_t[::1] plain not None, Py_ssize_t at, Py_ssize_t name_max, Py_ssize_t entry_max, Py_ssize_t most):
    """Parse complete entries from `at` on, at most `most`, as (name, time, sequence, header, payload).

    Returns them and their end. Raises ValueError if one is too large or invalid.
    """
    cdef const uint8_t *data
    cdef Py_ssize_t end = plain.shape[0], place
    cdef uint64_t name_size, zigzag, seq, header_size, payload_size
    cdef list found = []
    cdef const char *start
    if at < 0 or name_max < 0 or entry_max < 0:
        raise ValueError("position and limits must not be negative")
    if end == 0:
        return found, at
    data = &plain[0]
    while len(found) < most:
        place = read_varint(data, at, end, &name_size)
        if place >= 0:
            place = read_varint(data, place, end, &zigzag)
        if place >= 0:
            place = read_varint(data, place, end, &seq)
        if place >= 0:
            place = read_varint(data, place, end, &header_size)
        if place >= 0:
            place = read_varint(data, place, end, &payload_size)
        if place < 0:
            break
        if (name_size > <uint64_t>name_max or header_size > <uint64_t>entry_max
                or payload_size > <uint64_t>entry_max - header_size):
            raise ValueError("an entry is too large")
        if <uint64_t>(end - place) < name_size + header_size + payload_size:  # a sum below 2^64: it does not wrap around
            break
        start = <const char *>data + place
        found.append((
            PyBytes_FromStringAndSize(start, name_size),
            <object>(zigzag >> 1) if zigzag & 1 == 0 else ~<object>(zigzag >> 1),
            seq,
            PyBytes_FromStringAndSize(start + name_size, header_size),
            PyBytes_FromStringAndSize(start + name_size + header_size, payload_size),
        ))
        at = place + name_size + header_size + payload_size
    return found, at
