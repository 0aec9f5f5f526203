"""The S2 stream format: what is written is read in pieces of any size, and invalid input is refused."""

from __future__ import annotations

from random import Random

import pytest

from headrace.errors import ProtocolError
from headrace.protocol.s2_stream import HEADER, S2Reader, S2Writer, encode_chunk

DATA = b'{"order":1,"status":"paid"}' * 10_000


def read(stream: bytes, piece: int) -> bytes:
    reader, found = S2Reader(), []
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
        while (data := reader.next()) is not None:
            found.append(data)
    assert not reader.buffered_bytes
    return b"".join(found)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("piece", [1000, 65_536, 1 << 20])
def test_a_stream_comes_back(compress: bool, piece: int) -> None:
    writer = S2Writer()
    stream = writer.encode(DATA, compress=compress) + writer.encode(b"x", compress=compress)
    assert stream.startswith(HEADER)
    assert stream.count(HEADER) == 1
    assert (len(stream) < len(DATA) // 5) is compress
    assert read(stream, piece) == DATA + b"x"


def test_modes_may_change_and_streams_may_follow_each_other() -> None:
    writer = S2Writer()
    stream = writer.encode(DATA, compress=True) + writer.encode(DATA, compress=False)
    assert read(stream + S2Writer().encode(DATA, compress=True), 777) == DATA * 3


def test_noise_stays_plain() -> None:
    noise = Random(1).randbytes(1000)
    assert encode_chunk(noise) == encode_chunk(noise, compress=False)


@pytest.mark.parametrize(
    "chunk",
    [
        b"\x01\x04\x00\x00abcd",  # a wrong checksum
        b"\x00\x05\x00\x00abcd\xff",
        b"\x01\x02\x00\x00ab",
        b"\x00\xff\xff\xff",  # too long
        b"\xff\x06\x00\x00S3sTwO",
        b"\x02\x01\x00\x00a",  # a kind that may not be skipped
        b"\xfe\x00\x00\x00" * 65,  # nothing but padding
    ],
)
def test_invalid_chunks_are_refused(chunk: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(HEADER + chunk, 1 << 20)


def test_a_flipped_bit_is_found() -> None:
    chunk = bytearray(encode_chunk(DATA[:5000]))
    for at in range(4, len(chunk)):
        chunk[at] ^= 1
        with pytest.raises(ProtocolError):
            read(bytes(chunk), 1 << 20)
        chunk[at] ^= 1
