# cython: language_level=3
"""The headers of journal frames, of their entries and of the sync marker, compiled: each commit encodes one of each.

Owns only the byte layout, which `docs/explanation/storage-format.md` describes. Must not know where the bytes go. The
pure version is `frame_encoding_pure`; the same tests run on both. See ADR 66.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from headrace._native import load_native
from headrace._native.frame_encoding_pure import FRAME_MAGIC, SLOT_BYTES, SLOT_MAGIC, WATERMARKS_OMITTED

cdef object crc32 = load_native("crc32").crc32

cdef enum:
    FRAME_HEADER = 48
    ENTRY_HEADER = 16
    SLOT_HEADER = 32

cdef uint32_t FRAME_MAGIC_C = FRAME_MAGIC, SLOT_MAGIC_C = SLOT_MAGIC, OMITTED_C = WATERMARKS_OMITTED
cdef Py_ssize_t SLOT_BYTES_C = SLOT_BYTES


cdef inline void put16(char *at, uint16_t value) noexcept nogil:
    memcpy(at, &value, 2)


cdef inline void put32(char *at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void put64(char *at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


cdef Py_ssize_t byte_count(piece) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t size
    if type(piece) is bytes:
        return PyBytes_GET_SIZE(piece)
    PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
    size = view.len
    PyBuffer_Release(&view)
    return size


def encode_frame_header(uint16_t kind, uint64_t store_id, uint64_t file_number, uint64_t number, body,
                        uint32_t prev_crc):
    """Return the 48 bytes before a body, which is given in pieces, and the frame's checksum."""
    cdef char head[FRAME_HEADER]
    cdef Py_ssize_t length = 0
    cdef uint32_t crc
    for piece in body:
        length += byte_count(piece)
    if length > 0xFFFFFFFF:
        raise OverflowError("a frame has less than 4 GiB")
    memset(head, 0, FRAME_HEADER)
    put32(head, FRAME_MAGIC_C)
    put16(head + 4, kind)
    put64(head + 8, store_id)
    put64(head + 16, file_number)
    put64(head + 24, number)
    put32(head + 32, <uint32_t>length)
    put32(head + 36, prev_crc)
    crc = crc32(PyBytes_FromStringAndSize(head, FRAME_HEADER - 4))
    for piece in body:
        crc = crc32(piece, crc)
    put32(head + FRAME_HEADER - 4, crc)
    return PyBytes_FromStringAndSize(head, FRAME_HEADER), crc


def encode_entry(uint16_t kind, uint32_t ident, bytes body not None):
    """Encode one entry of a frame."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, ENTRY_HEADER + size)
    cdef char *to = PyBytes_AS_STRING(made)
    put16(to, kind)
    put16(to + 2, 0)
    put32(to + 4, ident)
    put64(to + 8, <uint64_t>size)
    memcpy(to + ENTRY_HEADER, PyBytes_AS_STRING(body), size)
    return made


def encode_sync_slot(uint64_t store_id, uint64_t frame_number, bytes watermarks not None):
    """Encode a slot of the sync marker; watermarks that do not fit are left out."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(watermarks)
    cdef bint fits = SLOT_HEADER + size <= SLOT_BYTES_C
    cdef Py_ssize_t stored = size if fits else 0
    cdef bytes made = PyBytes_FromStringAndSize(NULL, SLOT_HEADER + stored)
    cdef char *to = PyBytes_AS_STRING(made)
    cdef uint32_t crc
    put32(to, SLOT_MAGIC_C)
    put32(to + 4, <uint32_t>size if fits else OMITTED_C)
    put64(to + 8, store_id)
    put64(to + 16, frame_number)
    put32(to + 24, 0)
    memcpy(to + SLOT_HEADER, PyBytes_AS_STRING(watermarks), stored)
    crc = crc32(PyBytes_FromStringAndSize(to, SLOT_HEADER - 4))
    if stored:
        crc = crc32(watermarks, crc)
    put32(to + SLOT_HEADER - 4, crc)
    return made
