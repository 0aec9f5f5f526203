"""Another process reads pins while the writer runs at full speed: no row may be wrong."""

import time

import pytest

from .snapshot_load import load

SECONDS = 10


@pytest.mark.slow
def test_readers_never_see_a_wrong_missing_or_extra_row(tmp_path):
    seed = time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed}; a longer run: make soak-readers")
    tally = load(tmp_path, SECONDS, seed)
    assert tally.wrong == []
    assert tally.checked > 0
    assert tally.merging > 0
