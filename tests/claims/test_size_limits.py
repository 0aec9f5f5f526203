"""Claims beyond the size limits are rejected, also if they exceed them only when decompressed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import (
    TooLarge,
)


async def test_sizes_are_bounded(world: ClaimsHarness) -> None:
    small = await world.claims(max_size=1000, namespace=f"{world.name}s")
    stream = await world.stream()
    await world.consumer(stream, "c")
    await small.producer.publish(f"{stream}.a", LARGE)
    with pytest.raises(TooLarge):
        await small.consumer.read(await world.next(stream, "c"))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_a_bomb_does_not_explode(world: ClaimsHarness, compression: str) -> None:
    claims = await world.claims(compression=compression)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", b"\0" * 50_000_000)
    assert sent.reference
    assert sent.reference.stored_size < 100_000
    lie = replace(sent.reference, original_size=70_000)
    headers = {"prism-claim-check": "true"}
    await world.wire.publish(f"{stream}.a", lie.encode(), headers)
    await world.next(stream, "c")
    with pytest.raises(TooLarge):
        await claims.consumer.read(await world.next(stream, "c"))
