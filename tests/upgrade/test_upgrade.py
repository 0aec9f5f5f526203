"""Data directories of an earlier version: this one finds the same content, continues, and starts again.

The directories and the facts that the earlier version reported are in `fixtures`; `generate.py` made both under
commit 0254295. If a fact differs because the behaviour was changed on purpose, correct the stored fact and explain it
in the commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import outcome

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
#: One of each kind, for the slower core.
PURE = ["streams-killed", "consumers-killed", "compacted", "rotten-block", "rotten-columns"]


def differences(wanted: Any, found: Any, place: str = "") -> list[str]:
    """Return where two facts differ, one line each."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted({*wanted, *found})
            for line in differences(wanted.get(key), found.get(key), f"{place}/{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for at, (old, new) in pairs for line in differences(old, new, f"{place}/{at}")]
    return [] if wanted == found else [f"{place}: was {wanted!r}, is {found!r}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_is_what_it_was(name: str, tmp_path: Path) -> None:
    wanted, found = outcome.check(FIXTURES, name, tmp_path)
    assert differences(wanted, json.loads(json.dumps(found))) == []


def test_the_pure_kernel_reads_them_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "upgrade.outcome", str(FIXTURES), str(tmp_path), *PURE],
        env={**os.environ, "HEADRACE_PURE": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert sorted(outcomes) == sorted(PURE)
    for name, (wanted, found) in outcomes.items():
        assert differences(wanted, found) == [], name


def test_the_directories_stay_small() -> None:
    assert sum(path.stat().st_size for path in FIXTURES.glob("*.tar.xz")) < 1 << 20
