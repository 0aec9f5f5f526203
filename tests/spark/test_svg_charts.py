"""Charts are well-formed SVG, show the given values, and load nothing."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from headrace.spark import svg_charts

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_stand_on_each_other() -> None:
    text = svg_charts.bars("A < B", ["x", "y"], [("one", [1.0, 0.0]), ("two & more", [3.0, 2.0])])
    tree = ElementTree.fromstring(text)
    drawn = [rect for rect in tree.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert [rect.findtext(f"{SVG}title") for rect in drawn] == [
        "one: x: 1",
        "two & more: x: 3",
        "two & more: y: 2",
    ]
    below, above = drawn[0], drawn[1]
    assert float(above.get("y", 0)) + float(above.get("height", 0)) == pytest.approx(
        float(below.get("y", 0)), abs=0.2
    )
    assert "A < B" in [each.text for each in tree.iter(f"{SVG}text")]


def test_lines_stay_inside_their_axes() -> None:
    values = [0.0, 950.0, 20.0]
    tree = ElementTree.fromstring(svg_charts.lines("t", ["a", "b", "c"], [("v", values)], unit=" ms"))
    (line,) = tree.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    assert heights[1] < heights[2] < heights[0] <= svg_charts.HEIGHT
    told = [each.text for each in tree.iter(f"{SVG}text")]
    assert {"0 ms", "500 ms", "1,000 ms"} <= set(told)


@pytest.mark.parametrize("values", [[], [0.0]])
def test_nothing_is_drawn_of_nothing(values: list[float]) -> None:
    for made in (svg_charts.bars, svg_charts.lines):
        ElementTree.fromstring(made("t", ["x"] * len(values), [("v", values)]))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12_345, "12.3k"), (2.5e6, "2.5M"), (0.125, "0.125")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert svg_charts.format_number(value) == text
