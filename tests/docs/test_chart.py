"""The chart of the benchmarks shows the numbers of the table."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_chart_shows_the_numbers_of_the_table() -> None:
    chart = runpy.run_path(str(DOCS / "make_chart.py"))
    bars = chart["read_bars"]((DOCS / "explanation" / "benchmarks.md").read_text())
    assert len(bars) >= 20
    assert chart["draw"](bars) == (DOCS / "images" / "throughput.svg").read_text(), (
        "run: python docs/make_chart.py"
    )
