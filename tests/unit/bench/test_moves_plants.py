"""The planted bugs of `bench/move_kills.py` fit the source."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_every_bug_can_be_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    kills, moves = importlib.import_module("kills.plants"), importlib.import_module("moves.plants")
    for name, plant in moves.PLANTS.items():
        folder = tmp_path / name
        copy = kills.plant_changes(name, plant.changes, ROOT / "src", folder)
        for change in plant.changes:
            source = (copy / "headrace" / change.path).read_text()
            compile(source, change.path, "exec")
        assert set(plant.steps) <= set(moves.STEPS)
        assert set(plant.victims) <= set(moves.VICTIMS)
