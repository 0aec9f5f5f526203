"""Compressed claims: producer and consumer verify both the stored and the original bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import TooLarge
from headrace.claims.compression import Chunk, Decompressor, make_compressor
from headrace.claims.zstd_blocks import ZstdSplitter


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
async def test_compressed_claims_verify_on_both_sides(world: ClaimsHarness, compression: str) -> None:
    claims = await world.claims(compression=compression)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE, content_type="text/plain")
    assert sent.reference
    assert (sent.reference.stored_size == len(LARGE)) == (compression == "none")
    assert (sent.reference.stored_checksum == sent.reference.checksum) == (compression == "none")
    received = await claims.consumer.read(await world.next(stream, "c"))
    assert received.data == LARGE
    assert received.content_type == "text/plain"
    assert "prism-claim-check" not in received.headers
    metadata = (await claims.store.head(sent.reference.object_key)).metadata
    assert metadata["prism-checksum"] == sent.reference.checksum
    assert metadata["prism-original-size"] == str(len(LARGE))


def split_all(data: bytes, chunk: int) -> list[bytes]:
    splitter = ZstdSplitter()
    pieces = []
    for start in range(0, len(data), chunk):
        pieces += [bytes(piece) for piece in splitter.split(memoryview(data)[start : start + chunk])]
    return pieces


def test_an_empty_chunk_has_no_pieces() -> None:
    assert list(ZstdSplitter().split(memoryview(b""))) == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000, 1 << 20, 1 << 30])
@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_pieces_of_zstd_are_the_whole_and_decompress_to_a_bounded_size(
    chunk: int, level: int, checksum: bool, sized: bool
) -> None:
    rng = random.Random(chunk)
    original = rng.randbytes(300_000) + bytes(3_000_000) + b"abcdefgh" * 40_000
    original = original if chunk > 10 else original[290_000:400_000]
    params = zstandard.ZstdCompressionParameters.from_level(
        level, write_checksum=checksum, write_content_size=sized
    )
    data = zstandard.ZstdCompressor(compression_params=params).compress(original)
    pieces = split_all(data * 2, chunk)
    assert b"".join(pieces) == data * 2
    decoder = zstandard.ZstdDecompressor().decompressobj()
    sizes, position = [], 0
    for piece in split_all(data, chunk):
        sizes.append(len(decoder.decompress(piece)))
        position += len(piece)
    assert position == len(data)
    assert sum(sizes) == len(original)
    assert max(sizes) <= 9 * 128 * 1024
    if chunk >= len(data):
        assert len(pieces) <= 2 * (len(original) // (8 * 128 * 1024) + 2), "few calls"


@given(st.binary(max_size=5000), st.integers(1, 600))
def test_what_is_not_zstd_is_split_into_tiny_pieces(data: bytes, chunk: int) -> None:
    pieces = split_all(data, chunk)
    assert b"".join(pieces) == data
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        assert all(len(piece) <= 512 for piece in pieces)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("chunk", [1000, 1 << 30])
def test_no_decompressed_piece_is_large(name: str, chunk: int) -> None:
    """A megabyte of zeros compresses to about a kilobyte."""
    original = bytes(64 * 1024 * 1024)
    compressor = make_compressor(name)
    assert compressor is not None
    data = compressor.compress(original) + compressor.flush()
    decompressor = Decompressor(name, len(original))
    total = 0
    for start in range(0, len(data), chunk):
        for piece in decompressor.feed(data[start : start + chunk]):
            assert len(piece) <= 4 * 1024 * 1024
            total += len(piece)
    assert total == len(original)
    smaller = Decompressor(name, len(original) - 1)
    with pytest.raises(TooLarge):
        list(smaller.feed(data))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_decompression_does_not_block_the_event_loop(world: ClaimsHarness, compression: str) -> None:
    claims = await world.claims(compression=compression)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE * 8)
    message = await world.next(stream, "c")
    main = threading.get_ident()
    threads: set[int] = set()
    real = Decompressor.feed

    def feed(self: Decompressor, data: Chunk) -> Iterator[Chunk]:
        for piece in real(self, data):
            threads.add(threading.get_ident())
            yield piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decompressor, "feed", feed)
        assert (await claims.consumer.read(message)).data == LARGE * 8
    assert threads
    assert main not in threads
