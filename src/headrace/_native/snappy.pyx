# cython: language_level=3
"""S2 blocks, a superset of Snappy, and the entries of a backup archive, compiled.

`snappy_pure` is the same in pure Python, but compresses less; the same tests run on both.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from headrace._native.record_layout cimport (
    RECORD_HEADER,
    record_header_size,
    record_seq,
    record_size,
    record_subject_size,
    record_time,
)

cdef enum:
    LONG_BITS = 15
    SHORT_BITS = 14
    BLOCK_MAX = 1 << 20
    OFFSET_MAX = 65535  # farther copies take five bytes
    SKIP_SHIFT = 7  # bytes without a match, as a power of two, after which the search skips one more byte
    INDEX_STEP = 2  # within a match, every second position is indexed
    REPEAT_MAX = 65535
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


cdef enum:
    OK = 0
    BAD_LENGTH = 1
    BAD_COPY = 2

cdef tuple _ERRORS = (
    "", "the block's length does not match its header", "a copy refers to bytes outside of the block"
)


def decompress(const uint8_t[::1] block not None, Py_ssize_t size_max):
    """Decompress a block; raise ValueError if it is damaged or has more than `size_max` bytes."""
    cdef Py_ssize_t end = block.shape[0], at = 0, size = 0
    cdef const uint8_t *source = &block[0] if end else NULL
    cdef int shift = 0, error
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
    with nogil:
        error = decode(source, at, end, target, size)
    if error:
        raise ValueError(_ERRORS[error])
    return made


cdef int decode(const uint8_t *source, Py_ssize_t at, Py_ssize_t end, uint8_t *target, Py_ssize_t size) noexcept nogil:
    """Decode the elements from `at` to `end`. Every length is checked against both buffers before it is used."""
    cdef Py_ssize_t done = 0, length, offset = 0, extra
    cdef uint8_t tag
    while at < end:
        tag = source[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                if extra > end - at:
                    return BAD_LENGTH
                length = little(source + at, extra)
                at += extra
            length += 1
            if length > end - at or length > size - done:
                return BAD_LENGTH
            if length <= 16 and end - at >= 16 and size - done >= 16:
                memcpy(target + done, source + at, 16)  # a fixed size is faster; both buffers have the bytes
            else:
                memcpy(target + done, source + at, length)
            at += length
            done += length
            continue
        if tag & 3 == 1:
            if at >= end:
                return BAD_LENGTH
            extra = (<Py_ssize_t>(tag & 0xE0) << 3) | source[at]
            at += 1
            length = tag >> 2 & 7
            if extra:
                offset = extra
            elif length >= 5:  # repeats the previous offset, with its own length
                extra = length - 4
                if extra > end - at:
                    return BAD_LENGTH
                length = little(source + at, extra) + (4 if extra == 1 else 1 << (8 * (extra - 1)))
                at += extra
            length += 4
        else:
            extra = 2 if tag & 3 == 2 else 4
            if extra > end - at:
                return BAD_LENGTH
            length = (tag >> 2) + 1
            offset = little(source + at, extra)
            at += extra
        if offset <= 0 or offset > done or length > size - done:
            return BAD_COPY
        copy_within(target + done, offset, length, size - done)
        done += length
    return OK if done == size else BAD_LENGTH


cdef inline Py_ssize_t little(const uint8_t *data, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t value = 0, index
    for index in range(count):
        value |= <Py_ssize_t>data[index] << (8 * index)
    return value


cdef inline void copy_within(uint8_t *target, Py_ssize_t offset, Py_ssize_t length, Py_ssize_t room) noexcept nogil:
    """Copy `length` bytes from `offset` before `target`; may write up to `room` bytes, which later elements overwrite."""
    cdef Py_ssize_t index = 0
    cdef uint64_t word
    if offset >= 8 and length + 8 <= room:
        while index < length:
            memcpy(&word, target + index - offset, 8)
            memcpy(target + index, &word, 8)
            index += 8
    elif offset >= length:
        memcpy(target, target - offset, length)
    else:
        for index in range(length):
            target[index] = target[index - offset]


def compress(const uint8_t[::1] data not None):
    """Compress `data`, at most 1 MiB, to an S2 block. Releases the GIL."""
    cdef Py_ssize_t size = data.shape[0], used
    cdef const uint8_t *source = &data[0] if size else NULL
    cdef bytes room
    cdef uint8_t *target
    cdef uint32_t *table
    if size > BLOCK_MAX:
        raise ValueError("the block is too large")
    room = PyBytes_FromStringAndSize(NULL, 32 + size + size // 6)
    target = <uint8_t *>PyBytes_AS_STRING(room)
    table = <uint32_t *>calloc((1 << LONG_BITS) + (1 << SHORT_BITS), sizeof(uint32_t))
    if table == NULL:
        raise MemoryError
    with nogil:
        used = encode(source, size, target, table, table + (1 << LONG_BITS))
        free(table)
    return room[:used]


cdef inline uint64_t load64(const uint8_t *data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef inline uint32_t load32(const uint8_t *data) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, data, 4)
    return value


cdef inline uint32_t hash_long(uint64_t word) noexcept nogil:
    return <uint32_t>((word * <uint64_t>0xCF1BBCDCB7A56463) >> (64 - LONG_BITS))


cdef inline uint32_t hash_short(uint64_t word) noexcept nogil:
    return <uint32_t>(((word << 24) * <uint64_t>0x9E3779B185EBCA87) >> (64 - SHORT_BITS))


cdef Py_ssize_t encode(
    const uint8_t *source, Py_ssize_t size, uint8_t *target, uint32_t *longs, uint32_t *shorts
) noexcept nogil:
    """Write a block to `target`, which has room for the longest; return its length.

    `longs` and `shorts` have the latest position of each hash of eight and of five bytes. A position is used only after
    its bytes were compared, so a wrong or missing one costs nothing but compression.
    """
    cdef Py_ssize_t at = 1, start = 0, found, length, to, limit = size - 9, repeated = 0, index
    cdef uint64_t word, following
    cdef uint32_t long_slot, short_slot
    to = put_varint(target, 0, <uint64_t>size)
    while at <= limit:
        word = load64(source + at)
        long_slot, short_slot = hash_long(word), hash_short(word)
        found = -1
        if repeated and load32(source + at - repeated) == <uint32_t>word:
            found = at - repeated
        elif is_near(at, longs[long_slot]) and load64(source + longs[long_slot]) == word:
            found = longs[long_slot]
        elif is_near(at, shorts[short_slot]) and load32(source + shorts[short_slot]) == <uint32_t>word:
            found = shorts[short_slot]
            following = load64(source + at + 1)
            index = longs[hash_long(following)]
            if is_near(at + 1, index) and load64(source + index) == following:
                longs[long_slot] = shorts[short_slot] = <uint32_t>at
                at += 1
                long_slot, short_slot = hash_long(following), hash_short(following)
                found = index
        longs[long_slot] = shorts[short_slot] = <uint32_t>at
        if found < 0:
            at += 1 + ((at - start) >> SKIP_SHIFT)
            continue
        while at > start and found > 0 and source[at - 1] == source[found - 1]:
            at -= 1
            found -= 1
        length = match_length(source, at, found, size)
        to = put_literal(target, to, source + start, at - start)
        to = put_copy(target, to, at - found, length, repeated)
        repeated = at - found
        start = at + length
        index = at + 1
        while index < start and index <= limit:
            word = load64(source + index)
            longs[hash_long(word)] = shorts[hash_short(word)] = <uint32_t>index
            index += INDEX_STEP
        at = start
    return put_literal(target, to, source + start, size - start)


cdef inline bint is_near(Py_ssize_t at, Py_ssize_t found) noexcept nogil:
    return found < at and at - found <= OFFSET_MAX


cdef inline Py_ssize_t match_length(
    const uint8_t *source, Py_ssize_t at, Py_ssize_t found, Py_ssize_t size
) noexcept nogil:
    """Return how many bytes at `at` and at `found`, which is before it, are equal."""
    cdef Py_ssize_t length = 0
    while at + length + 8 <= size and load64(source + at + length) == load64(source + found + length):
        length += 8
    while at + length < size and source[at + length] == source[found + length]:
        length += 1
    return length


cdef inline Py_ssize_t put_literal(
    uint8_t *target, Py_ssize_t to, const uint8_t *source, Py_ssize_t length
) noexcept nogil:
    if length == 0:
        return to
    if length <= 60:
        target[to] = <uint8_t>((length - 1) << 2)
        to += 1
    elif length <= 256:
        target[to] = 60 << 2
        target[to + 1] = <uint8_t>(length - 1)
        to += 2
    elif length <= 65536:
        target[to] = 61 << 2
        target[to + 1] = (length - 1) & 0xFF
        target[to + 2] = <uint8_t>((length - 1) >> 8)
        to += 3
    else:
        target[to] = 62 << 2
        target[to + 1] = (length - 1) & 0xFF
        target[to + 2] = ((length - 1) >> 8) & 0xFF
        target[to + 3] = <uint8_t>((length - 1) >> 16)
        to += 4
    memcpy(target + to, source, length)
    return to + length


cdef inline Py_ssize_t put_copy(
    uint8_t *target, Py_ssize_t to, Py_ssize_t offset, Py_ssize_t length, Py_ssize_t repeated
) noexcept nogil:
    """Write a copy of at least four bytes; whatever is longer than one element repeats the offset."""
    cdef Py_ssize_t part
    if offset != repeated:
        if offset < 2048 and (length < 12 or length > 64):
            part = length if length < 12 else 8
            target[to] = <uint8_t>((offset >> 8) << 5 | (part - 4) << 2 | 1)
            target[to + 1] = offset & 0xFF
            to += 2
        else:
            part = length if length <= 64 else 60
            target[to] = <uint8_t>((part - 1) << 2 | 2)
            target[to + 1] = offset & 0xFF
            target[to + 2] = <uint8_t>(offset >> 8)
            to += 3
        length -= part
    return put_repeats(target, to, offset, length)


cdef inline Py_ssize_t put_repeats(uint8_t *target, Py_ssize_t to, Py_ssize_t offset, Py_ssize_t length) noexcept nogil:
    """Write copies of the previous offset: none, or at least four bytes."""
    cdef Py_ssize_t part
    while length > 0:
        part = min(length, REPEAT_MAX)
        if 0 < length - part < 4:
            part -= 4
        length -= part
        if part <= 8:
            target[to] = <uint8_t>((part - 4) << 2 | 1)
            target[to + 1] = 0
            to += 2
        elif part < 12 and offset < 2048:
            target[to] = <uint8_t>((offset >> 8) << 5 | (part - 4) << 2 | 1)
            target[to + 1] = offset & 0xFF
            to += 2
        elif part < 264:
            target[to] = 5 << 2 | 1
            target[to + 1] = 0
            target[to + 2] = <uint8_t>(part - 8)
            to += 3
        else:
            target[to] = 6 << 2 | 1
            target[to + 1] = 0
            target[to + 2] = (part - 260) & 0xFF
            target[to + 3] = <uint8_t>((part - 260) >> 8)
            to += 4
    return to


cdef inline Py_ssize_t put_varint(uint8_t *target, Py_ssize_t to, uint64_t value) noexcept nogil:
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
