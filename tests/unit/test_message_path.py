"""Every function that the page on message paths names is where the page says."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "message-path.md").read_text()
HOPS = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", PAGE)


def find_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (
                each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
            )
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


@pytest.mark.parametrize(("file", "name"), HOPS)
def test_a_hop_is_where_the_page_says(file: str, name: str) -> None:
    assert name in find_names(ROOT / "src" / "headrace" / file)


def test_every_row_is_a_hop() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 60
    assert all(re.search(r"`[\w/]+\.py` `[\w.]+`", row) for row in rows)
