"""Splits zstd data into pieces of a few blocks, so that each decompresses to a bounded size.

A block is at least 4 bytes and at most 128 KiB decompressed. Without its boundaries only tiny pieces are safe, and
calling the decompressor for each costs more than decompressing. Reads headers only (RFC 8878); it neither checks nor
decompresses. What is not a zstd frame is split into tiny pieces: the decompressor will reject it.
"""

from __future__ import annotations

from collections.abc import Iterator

_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCKS_PER_PIECE = 8
#: Decompresses to at most 16 MiB, whatever it is.
_TINY_BYTES = 512
_FRAME_START_BYTES = len(_MAGIC) + 1
_BLOCK_HEADER_BYTES = 3
_RLE_BLOCK = 1
_CHECKSUM_BYTES = 4
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)


class ZstdSplitter:
    """Splits one object, which arrives in chunks of any size."""

    def __init__(self) -> None:
        #: Bytes before the next header.
        self._skip = 0
        #: The part of a header that has arrived.
        self._header = bytearray()
        self._is_frame_start = True
        self._has_checksum = False
        self._is_unknown = False

    def split(self, view: memoryview) -> Iterator[memoryview]:
        """Yield the chunk in pieces; an empty one has none."""
        if not len(view):
            return
        start = position = blocks = 0
        while position < len(view) and not self._is_unknown:
            taken = min(self._skip, len(view) - position)
            self._skip -= taken
            position += taken
            is_block = not self._is_frame_start
            position = self._read_header(view, position)
            blocks += is_block and not self._header
            if blocks == _BLOCKS_PER_PIECE:
                yield view[start:position]
                start, blocks = position, 0
        size = _TINY_BYTES if self._is_unknown else len(view)
        for tiny in range(start, len(view), size):
            yield view[tiny : tiny + size]

    def _read_header(self, view: memoryview, position: int) -> int:
        """Read the header of a frame or a block, as far as it has arrived; return where it ends."""
        size = _FRAME_START_BYTES if self._is_frame_start else _BLOCK_HEADER_BYTES
        end = min(position + size - len(self._header), len(view))
        self._header += view[position:end]
        if len(self._header) == size:
            if self._is_frame_start:
                self._parse_frame_start()
            else:
                self._parse_block_header()
            self._header.clear()
        return end

    def _parse_frame_start(self) -> None:
        self._is_unknown = self._header[: len(_MAGIC)] != _MAGIC
        descriptor = self._header[-1]
        is_single_segment = bool(descriptor & 0x20)
        content_size_flag = descriptor >> 6
        content_size_bytes = 1 << content_size_flag if content_size_flag else int(is_single_segment)
        window_bytes = int(not is_single_segment)
        self._skip = window_bytes + _DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
        self._has_checksum = bool(descriptor & 4)
        self._is_frame_start = False

    def _parse_block_header(self) -> None:
        header = int.from_bytes(self._header, "little")
        kind, size = header >> 1 & 3, header >> 3
        self._skip = 1 if kind == _RLE_BLOCK else size
        if header & 1:
            self._skip += _CHECKSUM_BYTES * self._has_checksum
            self._is_frame_start = True
