"""The planted bugs of `bench/spark_kills.py`: each still fits the source, so none is without effect."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_each_planted_bug_fits_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    plants = importlib.import_module("kills.plants")
    for name, plant in plants.PLANTS.items():
        (tmp_path / name).mkdir()
        copy = plants.plant_bug(name, ROOT / "src", tmp_path / name) / "headrace"
        for path in {change.path for change in plant.changes}:
            planted = (copy / path).read_text()
            assert planted != (ROOT / "src" / "headrace" / path).read_text()
            compile(planted, path, "exec")
