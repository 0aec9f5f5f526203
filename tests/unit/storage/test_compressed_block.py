"""Compressed blocks are read as the plain ones would be, and nothing that a file says leads outside of them."""

from __future__ import annotations

import struct
from random import Random

import pytest

from headrace._native import crc32, load_native
from headrace.storage import compressed_block as blocks
from headrace.storage.format import encode_block_header

SEED, OFFSET = 77, 512
RECORDS = b"".join(b'{"order":%d,"status":"paid"}' % number for number in range(300))
PLAIN = encode_block_header(SEED, OFFSET, 1, 300, RECORDS) + RECORDS


def craft(stored: bytes, length: int, offset: int = OFFSET, size: int | None = None) -> bytes:
    """A compressed block with a valid checksum, whatever it says."""
    head = struct.pack(
        "<IIQI", blocks.COMPRESSED_MAGIC, len(stored) if size is None else size, offset, length
    )
    return head + struct.pack("<I", crc32(stored, crc32(head, SEED))) + stored


def compressed() -> bytes:
    block = blocks.compress_block(SEED, OFFSET, PLAIN, 1)
    assert block is not None
    return block


def test_a_block_comes_back() -> None:
    block = compressed()
    assert len(block) < len(PLAIN) // 2
    for data, at in ((block, 0), (b"." * 100 + block + bytes(2000), 100)):
        opened = blocks.open_block(data, at, SEED, OFFSET)
        assert opened is not None
        assert bytes(opened.data[opened.start : opened.start + opened.header.length]) == RECORDS
        assert opened.header[1:] == (len(RECORDS), 1, 300)


def test_a_block_that_saves_too_little_stays_plain() -> None:
    saved = len(PLAIN) - len(compressed())
    assert blocks.compress_block(SEED, OFFSET, PLAIN, saved) is not None
    assert blocks.compress_block(SEED, OFFSET, PLAIN, saved + 1) is None
    noise = Random(1).randbytes(5000)
    assert blocks.compress_block(SEED, OFFSET, noise, 1) is None


def test_every_flipped_bit_is_found() -> None:
    block = compressed()
    for at in range(len(block)):
        damaged = bytearray(block)
        damaged[at] ^= 1 << at % 8
        assert blocks.open_block(bytes(damaged), 0, SEED, OFFSET) is None, at


def test_a_block_of_another_place_or_segment_is_refused() -> None:
    assert blocks.open_block(compressed(), 0, SEED, OFFSET + 512) is None
    assert blocks.open_block(compressed(), 0, SEED + 1, OFFSET) is None
    assert blocks.open_block(compressed()[:-1], 0, SEED, OFFSET) is None
    assert blocks.open_block(compressed()[:20], 0, SEED, OFFSET) is None
    assert blocks.open_block(b"", 0, SEED, OFFSET) is None


def test_crafted_blocks_with_a_valid_checksum_are_refused() -> None:
    snappy = load_native("snappy")
    stored = snappy.compress(PLAIN)
    assert blocks.open_block(craft(stored, len(PLAIN)), 0, SEED, OFFSET) is not None
    for length in (0, 32, len(PLAIN) - 1, len(PLAIN) + 1, blocks.COMPRESSED_MAX + 1, 0xFFFFFFFF):
        assert blocks.open_block(craft(stored, length), 0, SEED, OFFSET) is None, length
    for size in (len(stored) - 1, len(stored) + 1, 0xFFFFFFFF):
        assert blocks.open_block(craft(stored, len(PLAIN), size=size), 0, SEED, OFFSET) is None, size
    bomb = b"\xff\xff\xff\xff\x0f" + stored  # it claims 4 GiB
    assert blocks.open_block(craft(bomb, len(PLAIN)), 0, SEED, OFFSET) is None
    other = encode_block_header(SEED, OFFSET + 512, 1, 300, RECORDS) + RECORDS
    assert blocks.open_block(craft(snappy.compress(other), len(other)), 0, SEED, OFFSET) is None
    longer = PLAIN + b"more"
    assert blocks.open_block(craft(snappy.compress(longer), len(longer)), 0, SEED, OFFSET) is None


@pytest.mark.parametrize("seed", range(200))
def test_random_elements_with_a_valid_checksum_do_no_harm(seed: int) -> None:
    rng = Random(seed)
    stored = bytearray(load_native("snappy").compress(PLAIN))
    for _ in range(rng.randrange(1, 6)):
        stored[rng.randrange(len(stored))] = rng.randrange(256)
    opened = blocks.open_block(craft(bytes(stored), len(PLAIN)), 0, SEED, OFFSET)
    assert opened is None or bytes(opened.data) == PLAIN
