"""Changes of a claim's record that lose against another process."""

from __future__ import annotations

from typing import Any

import pytest

from claims.claims_harness import ClaimsHarness
from headrace.claims.jetstream_client import RequestRejected


@pytest.mark.parametrize("err_code", [10071, 10164])
async def test_a_record_that_changed_meanwhile(
    world: ClaimsHarness, err_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster replies with the second code while the change of the other process is still being replicated."""
    claims = await world.claims()
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", b"x" * 100_000)
    assert sent.reference
    entry = await claims.registry.find(world.name, sent.reference.claim_id)
    assert entry is not None
    error = {"code": 400, "err_code": err_code, "description": "wrong last sequence"}

    async def reject(*_: Any) -> None:
        raise RequestRejected(400, err_code, "wrong last sequence")

    async def reject_first(_: Any) -> list[dict[str, Any]]:
        return [{"error": error}, {"stream": "CLAIMS", "seq": 1}]

    monkeypatch.setattr(claims.registry.jetstream, "publish", reject)
    monkeypatch.setattr(claims.registry.jetstream, "publish_all", reject_first)
    assert await claims.registry.compare_and_set(entry, 60) is None
    assert not await claims.registry.release(entry, 60, 60)
