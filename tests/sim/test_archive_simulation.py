"""Archives of simulated stores by seed: kills and faults of the object store at any point, restored and compared."""

from collections.abc import Callable

import pytest

from .archive_simulation import run

PARTS = 2
SEEDS = 12


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_what_was_archived_is_restored_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    restored = sum(run(seed).restored for seed in range(part, SEEDS, PARTS))
    record_property("count: simulated restores of archives", restored)
    assert restored > 0
