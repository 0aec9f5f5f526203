"""Backups of simulated stores by seed: pinned at any moment, across crashes, restored and compared with the model."""

from collections.abc import Callable

import pytest

from .backup_simulation import run
from .store_sizes import SIZES

PARTS = 5
SEEDS = 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_a_backup_has_what_was_committed_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    backups = sum(run(seed).backups for seed in range(part, SEEDS, PARTS))
    record_property("count: simulated backups", backups)
    assert backups > 0


def test_a_backup_has_what_was_committed_for_a_seed_that_once_failed() -> None:
    """A sealed segment had no file when the segments were listed, and one when the pin was made."""
    assert run(10, SIZES[0]).backups > 0


def test_a_later_backup_sends_less() -> None:
    assert run(10, SIZES[0]).reused_bytes > 0
