"""The statistics of `bench/ab.py`: equal versions show no difference, a real one is found, outliers decide nothing."""

import importlib.util
import math
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"


def load(name: str) -> ModuleType:
    """Import a module of `bench`, which is not a package, without changing `sys.path`."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


intervals = load("intervals")
SEEDS = range(200)


def log_ratios(seed: int, shift: float, pairs: int = 10, noise: float = 0.015) -> list[float]:
    draw = random.Random(seed)
    return [math.log(1 + shift) + draw.gauss(0, noise) for _ in range(pairs)]


def verdicts(shift: float, pairs: int = 10, noise: float = 0.015) -> list[str]:
    return [intervals.estimate(log_ratios(seed, shift, pairs, noise)).verdict() for seed in SEEDS]


def test_equal_versions_show_no_difference() -> None:
    assert set(verdicts(0.0)) == {"no difference"}


def test_equal_versions_show_no_difference_under_much_noise() -> None:
    """Wide intervals are inconclusive; they must not be wrong."""
    wrong = [verdict for verdict in verdicts(0.0, noise=0.10) if verdict != "no difference"]
    assert len(wrong) <= len(SEEDS) * 0.02


def test_a_change_within_the_margin_is_no_difference() -> None:
    assert set(verdicts(0.02)) == {"no difference"}


def test_seven_percent_more_is_slower() -> None:
    assert set(verdicts(0.07)) == {"slower"}


def test_seven_percent_less_is_faster() -> None:
    assert set(verdicts(-0.07)) == {"faster"}


def test_five_percent_more_is_slower_with_little_noise() -> None:
    assert set(verdicts(0.05, pairs=12, noise=0.008)) == {"slower"}


def test_five_percent_more_is_found_by_more_pairs() -> None:
    found = [verdicts(0.05, pairs).count("slower") for pairs in (10, 20, 30)]
    assert found == sorted(found)
    assert found[-1] >= len(SEEDS) * 0.9
    assert "faster" not in verdicts(0.05, 30)


@pytest.mark.parametrize("outlier", [-1.0, 1.0])
@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "no difference"), (0.08, "slower"), (-0.08, "faster")])
def test_an_outlier_does_not_change_a_verdict(shift: float, verdict: str, outlier: float) -> None:
    for seed in SEEDS:
        ratios = log_ratios(seed, shift, pairs=20)
        ratios[3] = outlier
        assert intervals.estimate(ratios).verdict() == verdict, f"seed {seed}"


@pytest.mark.parametrize("outlier", [-1.0, 1.0])
@pytest.mark.parametrize("pairs", [10, 20])
def test_outliers_turn_no_difference_into_nothing_else(pairs: int, outlier: float) -> None:
    """Three outliers on the same side widen the interval, which may become inconclusive, but decide nothing."""
    for seed in SEEDS:
        ratios = log_ratios(seed, 0.0, pairs)
        ratios[2], ratios[5], ratios[8] = outlier, outlier / 2, outlier / 4
        assert intervals.estimate(ratios).verdict() == "no difference", f"seed {seed}"


def test_the_interval_holds_the_ratio_as_often_as_promised() -> None:
    for confidence in (0.9, 0.99):
        hits = 0
        for seed in range(1000):
            interval = intervals.estimate(log_ratios(seed, 0.04), confidence)
            assert interval.low <= interval.ratio <= interval.high
            hits += interval.low <= 1.04 <= interval.high
        assert hits >= 1000 * confidence - 20


@pytest.mark.parametrize(
    ("pairs", "confidence", "dropped"),
    [
        (5, 0.95, None),
        (6, 0.95, 0),
        (10, 0.95, 8),
        (7, 0.99, None),
        (8, 0.99, 0),
        (10, 0.99, 3),
        (20, 0.99, 37),
    ],
)
def test_the_signed_rank_table(pairs: int, confidence: float, dropped: int | None) -> None:
    """Critical values from published tables of Wilcoxon's signed-rank test."""
    assert intervals.averages_to_drop(pairs, confidence) == dropped


def test_too_few_pairs_decide_nothing() -> None:
    interval = intervals.estimate([math.log(2)] * 7)
    assert interval.ratio == pytest.approx(2)
    assert interval.high == math.inf
    assert interval.verdict() == "no difference"
    assert not interval.is_conclusive()
    assert intervals.estimate([math.log(2)] * 8).verdict() == "slower"
    assert not intervals.estimate([]).is_conclusive()


@pytest.mark.parametrize(
    ("low", "high", "verdict", "is_conclusive"),
    [
        (0.98, 1.02, "no difference", True),
        (1.001, 1.029, "no difference", True),
        (1.02, 1.06, "no difference", False),
        (0.9, 1.1, "no difference", False),
        (1.031, 1.2, "slower", True),
        (0.8, 0.97, "faster", True),
        (0.95, 0.98, "no difference", False),
    ],
)
def test_the_rule_of_three_verdicts(low: float, high: float, verdict: str, is_conclusive: bool) -> None:
    interval = intervals.Interval(math.sqrt(low * high), low, high)
    assert interval.verdict() == verdict
    assert interval.is_conclusive() == is_conclusive
