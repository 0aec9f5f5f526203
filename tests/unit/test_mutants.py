"""Unit tests catch planted bugs: each in a separate process."""

import pytest

from support.mutation import in_child

from .mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = in_child(MUTANTS[name])
    assert caught.dead, f"{name}: {caught}"
