"""Parser of the configuration format: a superset of JSON with comments, bare strings, sizes, includes and variables.

Owns the grammar and nothing else: the meaning of keys is in `headrace.config.schema`. Every key keeps its position, so
that an error can name file, line and column. Files and the environment are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NoReturn

from headrace.config.options import OptionsError
from headrace.durations import parse_size

DEPTH_MAX = 100


class ConfigFileError(OptionsError):
    """An invalid configuration file; the message starts with the position."""


@dataclass(frozen=True, slots=True)
class SourcePos:
    """A position in a configuration file."""

    source: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"


class Section(dict[str, object]):
    """Keys and values as written; `positions` has the position of each key, `referenced` the keys used as $KEY."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[str, SourcePos] = {}
        self.referenced: set[str] = set()


_SEPARATORS = re.compile(r"(?:[\s,;]|#[^\n]*|//[^\n]*)*")
_SPACE = re.compile(r"\s*")
_BLANKS = re.compile(r"[ \t\r]*")
_KEY = re.compile(r"[^\s:=]+")
_BARE_WORD = re.compile(r"(?:[^\s,;\]}\\]|\\.)+")
_PATH = re.compile(r"[^\s;}]+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'", re.DOTALL)
_BLOCK = re.compile(r"\((.*?)\n\)[ \t\r]*(?=\n|$)", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_INTEGER = re.compile(r"-?\d+(?:[kmgt](?:i?b?)?)?", re.IGNORECASE)
_NAME = re.compile(r"\w+")
_FLOAT = re.compile(r"-?\d+\.\d+")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_config(
    text: str, source: str, read_file: Callable[[str], str], environment: Mapping[str, str]
) -> Section:
    """Parse the configuration in `text`; `read_file` returns the text of an included file."""
    return _ConfigParser(text, source, read_file, environment, []).parse_top()


class _ConfigParser:
    def __init__(
        self,
        text: str,
        source: str,
        read_file: Callable[[str], str],
        environment: Mapping[str, str],
        scopes: list[Section],
    ) -> None:
        self._text = text
        self._offset = 0
        self._source = source
        self._read_file = read_file
        self._environment = environment
        self._scopes = scopes
        self._list_depth = 0
        #: Offset up to which lines were counted, number of the line there, offset of its start.
        self._line_cache = (0, 1, 0)

    def parse_top(self) -> Section:
        self._skip(_SEPARATORS)
        if self._peek() == "{":
            self._offset += 1
            section = self._parse_section("}")
        else:
            section = self._parse_section("")
        self._skip(_SEPARATORS)
        if self._offset < len(self._text):
            self._fail(f"unexpected {self._peek()!r} after the end of the configuration")
        return section

    def _parse_section(self, end: str) -> Section:
        """Parse entries up to the closing brace, or to the end of the text."""
        section = Section()
        self._scopes.append(section)
        if len(self._scopes) > DEPTH_MAX:
            self._fail(f"sections or included files are nested more than {DEPTH_MAX} levels deep")
        while True:
            self._skip(_SEPARATORS)
            if self._peek() == end:
                self._offset += len(end)
                self._scopes.pop()
                return section
            if not self._peek():
                self._fail("the section does not end: } is missing")
            self._parse_entry(section)

    def _parse_entry(self, section: Section) -> None:
        pos = self._get_pos()
        key = self._parse_key()
        if key == "include" and self._peek().isspace():
            self._parse_include(section)
        else:
            self._skip(_SPACE)
            if self._peek() in (":", "="):
                self._offset += 1
                self._skip(_SPACE)
            section[key] = self._parse_value()
            section.positions[key] = pos
        self._expect_end_of_value()

    def _parse_key(self) -> str:
        if self._peek() in ('"', "'"):
            return self._parse_quoted()
        match = _KEY.match(self._text, self._offset)
        if match is None:
            self._fail(f"expected a key, not {self._peek()!r}")
        if match[0] in ("]", "}"):
            self._fail(f"expected a key, not {match[0]!r}")
        if match[0].endswith("{"):
            self._fail(f"{match[0]!r} is not a key: put a space before the brace")
        self._offset = match.end()
        return match[0]

    def _parse_value(self) -> object:
        first = self._peek()
        if first == "{":
            self._offset += 1
            return self._parse_section("}")
        if first == "[":
            self._offset += 1
            return self._parse_array()
        if first in ('"', "'"):
            return self._parse_quoted()
        if first == "(":
            return self._match(_BLOCK, "a block that ends with ) on a line of its own")[1]
        return self._parse_bare()

    def _parse_array(self) -> list[object]:
        values: list[object] = []
        self._list_depth += 1
        if self._list_depth > DEPTH_MAX:
            self._fail(f"lists are nested more than {DEPTH_MAX} levels deep")
        while True:
            self._skip(_SEPARATORS)
            if self._peek() == "]":
                self._offset += 1
                self._list_depth -= 1
                return values
            if not self._peek():
                self._fail("the list does not end: ] is missing")
            values.append(self._parse_value())
            self._expect_end_of_value()

    def _parse_quoted(self) -> str:
        if self._peek() == "'":
            return self._match(_SINGLE, "a closing '")[1]
        return _ESCAPE.sub(self._unescape, self._match(_DOUBLE, 'a closing "')[1])

    def _parse_bare(self) -> object:
        match = _BARE_WORD.match(self._text, self._offset)
        if match is None:
            self._fail("a value is missing")
        word = match[0]
        if word[0] == "$":
            value = self._resolve_variable(word[1:])
        elif "\\" in word:
            value = _ESCAPE.sub(self._unescape, word)
        else:
            value = self._parse_bare_word(word)
        self._offset = match.end()
        return value

    def _parse_bare_word(self, word: str) -> object:
        try:
            return parse_bare_word(word)
        except ValueError as error:
            self._fail(str(error))

    def _unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "x" and len(code) == 3:
            return chr(int(code[1:], 16))
        if code not in _ESCAPES:
            self._fail(f'\\{code} is no escape; use \\xXX, \\t, \\n, \\r, \\" or \\\\')
        return _ESCAPES[code]

    def _resolve_variable(self, name: str) -> object:
        """Resolve a variable: a key seen before, innermost section first, or an environment variable."""
        if name.startswith("2a$"):
            return f"${name}"
        for scope in reversed(self._scopes):
            if name in scope:
                scope.referenced.add(name)
                return scope[name]
        if name not in self._environment and not _NAME.fullmatch(name):
            return f"${name}"  # a subject like $KV.> rather than a variable
        if name not in self._environment:
            self._fail(
                f"variable {name!r} is not defined: it is neither a key above nor an environment variable"
            )
        text = self._environment[name]
        if text == f"${name}":
            self._fail(f"variable {name!r} refers to itself")
        return self._parse_bare_word(text) if _BARE_WORD.fullmatch(text) and text[0] != "$" else text

    def _parse_include(self, section: Section) -> None:
        self._skip(_BLANKS)
        start = self._offset
        if self._peek() in ('"', "'"):
            name = self._parse_quoted()
        else:
            name = self._match(_PATH, "the name of a file")[0]
        # As in nats-server, even an absolute path is taken relative to the directory of the including file.
        path = str(PurePosixPath(self._source).parent / name.lstrip("/"))
        try:
            text = self._read_file(path)
        except OSError as error:
            self._offset = start
            self._fail(f"cannot read {path!r}: {error.strerror}")
        except ValueError as error:
            self._offset = start
            self._fail(f"cannot read {path!r}: {error}")
        included = _ConfigParser(
            text, path, self._read_file, self._environment, list(self._scopes)
        ).parse_top()
        section.update(included)
        section.positions.update(included.positions)
        section.referenced |= included.referenced

    def _expect_end_of_value(self) -> None:
        """Expect the end of the line, a separator, a comment or a closing bracket after a value."""
        self._skip(_BLANKS)
        rest = self._text[self._offset : self._offset + 2]
        if rest and rest[0] not in "\n,;#]}" and rest != "//":
            self._fail(f"expected a new line or a comma before {rest[0]!r}")

    def _match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self._text, self._offset)
        if match is None:
            self._fail(f"expected {expected}")
        self._offset = match.end()
        return match

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._offset)
        assert match is not None
        self._offset = match.end()

    def _peek(self) -> str:
        return self._text[self._offset : self._offset + 1]

    def _get_pos(self) -> SourcePos:
        """Return the current position. Lines are counted from the last position, so that a long file stays cheap."""
        offset, line, line_start = self._line_cache if self._line_cache[0] <= self._offset else (0, 1, 0)
        line += self._text.count("\n", offset, self._offset)
        line_start = max(line_start, self._text.rfind("\n", offset, self._offset) + 1)
        self._line_cache = (self._offset, line, line_start)
        return SourcePos(self._source, line, self._offset - line_start + 1)

    def _fail(self, text: str) -> NoReturn:
        raise ConfigFileError(f"{self._get_pos()}: Parse error: {text}")


def parse_bare_word(word: str) -> str | int | float | bool:
    """Parse a word without quotes: a number, a size, a boolean, or a string."""
    if word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    if _INTEGER.fullmatch(word):
        return -parse_size(word[1:]) if word[0] == "-" else parse_size(word)
    return float(word) if _FLOAT.fullmatch(word) else word
