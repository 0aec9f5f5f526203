"""Reads and compares the transcripts in tests/wire/*.txt; tests/wire/README.md explains their notation.

Owns the notation only: which bytes a line stands for, what a placeholder accepts, how a difference is shown.
unit/_native/test_parser.py and test_api_vectors.py replay them.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "wire"
END = "<EOF>"
_TITLE = re.compile(r"== (?P<number>\d+\w*) (?:\[(?P<server>\w+)\] )?(?P<title>.+)")
_REPEAT = re.compile(r"‹(.)×(\d+)›")
_PLACEHOLDER = re.compile(r"‹[^›]*›")
_KINDS = {
    "‹T›": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z",
    "‹n›": r"-?\d+",
    "‹ns›": r"\d+",
    "‹id›": r"[A-Za-z0-9]+",
    "‹…›": r".*",
}


@dataclass
class Conversation:
    """One exchange: what is sent, and what must be received."""

    number: str
    server: str
    title: str
    sent: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.number}-{self.title}".replace(" ", "_")


def load(file: str) -> list[Conversation]:
    conversations: list[Conversation] = []
    macros: dict[str, str] = {}
    target: list[str] = []
    for line in (FOLDER / file).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("# "):
            continue
        if found := _TITLE.fullmatch(line):
            conversations.append(Conversation(found["number"], found["server"] or "D", found["title"]))
            target = conversations[-1].sent
        elif line == "----":
            target = conversations[-1].expected
        elif line.startswith("@") and " = " in line and not conversations:
            macro, _, text = line.partition(" = ")
            macros[macro] = text
        else:
            target.append(macros.get(line, line))
    return conversations


def to_bytes(lines: list[str]) -> bytes:
    """Return the bytes that lines stand for."""
    return b"".join(_line_bytes(line) for line in lines)


def _line_bytes(line: str) -> bytes:
    text = _REPEAT.sub(lambda m: m[1] * int(m[2]), line).replace("␉", "\t")
    if text == "¶":
        return b"\r\n"
    if text.endswith("␊"):
        return text[:-1].encode() + b"\n"
    return text.encode() + b"\r\n"


def to_lines(data: bytes) -> list[str]:
    """Return received bytes in the notation of the files."""
    lines = data.decode(errors="backslashreplace").split("\r\n")
    if lines[-1] == "":
        lines.pop()
    return [line or "¶" for line in lines]


def differences(expected: list[str], received: list[str]) -> str:
    """Return a diff in which accepted lines are equal; empty if everything was expected."""
    shown = [e if matches(e, r) else r for e, r in zip(expected, received, strict=False)]
    shown += received[len(shown) :]
    return "\n".join(difflib.unified_diff(expected, shown, "expected", "received", lineterm="", n=20))


def matches(expected: str, received: str) -> bool:
    """Return whether a text is as expected; JSON objects are compared as values, the rest byte by byte."""
    if expected == received:
        return True
    if expected.startswith("{"):
        return json_text(expected, received) == json_text(received, received)
    return re.fullmatch(_pattern(expected), received, re.DOTALL) is not None


def _pattern(expected: str) -> str:
    pattern, last = "", 0
    for found in _PLACEHOLDER.finditer(expected):
        pattern += re.escape(expected[last : found.start()]) + _KINDS.get(found[0], ".*")
        last = found.end()
    return pattern + re.escape(expected[last:])


def json_text(expected: str, received: str) -> str:
    """Return pretty-printed JSON in which each accepted placeholder is replaced by the received value."""
    try:
        got = json.loads(received)
    except ValueError:
        got = None
    try:
        wanted = json.loads(_quoted(expected))
    except ValueError:
        return expected
    return json.dumps(_accept(wanted, got), indent=1, sort_keys=True, ensure_ascii=False)


def _quoted(expected: str) -> str:
    """Quote placeholders that stand for numbers or whole values, so that the text is JSON."""
    text = expected.replace("{…}", '"‹…›"').replace(",…}", ',"‹more›":true}')
    return re.sub(r"(?<=[:\[,])(‹[^›]*›)(?=[,}\]])", r'"\1"', text)


def _accept(wanted: Any, got: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(got, dict):
        more = "‹more›" in wanted
        result = {key: _accept(value, got.get(key)) for key, value in wanted.items() if key != "‹more›"}
        return {**got, **result} if more else result
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [_accept(w, g) for w, g in zip(wanted, got, strict=True)]
    if isinstance(wanted, str) and "‹" in wanted and got is not None:
        text = got if isinstance(got, str) else json.dumps(got)
        if re.fullmatch(_pattern(wanted), text, re.DOTALL):
            return got
    return wanted
