"""Every function that the page on message paths names exists, and is called as the page says."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support.source_tree import SOURCE, parse_module

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "message-path.md").read_text()
HOPS = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", PAGE)
METHODS = sorted(set(re.findall(r"`(_?[A-Z]\w+\.\w+)`", PAGE)))

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Step(NamedTuple):
    """A row: the functions that refer to the function of this row, and that function."""

    callers: tuple[str, ...]
    file: str
    name: str


def parse_steps() -> list[Step]:
    """Return the steps of all paths; a number among the callers is replaced by the function of that step."""
    steps: list[Step] = []
    for section in PAGE.split("\n## "):
        rows = re.findall(r"^\| (\d+) \| ([^|]+) \| `([\w/]+\.py)` `([\w.]+)` \|", section, re.MULTILINE)
        names = {number: name for number, _, _, name in rows}
        for _, called_by, file, name in rows:
            direct = re.sub(r"after (\d+|`[\w.]+`)", "", called_by)
            callers = re.findall(r"\b\d+\b|(?<=`)[\w.]+(?=`)", direct)
            steps.append(Step(tuple(names.get(caller, caller) for caller in callers), file, name))
    return steps


STEPS = parse_steps()
CALLS = [(caller, step.name) for step in STEPS for caller in step.callers]


def find_definitions(path: Path) -> dict[str, Definition]:
    """Return the functions, classes and methods of a module by name."""
    found: dict[str, Definition] = {}
    for node in parse_module(path).body:
        if isinstance(node, Definition):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, Definition)}
    return found


@cache
def find_all_definitions() -> dict[str, list[Definition]]:
    found: dict[str, list[Definition]] = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for name, node in find_definitions(path).items():
            found[name].append(node)
    return dict(found)


def find_mentions(node: ast.AST) -> set[str]:
    """Return the names that code refers to; a bound method may have an underscore more or less."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    names += [each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return {name.lstrip("_") for name in names}


@pytest.mark.parametrize(("file", "name"), HOPS)
def test_a_hop_is_where_the_page_says(file: str, name: str) -> None:
    assert name in find_definitions(SOURCE / file)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_exists(name: str) -> None:
    class_name, member = name.split(".")
    classes = find_all_definitions().get(class_name, [])
    attributes = {each.attr for node in classes for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    assert name in find_all_definitions() or member in attributes


@pytest.mark.parametrize(("caller", "callee"), CALLS)
def test_a_caller_refers_to_what_it_calls(caller: str, callee: str) -> None:
    candidates = find_all_definitions().get(caller, [])
    assert candidates, f"there is no function {caller}"
    called = callee.rpartition(".")[2].lstrip("_")
    assert any(called in find_mentions(node) for node in candidates)


def test_every_row_is_a_step() -> None:
    numbers = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert len(STEPS) == len(numbers) > 0


@pytest.mark.parametrize("section", PAGE.split("\n## ")[1:], ids=lambda section: section.partition("\n")[0])
def test_steps_are_numbered_in_order(section: str) -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
