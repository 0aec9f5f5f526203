# cython: language_level=3
"""CRC-32 of large buffers, compiled: 64 bytes per step on processors with carry-less multiplication (PCLMUL).

Owns only the arithmetic. Invariant: the result is that of `zlib.crc32`, which is called for small buffers and on other
processors. The pure version, `crc32_pure`, is zlib's function; the same tests run on both.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

from zlib import crc32 as zlib_crc32

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define HR_FOLDS() (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
    #define HR_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
    /* Multiplies both halves of x by x^n mod P and adds y; k has the constants for the distance n. */
    #define HR_FOLD(x, k, y) _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), \
                                                         _mm_clmulepi64_si128(x, k, 0x11)), y)
    /* Bit-reflected, like zlib's; size must be a multiple of 16 and at least 64. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t hr_crc32(const unsigned char *p, size_t size, uint32_t crc) {
        const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i by64 = _mm_set_epi64x(0, 0x163cd6124);
        const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i a = _mm_xor_si128(HR_LOAD(p), _mm_cvtsi32_si128((int)~crc));
        __m128i b = HR_LOAD(p + 16), c = HR_LOAD(p + 32), d = HR_LOAD(p + 48), t;
        for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
            a = HR_FOLD(a, by512, HR_LOAD(p));
            b = HR_FOLD(b, by512, HR_LOAD(p + 16));
            c = HR_FOLD(c, by512, HR_LOAD(p + 32));
            d = HR_FOLD(d, by512, HR_LOAD(p + 48));
        }
        a = HR_FOLD(a, by128, b);
        a = HR_FOLD(a, by128, c);
        a = HR_FOLD(a, by128, d);
        for (; size >= 16; p += 16, size -= 16) a = HR_FOLD(a, by128, HR_LOAD(p));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by128, 0x10));
        a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), by64, 0x00));
        t = _mm_clmulepi64_si128(_mm_and_si128(a, low), barrett, 0x10);
        t = _mm_clmulepi64_si128(_mm_and_si128(t, low), barrett, 0x00);
        return ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
    }
    #else
    #define HR_FOLDS() 0
    static uint32_t hr_crc32(const unsigned char *p, size_t size, uint32_t crc) { return crc; }
    #endif
    """
    bint HR_FOLDS()
    uint32_t hr_crc32(const unsigned char *p, size_t size, uint32_t crc) nogil

cdef enum:
    WORTH = 256  # bytes from which this is faster than zlib
    LONG = 262144  # bytes from which other threads run meanwhile

cdef bint FOLDS = HR_FOLDS()


def crc32(data, uint32_t value=0):
    """Return the checksum of `data`, continuing from `value`, that of the preceding bytes."""
    cdef Py_buffer view
    cdef Py_ssize_t whole
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not FOLDS or view.len < WORTH:
            return zlib_crc32(data, value)
        whole = view.len & ~15
        if view.len < LONG:
            value = hr_crc32(<const unsigned char *>view.buf, whole, value)
        else:
            with nogil:
                value = hr_crc32(<const unsigned char *>view.buf, whole, value)
        if whole == view.len:
            return value
        return zlib_crc32((<const unsigned char *>view.buf)[whole:view.len], value)
    finally:
        PyBuffer_Release(&view)
