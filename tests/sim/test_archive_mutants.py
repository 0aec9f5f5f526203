"""The tests of the archive catch planted bugs: a quick selection; `make mutants` tries all."""

import pytest

from support.mutation import in_child

from .archive_mutants import MUTANTS

QUICK = [name for name, mutant in MUTANTS.items() if mutant.quick]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = in_child(MUTANTS[name])
    assert caught.dead, f"{name}: {caught}"
