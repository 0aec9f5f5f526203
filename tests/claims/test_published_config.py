"""Programs publish their configuration, so that two that disagree get an error."""

from __future__ import annotations

import pytest

from claims.claims_harness import ClaimsHarness
from headrace.claims import (
    ConfigConflict,
    Ttl,
)


async def test_two_programs_that_disagree_find_out(world: ClaimsHarness) -> None:
    await world.claims(ttl=Ttl(max_age=7200))
    with pytest.raises(ConfigConflict, match="max_age is 3600, published is 7200"):
        await world.claims(ttl=Ttl(max_age=3600))
    with pytest.raises(ConfigConflict, match="bucket"):
        await world.claims(ttl=Ttl(max_age=7200), bucket="other")
    other = await world.claims(ttl=Ttl(max_age=7200, delete_after_read=False))
    assert any("delete_after_read" in item.text for item in await other.lint())
