"""SVG charts: bars and lines with labelled axes. Nothing is loaded from elsewhere.

For reports and notebooks that need a chart without a plotting library. Invariant: the chart shows exactly the given
values; text is escaped. Must not know what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Series = tuple[str, Sequence[float]]

WIDTH, HEIGHT = 640, 264
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 44, 30
COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#805ad5", "#c53030", "#718096")
_TICK_STEPS = (1, 2, 2.5, 5, 10)


def bars(title: str, labels: Sequence[str], series: Sequence[Series], *, unit: str = "") -> str:
    """Draw groups of bars, one per label; several series are stacked."""
    chart = _Chart(title, labels, series, unit, top=max(_totals(series), default=0.0), legend_min=1)
    width = chart.step * 0.72
    parts = []
    bases = [0.0] * len(labels)
    for series_index, (name, values) in enumerate(series):
        for index, value in enumerate(values):
            if value:
                x = chart.x(index) - width / 2
                y, base_y = chart.y(bases[index] + value), chart.y(bases[index])
                label = escape(f"{name}: {labels[index]}: {format_number(value)}{unit}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(base_y - y, 0.5):.1f}" '
                    f'fill="{COLOURS[series_index % len(COLOURS)]}"><title>{label}</title></rect>'
                )
                bases[index] += value
    return chart.render(parts)


def lines(title: str, labels: Sequence[str], series: Sequence[Series], *, unit: str = "") -> str:
    """Draw one line per series."""
    top = max((value for _, values in series for value in values), default=0.0)
    chart = _Chart(title, labels, series, unit, top)
    parts = []
    for series_index, (_, values) in enumerate(series):
        points = " ".join(f"{chart.x(index):.1f},{chart.y(value):.1f}" for index, value in enumerate(values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[series_index % len(COLOURS)]}" '
            'stroke-width="2" stroke-linejoin="round"/>'
        )
    return chart.render(parts)


def _totals(series: Sequence[Series]) -> list[float]:
    return [sum(column) for column in zip(*(values for _, values in series), strict=True)]


class _Chart:
    """Axes, ticks, labels and the names of the series."""

    def __init__(
        self,
        title: str,
        labels: Sequence[str],
        series: Sequence[Series],
        unit: str,
        top: float,
        legend_min: int = 2,
    ) -> None:
        self._title = title
        self._labels = labels
        #: A single line needs no name beside the title; bars may.
        self._legend_names = [name for name, _ in series] if len(series) >= legend_min else []
        self._unit = unit
        self._tick = _choose_tick(top)
        self._top = max(math.ceil(top / self._tick - 1e-9), 1) * self._tick
        self.step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)

    def x(self, index: int) -> float:
        return _LEFT + self.step * (index + 0.5)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self._top

    def render(self, parts: Sequence[str]) -> str:
        return "".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
                f'height="{HEIGHT}" font-family="sans-serif" font-size="11" role="img">',
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
                f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold" fill="#1a202c">'
                f"{escape(self._title)}</text>",
                *self._legend(),
                *self._grid(),
                *parts,
                *self._x_labels(),
                "</svg>",
            ]
        )

    def _legend(self) -> list[str]:
        found, x = [], float(_LEFT)
        for series_index, name in enumerate(self._legend_names):
            colour = COLOURS[series_index % len(COLOURS)]
            found.append(f'<rect x="{x:.1f}" y="26" width="9" height="9" fill="{colour}"/>')
            found.append(f'<text x="{x + 13:.1f}" y="34" fill="#4a5568">{escape(name)}</text>')
            x += 28 + 6.2 * len(name)
        return found

    def _grid(self) -> list[str]:
        found = []
        for step in range(round(self._top / self._tick) + 1):
            value = step * self._tick
            y = self.y(value)
            found.append(
                f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{"#a0aec0" if not step else "#e2e8f0"}"/>'
            )
            label = escape(f"{format_number(value)}{self._unit}")
            found.append(
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#4a5568">{label}</text>'
            )
        return found

    def _x_labels(self) -> list[str]:
        """Return as many labels as there is room for."""
        longest = max((len(label) for label in self._labels), default=1)
        label_step = max(1, math.ceil((6.4 * longest + 10) / self.step))
        found = []
        for index in range(0, len(self._labels), label_step):
            half_width = 3.1 * len(self._labels[index])
            x = min(max(self.x(index), half_width), WIDTH - half_width - 2)
            found.append(
                f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="#4a5568">'
                f"{escape(self._labels[index])}</text>"
            )
        return found


def _choose_tick(top: float) -> float:
    """Return the distance for about four ticks, as a round number."""
    if top <= 0:
        return 1.0
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _TICK_STEPS if step * power >= rough * 0.999)


def format_number(value: float) -> str:
    """Format a number as short as it is still readable."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if letter == "k" else limit)
            return f"{scaled:.3g}{letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
