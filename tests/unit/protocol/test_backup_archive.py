"""The format of backups, in pieces of any size, and invalid ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native.snappy_pure import encode_varint
from headrace.errors import ProtocolError
from headrace.protocol.backup_archive import (
    END_ENTRY,
    ArchiveReader,
    ArchiveWriter,
    BackupEntry,
    encode_entry,
)

TIMES = st.integers(-(2**62), 2**62)
ENTRIES = st.builds(
    BackupEntry,
    st.binary(max_size=20),
    TIMES,
    st.integers(0, 2**63),
    st.binary(max_size=50),
    st.binary(max_size=3000),
)
#: Made by nats-server 2.15: one message on `a` with payload `x`, repeated.
MAGIC = b"NATSARC1"


def pack(entries: list[BackupEntry]) -> bytes:
    packer = ArchiveWriter()
    return b"".join(packer.add(entry) for entry in entries) + packer.finish()


def unpack(data: bytes, piece: int, entry_max: int = 1 << 20) -> list[BackupEntry]:
    unpacker, found = ArchiveReader(entry_max), []
    for at in range(0, len(data), piece):
        unpacker.feed(data[at : at + piece])
        while (entry := unpacker.next()) is not None:
            found.append(entry)
    assert unpacker.empty
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=60), st.integers(1, 5000))
def test_there_and_back(entries: list[BackupEntry], piece: int) -> None:
    assert unpack(pack(entries), piece) == [*entries, END_ENTRY]


def test_an_archive_of_many_blocks_round_trips() -> None:
    entries = [
        BackupEntry(b"s", number, number, b"", bytes([number % 256]) * 10_000) for number in range(1, 60)
    ]
    data = pack(entries)
    assert unpack(data, 777) == [*entries, END_ENTRY]
    assert len(data) < 60_000


def test_the_form_of_an_entry() -> None:
    entry = BackupEntry(b"a.b", -1, 300, b"NATS/1.0\r\n\r\n", b"x")
    assert encode_entry(entry) == b"\x03\x01\xac\x02\x0c\x01a.bNATS/1.0\r\n\r\nx"
    assert encode_varint(2**64 - 1) == b"\xff" * 9 + b"\x01"


def test_blocks_that_say_nothing_are_passed_over() -> None:
    head, rest = pack([])[:10], pack([])[10:]
    padding = b"\xfe\x03\x00\x00abc" + b"\x99\x01\x00\x00x"
    assert unpack(head + padding + head + rest, 3) == [END_ENTRY]


@pytest.mark.parametrize(
    "data",
    [
        b"garbage garbage garbage",
        b"\xff\x06\x00\x00NoNoNo",
        b"\x02\x00\x00\x00",
        b"\x00\xff\xff\xff",
        b"\x01\x03\x00\x00abc",
        b"\x01\x05\x00\x00abcde",
        b"\x00\x05\x00\x00abcd\x05",
    ],
)
def test_data_without_s2_blocks_is_refused(data: bytes) -> None:
    unpacker = ArchiveReader(1 << 20)
    unpacker.feed(data)
    with pytest.raises(ProtocolError, match="s2"):
        unpacker.next()


@pytest.mark.parametrize(
    "body",
    [
        b"NATSARC2",
        MAGIC + b"\xff" * 11,
        MAGIC + encode_varint(2**30) + b"\x00" * 4,
        MAGIC + b"\x00\x00\x00" + encode_varint(2**40) + b"\x00",
        MAGIC + b"\x00\x00\x00" + encode_varint(2**63) + encode_varint(2**63),
    ],
)
def test_data_without_a_tar_archive_is_refused(body: bytes) -> None:
    packer = ArchiveWriter()
    packer._buffer[:] = body
    unpacker = ArchiveReader(1 << 20)
    unpacker.feed(packer._drain_chunks(1))
    with pytest.raises(ProtocolError, match="archive"):
        unpacker.next()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2000), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(at: int, mask: int) -> None:
    entries = [BackupEntry(b"s", number, number, b"", b"payload %d" % number) for number in range(1, 200)]
    data = bytearray(pack(entries))
    at %= len(data)
    data[at] ^= mask
    try:
        found = unpack(bytes(data), len(data))
    except (ProtocolError, AssertionError):
        return
    # The byte that identifies the compressor may change; a chunk may become one that is skipped, so that the end is
    # missing.
    assert found == [*entries, END_ENTRY] or END_ENTRY not in found


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_anything_at_all(data: bytes) -> None:
    unpacker = ArchiveReader(1 << 20)
    unpacker.feed(data)
    try:
        while unpacker.next() is not None:
            pass
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "chunk", [b"\x80\x00\x00\x00", b"\xff\x06\x00\x00sNaPpY", b"\x01\x04\x00\x00\xd8\xea\x82\xa2"]
)
def test_chunks_without_end_that_bring_nothing(chunk: bytes) -> None:
    """A client that sends them would keep a server busy."""
    unpacker = ArchiveReader(1 << 20)
    unpacker.feed(chunk * 64)
    assert unpacker.next() is None
    unpacker.feed(chunk)
    with pytest.raises(ProtocolError, match="corrupt"):
        unpacker.next()
