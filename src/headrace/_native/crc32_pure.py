"""The CRC-32 of zlib; see `checksum.pyx`."""

from zlib import crc32

__all__ = ["crc32"]
