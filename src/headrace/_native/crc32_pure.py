"""CRC-32 from zlib; the compiled version is `crc32.pyx`. See ADR 8."""

from zlib import crc32

__all__ = ["crc32"]
