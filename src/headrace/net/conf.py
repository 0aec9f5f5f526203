"""The configuration format: a superset of JSON with comments, bare strings, sizes, includes and variables.

Owns the grammar and nothing else: what the keys mean is `headrace.net.settings`. Every key keeps its place,
so that a mistake can be shown with file, line and column. Files and the environment come from outside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from headrace.durations import size_bytes
from headrace.net.options import OptionsError

DEPTH_MAX = 100


class ConfigError(OptionsError):
    """A configuration that cannot be used; the text begins with where."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written."""

    source: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"


class Section(dict[str, object]):
    """Keys with values, as written; `places` tells where a key stands, `referred` which were used as $KEY."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Place] = {}
        self.referred: set[str] = set()


_BETWEEN = re.compile(r"(?:[\s,;]|#[^\n]*|//[^\n]*)*")
_SPACE = re.compile(r"\s*")
_BLANKS = re.compile(r"[ \t\r]*")
_KEY = re.compile(r"[^\s:=]+")
_BARE = re.compile(r"(?:[^\s,;\]}\\]|\\.)+")
_PATH = re.compile(r"[^\s;}]+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'", re.DOTALL)
_BLOCK = re.compile(r"\((.*?)\n\)[ \t\r]*(?=\n|$)", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_INTEGER = re.compile(r"-?\d+(?:[kmgt](?:i?b?)?)?", re.IGNORECASE)
_NAME = re.compile(r"\w+")
_FLOAT = re.compile(r"-?\d+\.\d+")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse(text: str, source: str, read: Callable[[str], str], environment: Mapping[str, str]) -> Section:
    """The configuration in `text`; `read` gives the text of an included file by its path."""
    return _Parser(text, source, read, environment, []).top()


class _Parser:
    def __init__(
        self,
        text: str,
        source: str,
        read: Callable[[str], str],
        environment: Mapping[str, str],
        scopes: list[Section],
    ) -> None:
        self._text = text
        self._at = 0
        self._source = source
        self._read = read
        self._environment = environment
        self._scopes = scopes
        self._lists = 0
        #: Up to where lines were counted, the number of the line there, where it starts.
        self._seen = (0, 1, 0)

    def top(self) -> Section:
        self._skip(_BETWEEN)
        if self._next() == "{":
            self._at += 1
            section = self._section("}")
        else:
            section = self._section("")
        self._skip(_BETWEEN)
        if self._at < len(self._text):
            self._fail(f"unexpected {self._next()!r} after the end")
        return section

    def _section(self, end: str) -> Section:
        """Entries up to the closing brace, or to the end of the text."""
        section = Section()
        self._scopes.append(section)
        if len(self._scopes) > DEPTH_MAX:
            self._fail(f"sections or included files within each other, more than {DEPTH_MAX} deep")
        while True:
            self._skip(_BETWEEN)
            if self._next() == end:
                self._at += len(end)
                self._scopes.pop()
                return section
            if not self._next():
                self._fail("the section does not end: } is missing")
            self._entry(section)

    def _entry(self, section: Section) -> None:
        place = self._place()
        key = self._key()
        if key == "include" and self._next().isspace():
            self._include(section)
        else:
            self._skip(_SPACE)
            if self._next() in (":", "="):
                self._at += 1
                self._skip(_SPACE)
            section[key] = self._value()
            section.places[key] = place
        self._end_of_value()

    def _key(self) -> str:
        if self._next() in ('"', "'"):
            return self._quoted()
        match = _KEY.match(self._text, self._at)
        if match is None:
            self._fail(f"expected a key, not {self._next()!r}")
        if match[0].endswith("{") or match[0] in ("]", "}"):
            self._fail(f"{match[0]!r} is no key; a blank belongs before a brace")
        self._at = match.end()
        return match[0]

    def _value(self) -> object:
        first = self._next()
        if first == "{":
            self._at += 1
            return self._section("}")
        if first == "[":
            self._at += 1
            return self._array()
        if first in ('"', "'"):
            return self._quoted()
        if first == "(":
            return self._take(_BLOCK, "a block that ends with ) on a line of its own")[1]
        return self._bare()

    def _array(self) -> list[object]:
        values: list[object] = []
        self._lists += 1
        if self._lists > DEPTH_MAX:
            self._fail(f"lists within each other, more than {DEPTH_MAX} deep")
        while True:
            self._skip(_BETWEEN)
            if self._next() == "]":
                self._at += 1
                self._lists -= 1
                return values
            if not self._next():
                self._fail("the list does not end: ] is missing")
            values.append(self._value())
            self._end_of_value()

    def _quoted(self) -> str:
        if self._next() == "'":
            return self._take(_SINGLE, "a closing '")[1]
        return _ESCAPE.sub(self._unescape, self._take(_DOUBLE, 'a closing "')[1])

    def _bare(self) -> object:
        match = _BARE.match(self._text, self._at)
        if match is None:
            self._fail("a value is missing")
        word = match[0]
        if word[0] == "$":
            value = self._variable(word[1:])
        elif "\\" in word:
            value = _ESCAPE.sub(self._unescape, word)
        else:
            value = self._plain(word)
        self._at = match.end()
        return value

    def _plain(self, word: str) -> object:
        try:
            return plain(word)
        except ValueError as error:
            self._fail(str(error))

    def _unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x" and len(code) == 3:
            return chr(int(code[1:], 16))
        if code not in _ESCAPES:
            self._fail(f'\\{code} is no escape; use \\xXX, \\t, \\n, \\r, \\" or \\\\')
        return _ESCAPES[code]

    def _variable(self, name: str) -> object:
        """A key seen before, from the inside out, or a variable of the environment."""
        if name.startswith("2a$"):
            return f"${name}"
        for scope in reversed(self._scopes):
            if name in scope:
                scope.referred.add(name)
                return scope[name]
        if name not in self._environment and not _NAME.fullmatch(name):
            return f"${name}"  # a subject like $KV.> rather than a name
        if name not in self._environment:
            self._fail(f"variable {name!r} is neither a key above nor in the environment")
        text = self._environment[name]
        if text == f"${name}":
            self._fail(f"variable {name!r} refers to itself")
        return self._plain(text) if _BARE.fullmatch(text) and text[0] != "$" else text

    def _include(self, section: Section) -> None:
        self._skip(_BLANKS)
        start = self._at
        if self._next() in ('"', "'"):
            name = self._quoted()
        else:
            name = self._take(_PATH, "the name of a file")[0]
        # As the reference does, even an absolute path is taken below the folder of the including file.
        path = str(PurePosixPath(self._source).parent / name.lstrip("/"))
        try:
            text = self._read(path)
        except OSError as error:
            self._at = start
            self._fail(f"cannot read {path!r}: {error.strerror}")
        except ValueError as error:
            self._at = start
            self._fail(f"cannot read {path!r}: {error}")
        included = _Parser(text, path, self._read, self._environment, list(self._scopes)).top()
        section.update(included)
        section.places.update(included.places)
        section.referred |= included.referred

    def _end_of_value(self) -> None:
        """After a value comes the end of the line, a separator, a comment or the end of what it is in."""
        self._skip(_BLANKS)
        rest = self._text[self._at : self._at + 2]
        if rest and rest[0] not in "\n,;#]}" and rest != "//":
            self._fail(f"expected a new line or a comma before {rest[0]!r}")

    def _take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"expected {expected}")
        self._at = match.end()
        return match

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _place(self) -> Place:
        """Where the reader is. Lines are counted on from the last place, so that a long file stays cheap."""
        at, line, begins = self._seen if self._seen[0] <= self._at else (0, 1, 0)
        line += self._text.count("\n", at, self._at)
        begins = max(begins, self._text.rfind("\n", at, self._at) + 1)
        self._seen = (self._at, line, begins)
        return Place(self._source, line, self._at - begins + 1)

    def _fail(self, text: str) -> NoReturn:
        raise ConfigError(f"{self._place()}: {text}")


def plain(word: str) -> str | int | float | bool:
    """What a word without quotes means: a number, a size, a switch, or itself."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _INTEGER.fullmatch(word):
        return -size_bytes(word[1:]) if word[0] == "-" else size_bytes(word)
    return float(word) if _FLOAT.fullmatch(word) else word
