"""Words and phrases that make texts read like a translation stay out of sources and documentation."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "src" / "headrace").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.pyx")),
    *sorted(path for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts),
    *sorted((ROOT / "bench").rglob("*.py")),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "tests").rglob("*.md") if "node_modules" not in path.parts),
]

#: Pattern -> what to write instead.
BANNED = {
    r"\bspeaks? of\b|\bspoke of\b": "refers to",
    r"\banew\b": "again",
    r"\bis told\b|\bare told\b|\bwas told\b|\bwere told\b": "gets, receives, is notified",
    r"\bthe reference server\b|\bthe reference's\b": "nats-server",
    r"\bpatience\b": "timeout",
    r"\bfor ever\b": "forever",
    r"\b[Ww]hoever\b": "name the actor",
    r"\bhalf a thought\b|\ba life\b|\blives? on as\b": "say what happens",
    r"\bin silence\b": "without an error, silently",
    r"\bthe road\b|\bthe way of a\b": "the connection, the path",
    r"\bsends? (?:them|it) home\b": "closes the connection",
    r"\bcomes? to rest\b": "is idle",
    r"\bis well\b(?! formed)": "is healthy",
    r"(?:^|[.:] )Who (?!am I)\w+": "name the actor: 'A client that ...'",
    r"\b(?:is|are|was|were) waited for\b": "the client waits for ...",
    r"#:? *So (?:many|much|long|often)\b|\bso many(?: of)?$": "Maximum number of ..., Number of ...",
    r"\bplaces where work enters\b|\bplays with\b": "name the functions",
    r"\b(?:go|goes|went) on (?:meanwhile|with it|again)\b|\bthey go on\b": "continue",
    r"\bwhom\b|\bnone the worse\b|\bno defect\b|\bgrew tired\b": "name the actor, say what happens",
    r'"""Until ': "Wait until ...",
    r"\bthe (?:TTL|batch|reset) seed\b|\bseed of the (?:TTL|batch)\b": "the ... specification",
    r"\bmachine that halts\b": "a machine that pauses",
}
#: Places where a phrase is meant: a quotation, or the word itself is the topic.
ALLOWED = {
    "src/headrace/client/sync.py": ("patience",),  # the deprecated name of a parameter
    "CONTRIBUTING.md": ("anew", "patience", "speaks of", "whoever"),
    "docs/reference/glossary.md": ("the reference server",),
    "tests/unit/test_deprecation.py": ("patience",),  # the same
}
#: This file has all of them.
SOURCES.remove(Path(__file__))


def iter_python_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and other strings, line by line."""
    if path.suffix == ".pyx":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def find(lines: Iterator[tuple[int, str]], path: Path) -> list[str]:
    name = str(path.relative_to(ROOT))
    found = []
    for number, line in lines:
        for pattern, instead in BANNED.items():
            match = re.search(pattern, line)
            if match and match[0].strip().lower() not in ALLOWED.get(name, ()):
                found.append(f"{name}:{number}: {match[0]!r}; write: {instead}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_in_plain_english(path: Path) -> None:
    assert find(enumerate(path.read_text().splitlines(), 1), path) == []


def test_sources_are_in_plain_english() -> None:
    assert [each for path in SOURCES for each in find(iter_python_prose(path), path)] == []
