"""CRC-32 from zlib; the compiled version is `crc32.pyx`."""

from zlib import crc32

__all__ = ["crc32"]
