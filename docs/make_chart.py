"""Draws docs/images/throughput.svg from the table "Side by side" in docs/explanation/benchmarks.md.

    python docs/make_chart.py

The table is the only place that has the numbers. The picture has its own background, and follows the reader's light or
dark mode, so that it can be read in both.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PAGE = DOCS / "explanation" / "benchmarks.md"
PICTURE = DOCS / "images" / "throughput.svg"

LEFT, RIGHT, TOP, ROW = 230, 100, 92, 25
WIDTH = 860
LOW, HIGH = 0.2, 200.0
TICKS = (0.25, 0.5, 1, 2, 4, 10, 40, 100)

STYLE = """
.bg{fill:#ffffff;stroke:#d5dde2}.t{fill:#1c2329}.q{fill:#5c6770}.g{stroke:#e3e8eb}.one{stroke:#1c2329;stroke-width:1.5}
.more{fill:#0b7285}.less{fill:#c2570c}
@media (prefers-color-scheme: dark){.bg{fill:#1e2129;stroke:#3a4150}.t{fill:#e6edf3}.q{fill:#a3adb8}.g{stroke:#343a46}
.one{stroke:#e6edf3}.more{fill:#2ba8bd}.less{fill:#e8833a}}
"""


class Bar(NamedTuple):
    """One workload of the table."""

    name: str
    what: str
    ratio: float


def read_bars(page: str) -> list[Bar]:
    """Read name, description and ratio of each row of the table."""
    table = page.partition("\n## Side by side\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) \| [^|]* \| [^|]* \| ([\d.]+) \|", table, re.MULTILINE)
    return [Bar(name, what, float(ratio)) for name, what, ratio in rows]


def scale(ratio: float) -> float:
    """Return the place of a ratio on the logarithmic axis."""
    share = math.log(ratio / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(bars: list[Bar]) -> str:
    """Return the picture."""
    bars = sorted(bars, key=lambda bar: -bar.ratio)
    bottom = TOP + ROW * len(bars)
    height = bottom + 44
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        "<title>Headrace divided by nats-server, by workload</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="bg" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        '<text class="t" x="20" y="30" font-size="16" font-weight="600">'
        "Throughput relative to nats-server 2.15.1 (logarithmic)</text>",
        '<text class="q" x="20" y="51">Headrace syncs to disk before each acknowledgement; nats-server does not,'
        " except in the workload with syncs.</text>",
    ]
    for tick in TICKS:
        x = scale(tick)
        kind = "one" if tick == 1 else "g"
        out.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>')
        out.append(
            f'<text class="q" x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" font-size="12">{tick:g}×</text>'
        )
    for number, bar in enumerate(bars):
        y = TOP + ROW * number
        start, end = sorted((scale(1), scale(bar.ratio)))
        kind = "more" if bar.ratio >= 1 else "less"
        out.append(f'<text class="t" x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{bar.what}</text>')
        out.append(
            f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{end - start:.1f}" height="{ROW - 8}" rx="2"/>'
        )
        out.append(
            f'<text class="t" x="{max(end, scale(1)) + 6:.1f}" y="{y + 15}" font-weight="600">{bar.ratio:.3g}×</text>'
        )
    out.append(
        f'<text class="q" x="20" y="{bottom + 26}">Right of 1×: Headrace is faster. Left: nats-server is faster.'
        " Two virtual CPUs, 2026-11-15.</text>"
    )
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(read_bars(PAGE.read_text())))
