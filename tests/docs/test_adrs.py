"""The architecture decision records: each has a date, a status and a unique number, and is listed in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
HEAD = re.compile(
    r"# (?P<number>\d+)\. (?P<title>\S.*)\n\n"
    r"- Date: (?P<date>\d{4}-\d{2}-\d{2})\n"
    r"- Status: (?P<status>(?:accepted(?:, updated .+)?|superseded by ADR \d+))\n\n"
)
SECTIONS = ["Context", "Decision", "Consequences"]
WORDS_MAX = 600
#: `See ADR 15.`, `see ADRs 5 and 7`
REFERENCE = re.compile(r"\bADRs? (\d+(?:(?:, | and )\d+)*)")


def parse_head(path: Path) -> re.Match[str]:
    head = HEAD.match(path.read_text())
    assert head, f"{path.name} starts with its number and title, its date and its status"
    return head


def rows_of_index() -> list[tuple[str, ...]]:
    row = re.compile(r"^\| (\d+) \| \[(.+)\]\((\S+\.md)\) \| (\S+) \| (.+) \|$", re.MULTILINE)
    return [match.groups() for match in row.finditer((FOLDER / "index.md").read_text())]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem[:4])
def test_a_record_has_the_standard_form(path: Path) -> None:
    head = parse_head(path)
    assert path.name.startswith(f"{int(head['number']):04d}-")
    text = path.read_text()
    assert [name for name in re.findall(r"^## (.+)$", text, re.MULTILINE) if name in SECTIONS] == SECTIONS
    assert len(text.split()) <= WORDS_MAX, "at most a page"


def test_numbers_are_unique() -> None:
    numbers = [parse_head(path)["number"] for path in RECORDS]
    assert len(numbers) == len(set(numbers))


def test_the_index_lists_every_record() -> None:
    expected = [
        (head["number"], head["title"], path.name, head["date"], head["status"])
        for path in RECORDS
        for head in [parse_head(path)]
    ]
    assert rows_of_index() == expected


def test_the_navigation_has_the_index() -> None:
    assert "adr/index.md" in (ROOT / "mkdocs.yml").read_text()


def test_every_record_is_named_in_the_code_that_it_explains() -> None:
    sources = [
        path
        for folder in ("src", "tests")
        for kind in ("*.py", "*.pyx")
        for path in (ROOT / folder).rglob(kind)
    ]
    named = {
        number
        for path in sources
        for found in REFERENCE.findall(path.read_text())
        for number in re.findall(r"\d+", found)
    }
    assert {parse_head(path)["number"] for path in RECORDS} - named == set()


def test_references_name_existing_records() -> None:
    numbers = {parse_head(path)["number"] for path in RECORDS}
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.pyx"), *(ROOT / "docs").rglob("*.md")]
    wrong = [
        (path.relative_to(ROOT).as_posix(), number)
        for path in sources
        for found in REFERENCE.findall(path.read_text())
        for number in re.findall(r"\d+", found)
        if number not in numbers
    ]
    assert not wrong, "no such decision record"
