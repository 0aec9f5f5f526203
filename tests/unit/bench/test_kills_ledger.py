"""The ledger of `bench/spark_kills.py`: it knows what each query must write, and finds every kind of violation."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

KILLS = Path(__file__).parents[3] / "bench" / "kills"


def load(name: str) -> ModuleType:
    """Import a module of `bench/kills` without changing `sys.path`."""
    spec = importlib.util.spec_from_file_location(f"bench_kills_{name}", KILLS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ledger = load("ledger")
plans = load("plan")


def written(query: str, rounds: int = 2, *, at_least_once: bool = False) -> Any:
    """Return a ledger whose query has written what it must."""
    made = ledger.Ledger(query, 20, random.Random(1), at_least_once=at_least_once)
    for _ in range(rounds):
        made.begin_round()
    made.add(made.expected)
    return made


@pytest.mark.parametrize("query", plans.QUERIES)
def test_a_complete_target_has_no_violations(query: str) -> None:
    made = written(query)
    assert made.expected
    assert made.is_complete
    assert made.find_violations() == {}


@pytest.mark.parametrize("query", plans.QUERIES)
def test_a_missing_a_repeated_and_a_changed_row_are_found(query: str) -> None:
    made = written(query)
    missing, repeated, changed, *_ = sorted(made.expected)
    del made.found[missing], made.found[changed]
    foreign = (changed[0], changed[1] + "0")
    made.add([repeated, foreign])
    assert not made.is_complete
    assert made.find_violations() == {
        "missing": sorted([missing, changed]),
        "unexpected": [foreign],
        "more than once": [repeated],
    }


def test_repeated_rows_are_right_if_at_least_once_is_promised() -> None:
    made = written("copy", at_least_once=True)
    made.add([min(made.expected)])
    assert made.repeated == 1
    assert made.find_violations() == {}


def test_windows_count_once_the_watermark_has_passed_them() -> None:
    rows = [ledger.Row(1, 7, 0, 5), ledger.Row(2, 7, 4999, 6), ledger.Row(3, 7, 5000, 8)]
    tick = ledger.Row(4, 7, 15_000, 1)
    assert ledger.compute_expected("aggregate", rows) == set()
    assert ledger.compute_expected("aggregate", [*rows, tick]) == {("7", "0,7,2,11")}


def test_each_left_row_is_joined_with_its_right_row_or_none() -> None:
    rows = [ledger.Row(6, 6, 0, 1), ledger.Row(6, 6, 1000, 2, "right"), ledger.Row(7, 7, 50, 3)]
    assert ledger.compute_expected("join", rows) == {("6", "6,1,2"), ("7", "7,3,-")}


def test_rows_are_in_the_order_of_their_times_so_none_is_late() -> None:
    for query in plans.QUERIES:
        made = ledger.Ledger(query, 20, random.Random(1), at_least_once=False)
        rows = [row for _ in range(3) for row in made.begin_round()]
        for side in ("left", "right"):
            times = [row.time_ms for row in rows if row.side == side]
            assert times == sorted(times)
        assert len({row.msg_id for row in rows}) == len(rows)


def test_rounds_are_spread_evenly() -> None:
    plan = plans.make_plan(200, seed=1)
    assert [each.number for each in plan] == list(range(200))
    limits = {"combination": 1, "is_aimed": 20, "mode": 10, "victim": 20}
    for name, limit in limits.items():
        values = [getattr(each, name) for each in plan]
        counts = [values.count(value) for value in set(values)]
        assert max(counts) - min(counts) <= limit, name
    assert len({each.combination for each in plan}) == 30


def test_a_block_has_one_combination_and_each_victim_once() -> None:
    for block in plans.iter_blocks(plans.make_plan(240, seed=3)):
        assert len({each.combination for each in block}) == 1
        assert sorted(each.victim for each in block) == sorted(plans.VICTIMS)


def test_a_selection_restricts_the_plan() -> None:
    plan = plans.make_plan(6, seed=1, only=["headrace", "copy", "join", "staged", "driver"])
    assert {each.combination for each in plan} == {
        ("headrace", query, "staged") for query in ("copy", "join")
    }
    assert {each.victim for each in plan} == {"driver"}


def test_an_interrupted_campaign_continues_with_the_rounds_that_are_missing() -> None:
    plan = plans.make_plan(40, seed=1)
    results = [dict(zip(("number", *plans.DIMENSIONS), each.key, strict=True)) for each in plan[:17]]
    assert plans.select_open_rounds(plan, results) == plan[17:]
