"""Compressed claims: producer and consumer verify both the stored and the original bytes."""

from __future__ import annotations

import pytest

from claims.claims_harness import LARGE, ClaimsHarness


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
